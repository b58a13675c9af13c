"""C15 to C18 on runs made by hand: other ways to focus and to weigh, longer sequences, and how slopes grow."""

from __future__ import annotations

from typing import Any

import pytest

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.longer import LONGER_TASKS, PLACES, RIVALS, SMOOTH_TASKS
from semfocus.analysis.verdicts.ways import GAIN_TASKS, NORMALISERS, SEVEN
from tests.analysis.made import arm, measure, verdict

NORMALISER = "attention.normaliser"


def ways(
    others: float = 20, controls: float | None = 80, lead: float = 20, full: float = 60, tasks=SEVEN
) -> list[Record]:
    """Epochs to 95 % of full and top-5, of the four other ways, and of the two controls."""
    records: list[Record] = []
    for task in tasks:
        records += arm(task, "full", full) + arm(task, "topk:5", lead) + arm(task, "topk:10", 30)
        records += [run for name in ("lsh:5", "routing:5") for run in arm(task, name, others)]
        records += [run for name in ("bottomk:5", "randomk:5") for run in arm(task, name, controls)]
        for name in ("entmax:1.5", "sparsemax"):
            records += arm(task, "full", others, changes={NORMALISER: name})
    return records


def test_other_ways_that_are_as_fast_hold_and_one_that_is_slower_is_mixed() -> None:
    assert verdict("C15", ways()).outcome == "holds"
    slower = [run for run in ways() if run.mechanism != "lsh:5"] + [
        run for task in SEVEN for run in arm(task, "lsh:5", 90)
    ]
    found = verdict("C15", slower)
    assert found.outcome == "mixed"
    assert "lsh:5" in found.because


def test_controls_as_fast_as_topk_refute_and_no_lead_leaves_nothing_to_explain() -> None:
    assert verdict("C15", ways(others=90, controls=5)).outcome == "does not hold"
    nothing = verdict("C15", ways(lead=60))
    assert (nothing.outcome, nothing.judged) == ("not decided", (0, 0))


def test_beside_each_ratio_stand_the_keys_and_the_topk_of_that_size() -> None:
    records = ways(tasks=SEVEN[:1])
    kept = {"step": 1, "split": "heldout", "rows": 5, "mean": 11.2, "layers": [11.2], "keys": 40.0}
    measured = measure(records, "kept_keys", lambda record: kept)
    assert "11.2 keys, where topk:10 is 1.98x" in verdict("C15", records, measured).because


def test_a_way_in_another_setting_is_not_compared() -> None:
    records = [run for run in ways(tasks=SEVEN[:1]) if run.config["attention"]["normaliser"] == "softmax"]
    records += arm(SEVEN[0], "full", 20, changes={NORMALISER: "entmax:1.5", "model.blocks": 3})
    assert "never run" in verdict("C15", records).because
    assert verdict("C15", records).judged[0] == 4


def gains(by_name: dict[str, tuple[float | None, float | None]], spread: float = 0.05) -> list[Record]:
    """Epochs of full and top-5 under each normaliser; softmax: 60 and 30."""
    records: list[Record] = []
    for task in GAIN_TASKS:
        for name, (full, topk) in {"softmax": (60, 30), **by_name}.items():
            change = {NORMALISER: name} if name != "softmax" else {}
            records += arm(task, "full", full, spread=spread, changes=change)
            records += arm(task, "topk:5", topk, spread=spread, changes=change)
    return records


def test_the_same_gain_under_all_normalisers_holds_and_one_without_gain_refutes() -> None:
    same = dict.fromkeys(NORMALISERS, (40.0, 20.0))
    assert verdict("C16", gains(same)).outcome == "holds"
    found = verdict("C16", gains(same | {"sigmoid": (40.0, 40.0)}))
    assert found.outcome == "does not hold"
    assert "sigmoid" in (found.effect or "")


def test_a_normaliser_with_which_nothing_learns_is_not_applicable_and_a_hidden_gain_undecided() -> None:
    same = dict.fromkeys(NORMALISERS, (40.0, 20.0))
    silent = verdict("C16", gains(same | {"doubly": (None, None)}))
    assert silent.outcome == "holds"
    assert "neither arm learns with doubly" in silent.because
    assert "hides gains" in verdict("C16", gains(same | {"doubly": (None, 20.0)})).because


def longer(area_of: dict[str, float]) -> tuple[list[Record], dict[str, Any]]:
    """Areas of full, topk:5 and the rivals on every task with every kind of position."""
    records: list[Record] = []
    for task in LONGER_TASKS:
        for place in PLACES:
            at = {"task.lengths": "1-40", "model.positions": place}
            records += [run for name in ("full", "topk:5") for run in arm(task, name, 10, changes=at)]
            records += [run for name in RIVALS for run in arm(task, "full", 10, changes={**at, NORMALISER: name})]

    def payload(record: Record) -> dict[str, Any]:
        attention = record.config["attention"]
        way = record.mechanism if attention["normaliser"] == "softmax" else attention["normaliser"]
        luck = 0.001 * (record.seed * (3 if record.mechanism == "topk:5" else 1) % 7)
        own = area_of.get(way, area_of["rivals"]) + luck
        points = {str(n): {"accuracy": own, "loss": 1.0} for n in (40, 160, 500)}
        return {"step": 1, "rows": 500, "points": points}

    return records, dict(measure(records, "lengths", payload))


@pytest.mark.parametrize(
    ("areas", "outcome"),
    [
        ({"full": 0.4, "topk:5": 0.6, "rivals": 0.6}, "holds"),
        ({"full": 0.6, "topk:5": 0.4, "rivals": 0.6}, "does not hold"),
        ({"full": 0.4, "topk:5": 0.6, "rivals": 0.8}, "mixed"),
        ({"full": 0.05, "topk:5": 0.05, "rivals": 0.05}, "not decided"),
    ],
)
def test_areas_beyond_the_lengths_of_training_are_compared_with_full_and_with_the_rivals(areas, outcome: str) -> None:
    found = verdict("C17", *longer(areas))
    assert found.outcome == outcome
    if areas["full"] < 0.1:
        assert "no better" in found.because or "guessing" in found.because


def test_runs_of_one_length_or_without_a_curve_do_not_count() -> None:
    records = arm("copy", "full", 10) + arm("copy", "topk:5", 10)
    points = {"step": 1, "rows": 5, "points": {"40": {"accuracy": 0.5}, "80": {"accuracy": 0.5}}}
    assert verdict("C17", records, measure(records, "lengths", lambda record: points)).judged[0] == 0


def growth(topk: float) -> tuple[list[Record], dict[str, Any]]:
    records = [run for task in SMOOTH_TASKS for name in ("full", "topk:5") for run in arm(task, name, 10)]

    def payload(record: Record) -> dict[str, Any]:
        own = (topk if record.mechanism == "topk:5" else 0.1) + 0.002 * (record.seed % 5)
        shared = {"certified": 1.0, "sqrt_n": 1.0, "settled": 1.0}
        return {"step": 1, "rows": 4, "points": {str(n): {"constant": n**own, **shared} for n in (10, 60, 600)}}

    return records, dict(measure(records, "smoothness", payload))


@pytest.mark.parametrize(("topk", "outcome"), [(0.11, "holds"), (0.3, "does not hold"), (-0.2, "does not hold")])
def test_exponents_are_the_same_within_a_margin_or_are_not(topk: float, outcome: str) -> None:
    found = verdict("C18", *growth(topk))
    assert found.outcome == outcome
    assert f"n^{topk:.2f} with topk:5" in found.because


def test_too_few_pairs_decide_no_exponent() -> None:
    records, measured = growth(0.5)
    few = [run for run in records if run.seed < 4]
    assert verdict("C18", few, measured).outcome == "not decided"


def test_exponents_that_one_arm_alone_has_so_far_are_no_pair() -> None:
    records, measured = growth(0.5)
    of_full = {record.id: measured[record.id] for record in records if record.mechanism == "full"}
    found = verdict("C18", records, of_full)
    assert found.judged[0] == 0
    assert "never run" in found.because or "no seed" in found.because, found.because
