"""Finite differences inside growing squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semfocus.measurements import grid_axis
from semfocus.measurements.surface import SQUARES, slopes

AXIS = grid_axis(201, 1.0)


def _over(function) -> np.ndarray:
    up, across = np.meshgrid(AXIS, AXIS, indexing="ij")
    return function(across, up)


def test_the_slopes_of_a_plane_are_its_coefficients_per_step_and_per_distance() -> None:
    percentiles = slopes(_over(lambda x, y: 3 * x - 4 * y), AXIS, (2.0, 8.0))
    for i in range(len(SQUARES)):
        assert percentiles["per_step"]["99"][i] == pytest.approx(4.0)
        assert 3 <= percentiles["per_step"]["50"][i] <= 4
        assert percentiles["per_distance"]["99"][i] == pytest.approx(
            1.5
        )  # 3 / 2: direction 1 is the steeper one per distance
        assert 0.5 <= percentiles["per_distance"]["50"][i] <= 1.5


def test_only_neighbours_inside_the_square_count() -> None:
    percentiles = slopes(_over(lambda x, y: np.where(np.abs(x) > 0.305, 100 * np.abs(x), 0.0)), AXIS, (1.0, 1.0))
    for square, value in zip(SQUARES, percentiles["per_step"]["99"], strict=True):
        assert value is not None
        assert (value > 0) == (square > 0.31), square


def test_percentiles_rise_and_are_those_of_all_slopes() -> None:
    losses = _over(lambda x, y: x**2 + np.sin(5 * y))
    percentiles = slopes(losses, AXIS, (1.0, 1.0), squares=(1.0,))["per_step"]
    every = np.concatenate([np.abs(np.diff(losses, axis=i)).ravel() for i in (0, 1)]) / (AXIS[1] - AXIS[0])
    for name, values in percentiles.items():
        assert values[0] == pytest.approx(np.percentile(every, int(name)))
    assert percentiles["50"][0] < percentiles["75"][0] < percentiles["95"][0] < percentiles["99"][0]


def test_a_square_without_neighbours_has_no_slopes() -> None:
    axis = grid_axis(5, 1.0)
    percentiles = slopes(np.zeros((5, 5)), axis, (1.0, 1.0))
    assert percentiles["per_step"]["50"][0] is None
    assert percentiles["per_step"]["50"][-1] == 0.0


def test_losses_that_are_not_finite_give_infinite_slopes_in_their_squares_only() -> None:
    losses = _over(lambda x, y: x + y)
    losses[:90] = math.nan
    losses[150:, 150:] = math.inf
    percentiles = slopes(losses, AXIS, (1.0, 1.0))["per_step"]
    assert percentiles["99"][SQUARES.index(0.05)] == pytest.approx(1.0)
    assert percentiles["99"][-1] is None
    assert percentiles["50"][SQUARES.index(0.2)] == pytest.approx(1.0)
    assert percentiles["50"][-1] is None or percentiles["50"][-1] == pytest.approx(1.0)
