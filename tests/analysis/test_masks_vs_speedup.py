"""Mask stability against epochs and speed-up: one point a task, one way of measuring, honest about what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from semfocus.analysis.correlation import spearman
from semfocus.analysis.masks_vs_speedup import drawn_masks, mask_points, masks_against
from semfocus.analysis.records import Record
from semfocus.errors import UsageError
from semfocus.measurements import MaskStability
from tests.analysis.test_dispersion_vs_speedup import record
from tests.measurements import payloads

TASKS = {"parity": (0.5, 40.0), "even_pairs": (0.9, 10.0), "listops": (0.6, 20.0), "stack_manipulation": (0.8, 16.0)}
NOISE = [0.01, 0.1, 0.3]


def shaken(share: float, **settings: Any) -> dict[str, Any]:
    usual = {"rows": 200, "checkpoint": "last", "noise": NOISE}
    payload = payloads.mask_stability([share + 0.1, share, share - 0.1]) | usual | settings
    return {"mask_stability": MaskStability.from_payload(payload)}


def world() -> tuple[list[Record], dict[str, dict[str, Any]]]:
    records, measurements = [], {}
    for task, (kept, epochs) in TASKS.items():
        for seed in range(4):
            records += [record(task, "full", seed, 80.0), record(task, "topk:5", seed, epochs)]
            measurements[f"{task}/full/{seed}"] = shaken(0.1)
            measurements[f"{task}/topk:5/{seed}"] = shaken(kept)
    return records, measurements


def test_a_point_has_the_share_of_the_mechanism_its_epochs_and_its_speed_up() -> None:
    measured = mask_points(*world())
    assert measured.settings == {"split": "train", "k": 5, "checkpoint": "last", "noise": NOISE}
    assert [point.task for point in measured.points] == sorted(TASKS)
    for point in measured.points:
        kept, epochs = TASKS[point.task]
        assert point.kept == pytest.approx(kept)
        assert (point.epochs, point.all_reached, point.seeds) == (epochs, True, 4)
        assert point.speed_up.ratio.value == pytest.approx(80.0 / epochs)


def test_the_correlations_are_spearman_s_with_epochs_and_with_the_speed_up() -> None:
    points = mask_points(*world()).points
    kept = {task: share for task, (share, _) in TASKS.items()}
    expected = spearman(kept, {task: epochs for task, (_, epochs) in TASKS.items()})
    correlation = masks_against(points, "epochs")
    assert (correlation.rho, correlation.p, correlation.interval) == (expected.rho, expected.p, expected.interval)
    assert correlation.rho == pytest.approx(-1.0)
    assert masks_against(points, "speed-up").rho == pytest.approx(1.0)
    assert "needs at least 4" in masks_against(points[:3], "epochs").why
    with pytest.raises(UsageError, match="unknown outcome 'loss'"):
        masks_against(points, "loss")


def test_runs_that_never_get_there_make_the_epochs_a_bound() -> None:
    records, measurements = world()
    never = [record("parity", "topk:5", seed, None) for seed in (0, 1)]
    records = [r for r in records if r.id not in {one.id for one in never}] + never
    point = next(point for point in mask_points(records, measurements).points if point.task == "parity")
    assert not point.all_reached
    assert point.epochs == pytest.approx((40 + 40 + 100 + 100) / 4)


def test_other_noise_checkpoints_or_rows_are_left_out_and_named_and_gaps_are_not_guessed() -> None:
    records, measurements = world()
    measurements["parity/topk:5/0"] = shaken(0.9, noise=[1.0, 2.0, 3.0])
    measurements["parity/topk:5/1"] = shaken(0.9, checkpoint="0")
    measurements["listops/topk:5/3"] = shaken(0.9, rows=7)
    del measurements["even_pairs/topk:5/2"]
    measurements["even_pairs/topk:5/3"] = shaken(0.9, kept=[0.5, None, 0.1])
    points = {point.task: point for point in mask_points(records, measurements).points}
    assert {task: point.seeds for task, point in points.items()} == {
        "parity": 2, "listops": 3, "even_pairs": 2, "stack_manipulation": 4,
    }  # fmt: skip
    assert points["parity"].kept == pytest.approx(0.5)
    assert [one.why for one in points["parity"].left_out] == [
        f"noise = [1.0, 2.0, 3.0], not {NOISE}", "checkpoint = 0, not last",
    ]  # fmt: skip
    assert [one.why for one in points["listops"].left_out] == ["rows = 7, not 200"]
    nothing = mask_points(records, {})
    assert [point.kept for point in nothing.points] == [None] * 4
    assert drawn_masks(nothing.points, "epochs") == []
