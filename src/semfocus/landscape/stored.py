"""Surfaces as they are kept with a run, those of different settings side by side.

    found = read_surface(run)                    along random directions; "path" and "hessian" are kept apart
    found.losses[i, j]                           at axis[j] along the first direction, axis[i] along the second
    read_surface(run, key=key)                   one among several

Each has a name with the beginning of its key, a digest of its settings: `measurements/surface-0a1b2c3d4e5f.json`, and
the losses beside it in a `.safetensors`. One on its way is `...-part.safetensors`. `surface.json` repeats the document
of the one that is shown where nobody asks for another: around the newest checkpoint, of the finest grid, over the most
rows, and of several such the last. Earlier versions kept one surface alone, in `surface.json` and
`surface.safetensors`; such a one is read, and gets a name of its own before another is shown in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from semfocus.errors import CorruptData
from semfocus.store import RunDirectory
from semfocus.store.atomic import storage_errors
from semfocus.store.measurements import (
    ARRAYS,
    FOLDER,
    changing,
    read_arrays,
    read_measurement,
    write_arrays,
    write_measurement,
)

DONE = 3  # where the array `plan` (models at once, rows at once, threads, points done) says how far it is
DIGITS = 12  # of a key, in a name
_KEY = re.compile(r"[0-9a-f]{64}")


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


def surface_name(directions: str, key: str = "") -> str:
    """The measurement's name: `surface` for the paper's random directions; with a key, that of one among several."""
    kind = "surface" if directions == "random" else f"surface-{directions}"
    return f"{kind}-{key[:DIGITS]}" if key else kind


def read_surface(run: RunDirectory, directions: str = "random", key: str = "") -> Surface | None:
    """A finished surface of this run: the one of this key, or the one to show; None when there is none."""
    name = surface_name(directions, key)
    payload = read_measurement(run, name)
    arrays = None if payload is None else _arrays(run, directions, payload.get("key"))
    if payload is None or arrays is None:
        return None
    try:
        losses, known, done = arrays["losses"], bytes(arrays["key"]).hex(), int(arrays["plan"][DONE])
        grid, sound = payload["grid"], payload["extent"] > 0
    except (KeyError, TypeError, IndexError) as error:
        raise CorruptData(f"the measurement {name!r} of run {run.id} is not a surface: {error!r}") from None
    if known != payload.get("key") or done < losses.size:
        return None
    if not sound or losses.shape != (grid, grid) or losses.dtype != np.float64:
        raise CorruptData(
            f"the measurement {name!r} of run {run.id} says grid = {grid!r}, "
            f"but its losses have shape {losses.shape} and type {losses.dtype}"
        )
    return Surface(losses, payload, arrays.get("path"))


def keep_surface(run: RunDirectory, payload: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Keep a finished surface under its own name, and show it unless a finer one is shown; no other is lost."""
    directions, key = payload["directions"], payload["key"]
    with changing(run):  # another process may finish a finer one between the look and the write
        _write(run, surface_name(directions, key), payload, arrays)
        _show(run, directions, payload)
        _discard(run, _part_name(directions, key))  # last: with it, a call that was killed here is taken up


def _show(run: RunDirectory, directions: str, payload: Mapping[str, Any]) -> None:
    try:
        shown = read_surface(run, directions)
    except CorruptData:
        shown = None
    if shown is None or _fineness(payload) >= _fineness(shown.payload):
        if shown is not None:
            _name_apart(run, directions, shown.payload)
        write_measurement(run, surface_name(directions), payload)


def read_part(run: RunDirectory, directions: str, key: str) -> dict[str, np.ndarray] | None:
    """What an interrupted call has left of the surface of this key."""
    return read_arrays(run, _part_name(directions, key))


def write_part(run: RunDirectory, directions: str, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep what there is of a surface on its way, apart from all that are finished."""
    write_arrays(run, _part_name(directions, key), arrays)


def _part_name(directions: str, key: str) -> str:
    return f"{surface_name(directions, key)}-part"


def _arrays(run: RunDirectory, directions: str, key: Any) -> dict[str, np.ndarray] | None:
    """Those of this key; where it has none, what an earlier version may have left."""
    own = read_arrays(run, surface_name(directions, key)) if _is_key(key) else None
    return own if own is not None else read_arrays(run, surface_name(directions))


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def _fineness(payload: Mapping[str, Any]) -> tuple[float, ...]:
    """The finer, the larger; one around an older checkpoint is not around the trained model."""
    wanted = (payload.get(name) for name in ("step", "grid", "rows"))
    return tuple(value if isinstance(value, (int, float)) else 0 for value in wanted)


def _name_apart(run: RunDirectory, directions: str, payload: Mapping[str, Any]) -> None:
    """Give a surface of an earlier version the name that it would have now."""
    name, old = surface_name(directions, payload["key"]), surface_name(directions)
    arrays = read_arrays(run, old) if read_arrays(run, name) is None else None
    if arrays is not None:
        _write(run, name, payload, arrays)
        _discard(run, old)


def _write(run: RunDirectory, name: str, payload: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    write_arrays(run, name, arrays)
    write_measurement(run, name, payload)


def _discard(run: RunDirectory, name: str) -> None:
    path = run.path / FOLDER / f"{name}{ARRAYS}"
    with storage_errors(path):
        path.unlink(missing_ok=True)
