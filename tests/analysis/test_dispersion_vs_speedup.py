"""Dispersion against speed-up: one point a task, seeds paired, and the rank correlation of the analysis."""

from __future__ import annotations

from typing import Any

import pytest

from semfocus.analysis.correlation import spearman
from semfocus.analysis.dispersion_vs_speedup import dispersion_against_speed, dispersion_points, smallest_p
from semfocus.analysis.records import Record
from semfocus.errors import UsageError
from semfocus.measurements import Dispersion
from tests.measurements import payloads

TASKS = {"parity": (0.8, 1.0), "even_pairs": (0.2, 8.0), "listops": (0.6, 1.5), "stack_manipulation": (0.4, 3.0)}


def record(task: str, mechanism: str, seed: int, epoch: float | None, state: str = "done") -> Record:
    config = {"task": {"name": task}, "attention": {"mechanism": mechanism}, "seed": seed, "training": {"epochs": 100}}
    rows = [] if epoch is None else [{"epoch": epoch, "train_accuracy": 0.97}]
    return Record(f"{task}/{mechanism}/{seed}", config, rows, state, 1.0)


def at(delta_full: float, delta_heavy: float) -> dict[str, Any]:
    start = payloads.checkpoint(delta_full={"95": delta_full}, delta_heavy={"95": delta_heavy})
    end = payloads.checkpoint(delta_full={"95": 2.0}, delta_heavy={"95": 2.0})
    return {"dispersion": Dispersion.from_payload(payloads.dispersion({"0": start, "last": end}))}


def world() -> tuple[list[Record], dict[str, dict[str, Any]]]:
    records, measurements = [], {}
    for task, (ratio, speed) in TASKS.items():
        for seed in range(4):
            records += [record(task, "full", seed, 80.0), record(task, "topk:5", seed, 80.0 / speed)]
            measurements[f"{task}/full/{seed}"] = at(10.0, 9.0)
            measurements[f"{task}/topk:5/{seed}"] = at(50.0, 10.0 * ratio)
    return records, measurements


def test_a_point_takes_heavy_from_the_top_k_run_and_full_from_the_full_run() -> None:
    points = dispersion_points(*world())
    assert [point.task for point in points] == sorted(TASKS)
    for point in points:
        ratio, speed = TASKS[point.task]
        assert point.start == pytest.approx(ratio)
        assert point.end == pytest.approx(1.0)
        assert point.speed_up.ratio.value == pytest.approx(speed)
        assert (point.start_seeds, point.end_seeds) == (4, 4)
        assert point.left_out == ()


def test_the_correlation_is_spearman_s_of_the_start_unless_the_end_is_asked_for() -> None:
    points = dispersion_points(*world())
    correlation = dispersion_against_speed(points)
    expected = spearman({t: r for t, (r, _) in TASKS.items()}, {t: s for t, (_, s) in TASKS.items()})
    assert (correlation.rho, correlation.p, correlation.interval) == (expected.rho, expected.p, expected.interval)
    assert correlation.rho == pytest.approx(-1.0)
    assert dispersion_against_speed(points, "end").rho is None
    with pytest.raises(UsageError, match="middle"):
        dispersion_against_speed(points, "middle")


def test_what_was_not_measured_or_not_finished_is_left_out_and_not_guessed() -> None:
    records, measurements = world()
    records = [r for r in records if r.id != "parity/full/0"] + [record("parity", "full", 0, None, "interrupted")]
    del measurements["listops/full/1"]
    measurements["even_pairs/full/2"] = at(0.0, 0.0)
    points = {point.task: point for point in dispersion_points(records, measurements)}
    assert points["parity"].start_seeds == points["parity"].speed_up.pairs == 3
    assert points["listops"].start == pytest.approx(0.6)
    assert (points["listops"].start_seeds, points["listops"].speed_up.pairs) == (3, 4), "measured, not trained"
    assert points["even_pairs"].start == pytest.approx(0.2)
    assert (points["even_pairs"].start_seeds, points["even_pairs"].end_seeds) == (3, 4)
    nothing = dispersion_points(records, {})
    assert [point.start for point in nothing] == [None] * 4
    assert "not enough data" in dispersion_against_speed(nothing).why
    assert dispersion_points([r for r in records if r.mechanism == "full"], measurements) == []


def measured_with(measurements: dict[str, dict[str, Any]], run: str, **settings: Any) -> None:
    measured = measurements[run]["dispersion"]
    measurements[run]["dispersion"] = Dispersion.from_payload(measured.document | settings)


def test_pairs_measured_in_another_way_are_left_out_and_named() -> None:
    records, measurements = world()
    for run in measurements:
        measured_with(measurements, run, k=5, split="train", rows=1000)
    measurements["parity/topk:5/2"] = at(50.0, 900.0)
    measured_with(measurements, "parity/topk:5/2", k=5, split="train", rows=200)
    for run in [run for run in measurements if run.startswith("listops")]:
        measured_with(measurements, run, split="heldout")
    measured_with(measurements, "even_pairs/topk:5/1", k=8)
    measured_with(measurements, "even_pairs/full/0", k=8)
    points = {point.task: point for point in dispersion_points(records, measurements)}
    assert points["parity"].start == pytest.approx(0.8)
    assert points["parity"].start_seeds == 3
    named = {task: [(one.record.id, one.why) for one in point.left_out] for task, point in points.items()}
    assert named["parity"] == [("parity/topk:5/2", "rows = 200, not 1000")]
    assert points["listops"].start is None
    assert len(named["listops"]) == 8
    assert {why for _, why in named["listops"]} == {"split = heldout, not train"}
    assert named["even_pairs"] == [("even_pairs/topk:5/1", "k = 8, not 5")], "the k of full attention is of no account"
    assert points["even_pairs"].start_seeds == 3
    assert named["stack_manipulation"] == []


def test_a_pair_of_runs_measured_differently_makes_no_ratio() -> None:
    records, measurements = world()
    for run in measurements:
        measured_with(measurements, run, split="train", rows=1000 if "/full/" in run else 200)
    points = dispersion_points(records, measurements)
    assert [(point.start, point.start_seeds) for point in points] == [(None, 0)] * 4
    assert all("rows = 200, not 1000" in point.left_out[0].why for point in points)


def test_four_tasks_have_an_interval_but_only_five_can_be_significant() -> None:
    names = ["parity", "listops", "even_pairs", "shuffle", "sort"]
    for count in (3, 4, 5):
        numbers = {name: float(i) for i, name in enumerate(names[:count])}
        correlation = spearman(numbers, numbers)
        assert (correlation.interval is None) == (count < 4)
        assert correlation.p is None or correlation.p == pytest.approx(smallest_p(count))
    assert smallest_p(5) < 0.05 < smallest_p(4)
