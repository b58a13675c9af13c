"""A loss surface: the losses over a grid in a plane through a trained model, and what is known about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from semfocus.measurements.kinds import SurfaceMeta


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
