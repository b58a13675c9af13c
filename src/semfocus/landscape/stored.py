"""Surfaces as they are kept with a run: `measurements/surface.json` and the losses beside it.

found = read_surface(run)                    along random directions; "path" and "hessian" are kept apart
found.losses[i, j]                           at axis[j] along the first direction, axis[i] along the second
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from semfocus.errors import CorruptData
from semfocus.store import RunDirectory
from semfocus.store.measurements import read_arrays, read_measurement

DONE = 3  # where the array `plan` (models at once, rows at once, threads, points done) says how far it is


@dataclass(frozen=True, eq=False)
class Surface:
    """Losses (n, n) over a grid; `payload` says where the grid lies and how steep it is."""

    losses: np.ndarray
    payload: dict[str, Any]
    path: np.ndarray | None = None  # (m, 2) of checkpoints in the plane, oldest first

    @property
    def axis(self) -> np.ndarray:
        return grid_axis(self.payload["grid"], self.payload["extent"])


def grid_axis(grid: int, extent: float) -> np.ndarray:
    """(n,) the coordinates of a grid along either direction."""
    return np.linspace(-extent, extent, grid)


def surface_name(directions: str) -> str:
    """The measurement's name: `surface` for the paper's random directions."""
    return "surface" if directions == "random" else f"surface-{directions}"


def read_surface(run: RunDirectory, directions: str = "random") -> Surface | None:
    """The surface that was measured on this run; None when there is none, or when a new one is half done."""
    name = surface_name(directions)
    payload, arrays = read_measurement(run, name), read_arrays(run, name)
    if payload is None or arrays is None:
        return None
    try:
        losses, key, done = arrays["losses"], bytes(arrays["key"]).hex(), int(arrays["plan"][DONE])
        grid, sound = payload["grid"], payload["extent"] > 0
    except (KeyError, TypeError, IndexError) as error:
        raise CorruptData(f"the measurement {name!r} of run {run.id} is not a surface: {error!r}") from None
    if key != payload.get("key") or done < losses.size:
        return None
    if not sound or losses.shape != (grid, grid) or losses.dtype != np.float64:
        raise CorruptData(
            f"the measurement {name!r} of run {run.id} says grid = {grid!r}, "
            f"but its losses have shape {losses.shape} and type {losses.dtype}"
        )
    return Surface(losses, payload, arrays.get("path"))
