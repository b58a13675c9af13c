"""C9 and C10 on measurements made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.measured import TABLE_TASKS
from semfocus.analysis.verdicts.settings import TASKS
from tests.analysis.made import both, measure, run, verdict
from tests.measurements import payloads


def _dispersion(full: float, topk: float, gap: float = 1.0, degree: float = 5.0) -> Callable[[Record], dict[str, Any]]:
    """The same at every percentile and checkpoint, a little more with every seed."""

    def payload(record: Record) -> dict[str, Any]:
        delta = (full if record.mechanism == "full" else topk) * (1 + 0.01 * record.seed)
        at = [payloads.checkpoint(delta=delta, separation=gap, in_degree=degree) for _ in range(2)]
        return payloads.dispersion({"0": at[0], "last": at[1]})

    return payload


def _judged(claim: str, records: list[Record], name: str, payload: Callable[[Record], dict[str, Any] | None]):
    return verdict(claim, records, measure(records, name, payload))


def test_c9_holds_when_dispersion_is_lower_and_both_conditions_are_met() -> None:
    judged = _judged("C9", both(60, 20, TABLE_TASKS), "dispersion", _dispersion(20, 5))
    assert judged.outcome == "holds"  # W = (5 + ln 4) / 20
    assert judged.runs == 80


def test_c9_is_mixed_when_only_the_conditions_fail() -> None:
    judged = _judged("C9", both(60, 20, TABLE_TASKS), "dispersion", _dispersion(6, 5))
    assert judged.outcome == "mixed"  # W = (5 + ln 4) / 6 > 1
    assert "4 refuted: listops: conditions (W = 1.0" in judged.because


def test_c9_does_not_hold_when_dispersion_is_higher() -> None:
    assert _judged("C9", both(60, 20, TABLE_TASKS), "dispersion", _dispersion(5, 20)).outcome == "does not hold"


def test_c9_wants_a_lower_dispersion_at_every_percentile() -> None:
    def payload(record: Record) -> dict[str, Any]:
        made = _dispersion(20, 5)(record)
        if record.mechanism == "topk:5":
            made["checkpoints"]["last"]["delta"]["90"] = 30.0
        return made

    judged = _judged("C9", both(60, 20, TABLE_TASKS), "dispersion", payload)
    assert "listops: lower dispersion" in judged.because.split("undecided")[1]


@pytest.mark.parametrize("broken", [None, {}, {"k": 9}, {"k": 5, "checkpoints": {"last": {"delta": {"75": "high"}}}}])
def test_c9_takes_a_measurement_that_is_not_one_for_none(broken: dict[str, Any] | None) -> None:
    judged = _judged("C9", both(60, 20, TABLE_TASKS), "dispersion", lambda record: broken)
    assert judged.outcome == "not decided"
    assert "with a measured dispersion" in judged.because


def _surface(full: float, topk: float, grid: int = 51) -> Callable[[Record], dict[str, Any]]:
    def payload(record: Record) -> dict[str, Any]:
        slope = (full if record.mechanism == "full" else topk) * (1 + 0.02 * (record.seed % 4))
        reverse = {percent: [1 / slope, 1 / slope] for percent in ("50", "75", "95", "99")}
        return payloads.surface([slope, 2 * slope], grid=grid, per_step=reverse)

    return payload


def test_c10_compares_slopes_per_true_distance() -> None:
    records = both(60, 20, TABLE_TASKS)
    assert _judged("C10", records, "surface", _surface(4, 1)).outcome == "holds"
    assert _judged("C10", records, "surface", _surface(1, 4)).outcome == "does not hold"
    assert _judged("C10", both(60, 20, TABLE_TASKS[:2]), "surface", _surface(4, 1)).scope == "2 of 4 parts run"
    assert _judged("C10", both(60, 20, TABLE_TASKS, seeds=5), "surface", _surface(4, 1)).outcome == "not decided"


@pytest.mark.parametrize("without", ["full", "topk:5"])
def test_c10_does_not_compare_a_model_that_has_learned_with_one_that_has_not(without: str) -> None:
    at = {"full": 60, "topk:5": 20, without: None}
    judged = _judged("C10", both(at["full"], at["topk:5"], TABLE_TASKS), "surface", _surface(1, 4))
    assert judged.outcome == "not decided"
    assert "no pair of which both have learned: 95% training accuracy in the last epoch" in judged.because
    assert judged.runs == 0


def test_c10_leaves_out_the_pairs_that_have_not_both_learned_and_says_how_many() -> None:
    def payload(record: Record) -> dict[str, Any]:  # those that fail are steep the other way
        return _surface(4, 1)(record) if record.seed < 10 else _surface(1, 400)(record)

    fails = [run(task, "topk:5", seed, at=None) for task in TABLE_TASKS for seed in range(10, 14)]
    learns = [run(task, "full", seed, at=60) for task in TABLE_TASKS for seed in range(10, 14)]
    judged = _judged("C10", both(60, 20, TABLE_TASKS) + fails + learns, "surface", payload)
    assert judged.outcome == "holds"
    assert judged.runs == 80
    assert "4 pairs of which not both have learned left out" in judged.because


def test_c10_counts_a_model_that_has_forgotten_or_diverged_as_not_learned() -> None:
    records = both(60, 20, TABLE_TASKS)
    diverged = [Record(r.id, r.config, r.metrics, "diverged", 1.0) if r.mechanism == "full" else r for r in records]
    forgot = [r if r.mechanism == "full" else _forgetting(r) for r in records]
    for world in (diverged, forgot):
        assert _judged("C10", world, "surface", _surface(4, 1)).outcome == "not decided"


def _forgetting(record: Record) -> Record:
    rows = [dict(row) for row in record.metrics]
    rows[-1]["train_accuracy"] = 0.9
    return Record(record.id, record.config, rows, record.state, 1.0)


def test_c10_does_without_squares_that_are_too_small_for_the_grid_but_not_without_others() -> None:
    def payload(record: Record, lost: int) -> dict[str, Any]:
        made = _surface(4, 1)(record) | {"squares": [0.01, 0.1, 0.7]}  # the grid's step is 0.04
        tables = {way: {p: [None, *row] for p, row in made[way].items()} for way in ("per_distance", "per_step")}
        for row in tables["per_distance"].values():
            row[lost] = None
        return made | tables

    records = both(60, 20, TABLE_TASKS)
    assert _judged("C10", records, "surface", lambda record: payload(record, 0)).outcome == "holds"
    assert _judged("C10", records, "surface", lambda record: payload(record, 2)).outcome == "not decided"


def test_c10_does_not_compare_surfaces_of_different_grids() -> None:
    records = both(60, 20, TABLE_TASKS)
    judged = _judged("C10", records, "surface", lambda r: _surface(4, 1, 51 if r.mechanism == "full" else 101)(r))
    assert judged.outcome == "not decided"
    assert "different grids" in judged.because


def test_a_pair_whose_runs_were_measured_in_different_ways_is_no_pair() -> None:
    def payload(record: Record) -> dict[str, Any]:
        return _dispersion(20, 5)(record) | {"split": "train" if record.mechanism == "full" else "heldout"}

    judged = _judged("C9", both(60, 20, TASKS), "dispersion", payload)
    assert judged.outcome == "not decided"
    assert judged.runs == 0


def test_a_run_that_was_not_measured_leaves_its_pair_out() -> None:
    records = both(60, 20, TABLE_TASKS)
    judged = _judged("C9", records, "dispersion", lambda r: _dispersion(20, 5)(r) if r.seed < 5 else None)
    assert judged.outcome == "not decided"
    assert judged.runs == 40
    assert "5 paired seeds" in judged.because


def test_measurements_of_unknown_runs_change_nothing() -> None:
    measured = measure([run("parity", "full", 1)], "dispersion", _dispersion(20, 5))
    assert verdict("C9", [], measured).outcome == "not decided"
