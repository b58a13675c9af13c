"""Which files of a run directory travel, and how large each may be.

Always config.json, metrics.jsonl, timing.jsonl, status.json and finished measurements. Checkpoints by choice, each
choice with those of the one before: none, newest, last (the newest two), kept (those never pruned), all. The lock,
drafts and parts of unfinished measurements stay behind.
"""

from __future__ import annotations

import os
import re
from typing import Literal

from semfocus.errors import CorruptData, StorageError
from semfocus.store import RunDirectory, safe_json
from semfocus.store.checkpoints import MANIFEST, MAX_STATE_BYTES, STATE
from semfocus.store.directory import CHECKPOINTS, CONFIG, METRICS, STATUS, TIMING
from semfocus.store.logs import MAX_FILE_BYTES
from semfocus.store.measurements import ARRAYS, DOCUMENT, FOLDER, MAX_ARRAY_BYTES
from semfocus.store.writer import NEWEST_KEPT

Files = dict[str, bytes]  # path inside the run directory -> content
Checkpoints = Literal["none", "newest", "last", "kept", "all"]

ENDED, UNFINISHED = ("done", "diverged"), ("interrupted", "failed")
CORE = (CONFIG, METRICS, TIMING, STATUS)  # what a run is; the rest can be absent
_MEASUREMENT = re.compile(rf"{FOLDER}/[a-z][a-z0-9_-]{{0,63}}({re.escape(DOCUMENT)}|{re.escape(ARRAYS)})")
_CHECKPOINT = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]{{0,15}})/({re.escape(STATE)}|{re.escape(MANIFEST)})")
_PART = f"-part{ARRAYS}"  # of a surface that is not finished


def read_files(run: RunDirectory, checkpoints: Checkpoints = "none", newest: int | None = None) -> Files:
    """The files of a run that travel, by path, in an order in which they can be written.

    `newest` is the step of the checkpoint that counts as the newest, where it is not the run's own.
    """
    files = {name: _read(run, name) for name in CORE}
    names = [f"{CHECKPOINTS}/{step}/{file}" for step in _steps(run, checkpoints, newest) for file in (STATE, MANIFEST)]
    present = {name: data for name, data in files.items() if data is not None}
    for name in (*names, *_measurement_names(run)):
        data = _read(run, name)
        if data is None:
            raise CorruptData(f"{run.path / name} has vanished while it was read; try again")
        present[name] = data
    return present


def limit_of(name: str) -> int | None:
    """The most bytes that a file of this path may have; None where no file of a run has this path."""
    if name in (METRICS, TIMING):
        return MAX_FILE_BYTES
    if name in (CONFIG, STATUS):
        return safe_json.MAX_BYTES
    if _MEASUREMENT.fullmatch(name):
        return MAX_ARRAY_BYTES if name.endswith(ARRAYS) else safe_json.MAX_BYTES
    if _CHECKPOINT.fullmatch(name):
        return MAX_STATE_BYTES if name.endswith(STATE) else safe_json.MAX_BYTES
    return None


def with_folders(files: Files) -> dict[str, bytes | None]:
    """The files, each folder before what it holds; a run always has a folder of checkpoints."""
    entries: dict[str, bytes | None] = {CHECKPOINTS: None}
    for name, data in files.items():
        parts = name.split("/")
        for depth in range(1, len(parts)):
            entries.setdefault("/".join(parts[:depth]), None)
        entries[name] = data
    return entries


def _steps(run: RunDirectory, checkpoints: Checkpoints, newest: int | None) -> list[int]:
    if checkpoints == "none":
        return []
    steps = run.checkpoint_steps()
    if checkpoints == "newest":
        return steps[:1] if newest is None else [newest]
    if checkpoints == "all":
        return steps
    # The newest two: members of one cohort may have been killed one save apart, and resume from a step that all have.
    kept = run.kept_steps() if checkpoints == "kept" else []
    return [step for place, step in enumerate(steps) if place < NEWEST_KEPT or step in kept]


def _measurement_names(run: RunDirectory) -> list[str]:
    try:
        names = sorted(os.listdir(run.path / FOLDER))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {run.path / FOLDER}: {error.strerror}") from error
    paths = [f"{FOLDER}/{name}" for name in names if not name.endswith(_PART)]
    return [path for path in paths if _MEASUREMENT.fullmatch(path)]


def _read(run: RunDirectory, name: str) -> bytes | None:
    limit = limit_of(name)
    assert limit is not None
    return safe_json.read(run.path / name, limit)
