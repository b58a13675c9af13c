"""A cache of examples on disk, for tasks that are slow to draw.

The directory is SEMFOCUS_CACHE (`off` switches caching off everywhere), else the user's cache folder. The name of a
file is the hash of everything that decides its examples. Files are written atomically (two processes that fill the same
one write the same bytes) and checked when read: a damaged one is drawn again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import StorageError, expanded
from semfocus.store.atomic import write_bytes

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def directory() -> Path | None:
    """The directory of cached examples; None when caching is off."""
    place = os.environ.get("SEMFOCUS_CACHE", "")
    if place.lower() in ("off", "0", "no", "false"):
        return None
    if place:
        return expanded(place) / "tasks"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semfocus" / "tasks"


def remember(key: Mapping[str, Any], draw: Callable[[], Columns], shape: tuple[int, int]) -> Columns:
    """The examples stored under `key`; without them, those that `draw` returns, which are then stored."""
    folder = directory()
    if folder is None:
        return draw()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = folder / f"{key['task']}-{digest[:32]}.npz"
    stored = _read(path, shape)
    if stored is not None:
        return stored
    columns = draw()
    with suppress(StorageError):  # a cache that cannot be written (read-only home, full disk) must not stop the work
        write_bytes(path, _packed(columns))
    return columns


def _packed(columns: Columns) -> bytes:
    tokens, labels, lengths = (column.astype(_narrow(column)) for column in columns)
    buffer = io.BytesIO()
    # A zip entry has a checksum, so that reading detects a flipped byte.
    np.savez(buffer, tokens=tokens, labels=labels, lengths=lengths)
    return buffer.getvalue()


def _narrow(column: NDArray[np.int64]) -> np.dtype:
    """The narrowest integer type that holds these values."""
    return np.promote_types(np.min_scalar_type(column.min(initial=0)), np.min_scalar_type(column.max(initial=0)))


def _read(path: Path, shape: tuple[int, int]) -> Columns | None:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            columns = tuple(file[name].astype(np.int64) for name in ("tokens", "labels", "lengths"))
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):  # what a flipped bit can cause
        return None
    tokens, labels, lengths = columns
    fits = tokens.shape == shape and labels.shape in (shape[:1], shape) and lengths.shape == shape[:1]
    return (tokens, labels, lengths) if fits else None
