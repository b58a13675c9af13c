"""A loss surface: the losses over a grid in a plane through a trained model, and its slopes.

slopes(losses, axis, lengths)["per_distance"]["95"]      one number for each square

Slopes are finite differences between neighbouring grid points inside growing squares. Differences are divided by the
grid step, as in the paper, and by the distance in parameter space. Directions are scaled to the norm of the model, so
only the latter compares models of different norms. A difference that is not finite counts as infinite; a percentile
that falls on one is None, and so is every percentile of a square without neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semfocus.measurements.kinds import PERCENTILES, SurfaceMeta

SQUARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Half the sides of the squares inside which slopes are measured."""
ROUNDING = 1e-9  # a point on a square's border is inside it


@dataclass(frozen=True, eq=False)
class Surface:
    """`losses[i, j]` is the loss at axis[j] along the first direction and axis[i] along the second."""

    meta: SurfaceMeta
    arrays: Mapping[str, np.ndarray]  # as stored: losses, path, directions, and what a later call needs to go on

    @property
    def losses(self) -> np.ndarray:
        """(n, n)"""
        return self.arrays["losses"]

    @property
    def path(self) -> np.ndarray | None:
        """(m, 2): the checkpoints in the plane, oldest first; None where there are none."""
        path = self.arrays.get("path")
        sound = path is not None and path.ndim == 2 and path.shape[1] == 2 and bool(np.isfinite(path).all())
        return path if sound else None

    @property
    def axis(self) -> np.ndarray:
        return grid_axis(self.meta.grid, self.meta.extent)

    @property
    def finite(self) -> np.ndarray:
        """The finite losses, flat."""
        return self.losses[np.isfinite(self.losses)]

    @property
    def not_finite(self) -> int:
        return int(self.losses.size - len(self.finite))

    @property
    def lowest(self) -> float | None:
        return float(self.finite.min()) if len(self.finite) else None

    @property
    def highest(self) -> float | None:
        return float(self.finite.max()) if len(self.finite) else None


def grid_axis(grid: int, extent: float) -> np.ndarray:
    """(n,) the coordinates of a grid along either direction."""
    return np.linspace(-extent, extent, grid)


def slopes(
    losses: np.ndarray, axis: np.ndarray, lengths: Sequence[float], squares: Sequence[float] = SQUARES
) -> dict[str, dict[str, list[float | None]]]:
    """Percentiles of |difference| / step of losses (row i: axis[i] along direction 2, column j: along direction 1)."""
    by_scale: dict[str, dict[str, list[float | None]]] = {}
    for name, scales in (("per_step", (1.0, 1.0)), ("per_distance", lengths)):
        columns = [_percentiles(_inside(losses, axis, scales, square)) for square in squares]
        by_scale[name] = {str(p): [column[i] for column in columns] for i, p in enumerate(PERCENTILES)}
    return by_scale


def _inside(losses: np.ndarray, axis: np.ndarray, scales: Sequence[float], square: float) -> np.ndarray:
    """Every slope between two neighbours that both lie in [-square, square]^2."""
    within = np.flatnonzero(np.abs(axis) <= square + ROUNDING)
    if len(within) < 2:
        return np.empty(0)
    part, step = losses[np.ix_(within, within)], float(axis[1] - axis[0])
    with np.errstate(invalid="ignore"):
        across = np.abs(np.diff(part, axis=1)) / (step * scales[0])
        up = np.abs(np.diff(part, axis=0)) / (step * scales[1])
    values = np.concatenate([across.ravel(), up.ravel()])
    return np.where(np.isfinite(values), values, math.inf)


def _percentiles(values: np.ndarray) -> list[float | None]:
    if not len(values):
        return [None] * len(PERCENTILES)
    # A finite and an infinite value cannot be interpolated: take the steeper one.
    method = "linear" if np.isfinite(values).all() else "higher"
    levels = np.percentile(values, PERCENTILES, method=method)
    return [float(value) if math.isfinite(value) else None for value in levels]
