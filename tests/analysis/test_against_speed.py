"""Dispersion against speed-up: one point a task, seeds paired, and the rank correlation of the analysis."""

from __future__ import annotations

from typing import Any

import pytest

from semfocus.analysis.against_speed import dispersion_against_speed, dispersion_points
from semfocus.analysis.correlation import spearman
from semfocus.analysis.records import Record
from semfocus.errors import UsageError

TASKS = {"parity": (0.8, 1.0), "even_pairs": (0.2, 8.0), "listops": (0.6, 1.5), "stack_manipulation": (0.4, 3.0)}


def record(task: str, mechanism: str, seed: int, epoch: float | None, state: str = "done") -> Record:
    config = {"task": {"name": task}, "attention": {"mechanism": mechanism}, "seed": seed, "training": {"epochs": 100}}
    rows = [] if epoch is None else [{"epoch": epoch, "train_accuracy": 0.97}]
    return Record(f"{task}/{mechanism}/{seed}", config, rows, state, 1.0)


def at(delta_full: float, delta_heavy: float) -> dict[str, Any]:
    spreads = {"delta_full": {"95": delta_full}, "delta_heavy": {"95": delta_heavy}}
    return {"dispersion": {"checkpoints": {"0": spreads, "last": {name: {"95": 2.0} for name in spreads}}}}


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
        assert point.seeds == 4


def test_the_correlation_is_spearman_s_of_the_start_unless_the_end_is_asked_for() -> None:
    points = dispersion_points(*world())
    found = dispersion_against_speed(points)
    expected = spearman({t: r for t, (r, _) in TASKS.items()}, {t: s for t, (_, s) in TASKS.items()})
    assert (found.rho, found.p, found.interval) == (expected.rho, expected.p, expected.interval)
    assert found.rho == pytest.approx(-1.0)
    assert dispersion_against_speed(points, "end").rho is None
    with pytest.raises(UsageError, match="middle"):
        dispersion_against_speed(points, "middle")


def test_what_was_not_measured_or_not_finished_is_left_out_and_not_guessed() -> None:
    records, measurements = world()
    records = [r for r in records if r.id != "parity/full/0"] + [record("parity", "full", 0, None, "interrupted")]
    del measurements["listops/full/1"]
    measurements["even_pairs/full/2"] = at(0.0, 0.0)
    points = {point.task: point for point in dispersion_points(records, measurements)}
    assert points["parity"].seeds == 3
    assert points["listops"].start == pytest.approx(0.6)
    assert points["even_pairs"].start == pytest.approx(0.2)
    nothing = dispersion_points(records, {})
    assert [point.start for point in nothing] == [None] * 4
    assert "not enough data" in dispersion_against_speed(nothing).why
    assert dispersion_points([r for r in records if r.mechanism == "full"], measurements) == []
