"""The store: a directory that holds run directories, and possibly other files.

    store = RunStore()                         # SEMFOCUS_RUNS, else ./runs
    run = store.create_or_open(run_id, config)
    for entry in store.entries(): ...
    run = store.find("3f2a")                   # or a path

A run id becomes a directory name, so it may contain lowercase hexadecimal digits only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, OtherFormat, StorageError, UsageError, expanded
from semfocus.store import atomic, checkpoints, formats, locks
from semfocus.store.directory import CHECKPOINTS, CONFIG, LOCK, METRICS, TIMING, RunDirectory, is_run_id

_PREFIX = re.compile(r"[0-9a-f]{1,64}")
FIGURES = "figures"
"""The folder of figures, beside the runs."""
CLUSTER = "cluster"  # the folder of notes about who trains them, beside the runs
REMOVABLE = ("corrupt", "failed", "diverged")  # states of runs that hold no result
FINISHED = ("done", "interrupted", "empty")
DATA, TUNING = "data", "tuning"  # the folders of data given from memory, and of runs that choose learning rates
_NOT_RUNS = re.compile(rf"[^.].*\.(html|svg|png|pdf)|{FIGURES}|{DATA}|{TUNING}|{CLUSTER}")
_LEFTOVER = re.compile(re.escape(atomic.DRAFT) + r"[0-9a-f]{32}")
_MAX_LISTED = 8
_MAX_NAME = 255  # bytes


@dataclass(frozen=True)
class Entry:
    """One entry of the store's directory.

    `state` is running, done, diverged, interrupted or failed; empty (nothing was trained yet), corrupt (damaged, or
    left over from an interrupted creation or removal) or unrecognised (not a run that this semfocus can read). `why`
    explains it.
    """

    name: str
    path: Path
    state: str
    why: str = ""
    config: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    holder: locks.Holder | None = None
    is_sealed: bool = False  # whether the configuration has a checksum, and it is right


class RunStore:
    """The runs under one directory."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = expanded(root or os.environ.get("SEMFOCUS_RUNS") or "runs").absolute()
        _check_names(self.root)

    def create_or_open(self, run_id: str, config: Mapping[str, Any], free: tuple[str, ...] = ()) -> RunDirectory:
        """Return the run of this id, created if missing; an existing one must have this config, except for `free`."""
        return self.create_or_open_all({run_id: config}, free)[0]

    def create_or_open_all(
        self, configs: Mapping[str, Mapping[str, Any]], free: tuple[str, ...] = ()
    ) -> list[RunDirectory]:
        """Do the same for many runs, at little more than the cost of one."""
        runs = [RunDirectory(self._path(run_id)) for run_id in configs]
        files = {run.path: _initial_files(run.id, configs[run.id]) for run in runs}
        atomic.make_directories(self.root)
        atomic.sweep(self.root)
        while missing := [path for path in files if not _occupied(path)]:
            try:
                atomic.create_directories((path, files[path]) for path in missing)
            except StorageError:
                if not any(map(_occupied, missing)):
                    raise  # otherwise another process has created one of them meanwhile
        for run in runs:
            run.check_config(configs[run.id], free)
        return runs

    def open(self, run_id: str) -> RunDirectory:
        """Return the run of this id; raise UsageError when it does not exist."""
        run = RunDirectory(self._path(run_id))
        if not run.path.is_dir():
            raise UsageError(f"there is no run {run_id} in {self.root}")
        return run

    def find(self, text: str) -> RunDirectory:
        """Return a run by an unambiguous prefix of its id, or by the path of its directory."""
        _check_names(Path(text))
        if _PREFIX.fullmatch(text):
            ids = self._ids()
            matches = [text] if text in ids else [name for name in ids if name.startswith(text)]
            if len(matches) == 1:
                return self.open(matches[0])
            if matches:
                raise UsageError(
                    f"{text} is the beginning of {len(matches)} run ids: {_listed(matches)}; write more of it"
                )
        if os.sep in text or Path(text).is_dir():
            return _run_at(Path(text))
        raise UsageError(
            f"no run in {self.root} has an id that begins with {text!r}; there are: {_listed(self._ids())}"
        )

    def entries(self, names: Sequence[str] | None = None) -> list[Entry]:
        """Return every entry of the store by name, except figures and pages; or only these names, in their order."""
        names = self._names() if names is None else names
        return [self._entry(name) for name in names if not _NOT_RUNS.fullmatch(name)]

    def removable(self, finished: bool = False) -> list[Entry]:
        """Return the runs without a result (corrupt, failed, diverged); with `finished`, all that are not running.

        Corrupt and failed ones that have an intact checkpoint can be mended or go on: only `finished` gives them.
        """
        states = (*REMOVABLE, *(FINISHED if finished else ()))
        entries = [entry for entry in self.entries() if entry.state in states]
        return [entry for entry in entries if finished or entry.state == "diverged" or not _can_go_on(entry)]

    def remove(self, name: str) -> None:
        """Delete the run of this id, or a leftover in `entries`; raise Locked while a process writes to it."""
        if _LEFTOVER.fullmatch(name):
            atomic.remove_directory(self.root / name)
            return
        run = self.open(name)
        with locks.hold(run.path / LOCK):
            atomic.remove_directory(run.path)

    def _path(self, run_id: str) -> Path:
        if not is_run_id(run_id):  # checked before it is joined to a path: `../` and `/` must not get that far
            raise UsageError(f"{run_id!r} is not a run id: 8 to 64 lowercase hexadecimal digits")
        return self.root / run_id

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {self.root}: {error.strerror}") from error

    def _ids(self) -> list[str]:
        return [name for name in self._names() if is_run_id(name) and not (self.root / name).is_symlink()]

    def _entry(self, name: str) -> Entry:
        path = self.root / name
        if _LEFTOVER.fullmatch(name):
            return Entry(name, path, "corrupt", "left over from an interrupted creation or removal")
        if path.is_symlink():
            return Entry(name, path, "unrecognised", "a symbolic link, not followed")
        if not is_run_id(name) or not path.is_dir():
            return Entry(name, path, "unrecognised", "not a run directory")
        try:
            return _read_entry(RunDirectory(path))
        except OtherFormat as error:
            return Entry(name, path, "unrecognised", str(error))
        except (CorruptData, OSError) as error:
            return Entry(name, path, "corrupt", str(error))


def _read_entry(run: RunDirectory) -> Entry:
    if not os.listdir(run.path):
        return Entry(run.id, run.path, "empty", "an empty directory")
    (config, is_sealed), holder, status = run.read_config(), run.holder(), run.status()
    if holder is not None:
        state, why = "running", f"held by {holder}"
    elif status is not None and status["state"] != "running":
        state, why = status["state"], ""
    elif status is not None or run.metrics() or run.checkpoint_steps():
        state, why = "interrupted", "its process ended without a word"
    else:
        state, why = "empty", "created, not started"
    return Entry(run.id, run.path, state, why, config, status, holder, is_sealed)


def _can_go_on(entry: Entry) -> bool:
    """Whether an entry has a checkpoint that is intact, or that this semfocus cannot read."""
    folder = entry.path / CHECKPOINTS
    try:
        return any(_is_intact(folder, step) for step in checkpoints.all_steps(folder))
    except (CorruptData, StorageError):
        return False


def _is_intact(folder: Path, step: int) -> bool:
    try:
        checkpoints.load(folder, step)
    except OtherFormat:
        return True
    except (CorruptData, StorageError):
        return False
    return True


def _initial_files(run_id: str, config: Mapping[str, Any]) -> dict[str, bytes | None]:
    document = {"id": run_id, "config": dict(config)}
    return {
        CONFIG: formats.encode(document, f"the configuration of run {run_id}", indent=2),
        METRICS: b"",  # created now, so that later a sync of the file alone is enough
        TIMING: b"",
        CHECKPOINTS: None,
    }


def _occupied(path: Path) -> bool:
    """Return whether `path` exists and is not an empty directory."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or bool(os.listdir(path)))


def _check_names(path: Path) -> None:
    """Raise a UsageError for a path that no file system can hold."""
    for name in path.parts:
        if len(os.fsencode(name)) > _MAX_NAME:
            raise UsageError(
                f"{name[:40]}... is a name of {len(name)} characters; at most {_MAX_NAME} bytes are possible"
            )


def _run_at(path: Path) -> RunDirectory:
    try:
        directory = path.expanduser().resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise UsageError(
            f"{str(path)!r} is not there; give the path of a run directory or the beginning of an id"
        ) from None
    if not directory.is_dir():
        raise UsageError(f"{path} is a file; a run is a directory, and a lone file is never loaded as one")
    return RunDirectory(directory)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more or "none"
