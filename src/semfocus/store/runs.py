"""Where the runs are: a directory with one run directory each, and whatever else lies there.

    store = RunStore()                         # SEMFOCUS_RUNS, else ./runs
    run = store.create_or_open(run_id, config)
    for entry in store.entries(): ...
    run = store.find("3f2a")                   # or a path

A run id becomes a directory name, so that nothing but lowercase hexadecimal digits is taken for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, OtherFormat, StorageError, UsageError
from semfocus.store import atomic, formats, locks, safe_json
from semfocus.store.directory import CHECKPOINTS, CONFIG, LOCK, METRICS, TIMING, RunDirectory, is_run_id

_PREFIX = re.compile(r"[0-9a-f]{1,64}")
FIGURES = "figures"  # the folder of what is drawn of runs, beside them
_DRAWN = re.compile(rf"[^.].*\.(html|svg|png|pdf)|{FIGURES}")  # and pictures and pages
_LEFTOVER = re.compile(re.escape(atomic.DRAFT) + r"[0-9a-f]{32}")
_SHOWN = 8


@dataclass(frozen=True)
class Entry:
    """One thing in the store, for what it is.

    `state` is running, done, diverged, interrupted or failed; empty (nothing was trained yet), corrupt (damaged, or
    left over from an interrupted creation or removal) or unrecognised (not a run that this semfocus can read). `why`
    says more.
    """

    name: str
    path: Path
    state: str
    why: str = ""
    config: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    holder: locks.Holder | None = None


class RunStore:
    """The runs under one directory."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root or os.environ.get("SEMFOCUS_RUNS") or "runs").expanduser().absolute()

    def create_or_open(self, run_id: str, config: Mapping[str, Any], free: tuple[str, ...] = ()) -> RunDirectory:
        """The run of this id, made if missing. One that exists must have this configuration, `free` fields aside."""
        return self.create_or_open_all({run_id: config}, free)[0]

    def create_or_open_all(
        self, configs: Mapping[str, Mapping[str, Any]], free: tuple[str, ...] = ()
    ) -> list[RunDirectory]:
        """The same for many runs, for little more than the cost of one."""
        runs = [RunDirectory(self._path(run_id)) for run_id in configs]
        files = {run.path: _first_files(run.id, configs[run.id]) for run in runs}
        atomic.make_directories(self.root)
        while missing := [path for path in files if not _occupied(path)]:
            try:
                atomic.publish((path, files[path]) for path in missing)
            except StorageError:
                if not any(map(_occupied, missing)):
                    raise  # otherwise another process made one of them first, which is as good
        for run in runs:
            run.check_config(configs[run.id], free)
        return runs

    def open(self, run_id: str) -> RunDirectory:
        """The run of this id, which must be there."""
        run = RunDirectory(self._path(run_id))
        if not run.path.is_dir():
            raise UsageError(f"there is no run {run_id} in {self.root}")
        return run

    def find(self, text: str) -> RunDirectory:
        """A run by the beginning of its id, if no other begins so, or by the path of its directory."""
        if _PREFIX.fullmatch(text):
            ids = self._ids()
            matches = [text] if text in ids else [name for name in ids if name.startswith(text)]
            if len(matches) == 1:
                return self.open(matches[0])
            if matches:
                raise UsageError(
                    f"{text} is the beginning of {len(matches)} run ids: {_some(matches)}; write more of it"
                )
        if os.sep in text or Path(text).is_dir():
            return _at_path(Path(text))
        raise UsageError(f"no run in {self.root} has an id that begins with {text!r}; there are: {_some(self._ids())}")

    def entries(self, names: Sequence[str] | None = None) -> list[Entry]:
        """Everything in the store by name, each for what it is; or only these names, in their order."""
        names = self._names() if names is None else names
        return [self._entry(name) for name in names if not _DRAWN.fullmatch(name)]

    def remove(self, name: str) -> None:
        """Delete the run of this id, or a leftover that `entries` shows; Locked while a process writes to it."""
        if _LEFTOVER.fullmatch(name):
            atomic.discard(self.root / name)
            return
        run = self.open(name)
        with locks.hold(run.path / LOCK):
            atomic.discard(run.path)

    def _path(self, run_id: str) -> Path:
        if not is_run_id(run_id):  # before it is joined to a path: `../` and `/` must not get that far
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
            return _described(RunDirectory(path))
        except OtherFormat as error:
            return Entry(name, path, "unrecognised", str(error))
        except (CorruptData, OSError) as error:
            return Entry(name, path, "corrupt", str(error))


def _described(run: RunDirectory) -> Entry:
    if not os.listdir(run.path):
        return Entry(run.id, run.path, "empty", "an empty directory")
    config, holder, status = run.config(), run.holder(), run.status()
    if holder is not None:
        state, why = "running", f"held by {holder}"
    elif status is not None and status["state"] != "running":
        state, why = status["state"], ""
    elif status is not None or _has_begun(run):
        state, why = "interrupted", "its process ended without a word"
    else:
        state, why = "empty", "created, not started"
    return Entry(run.id, run.path, state, why, config, status, holder)


def _has_begun(run: RunDirectory) -> bool:
    return bool(run.metrics() or run.checkpoint_steps())


def _first_files(run_id: str, config: Mapping[str, Any]) -> dict[str, bytes | None]:
    document = formats.stamp({"id": run_id, "config": dict(config)})
    return {
        CONFIG: safe_json.encode(document, f"the configuration of run {run_id}", indent=2) + b"\n",
        METRICS: b"",  # made now, so that a later sync of their content is enough
        TIMING: b"",
        CHECKPOINTS: None,
    }


def _occupied(path: Path) -> bool:
    """Whether something is there that a new directory cannot take the place of."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or bool(os.listdir(path)))


def _at_path(path: Path) -> RunDirectory:
    try:
        place = path.expanduser().resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise UsageError(
            f"{str(path)!r} is not there; give the path of a run directory or the beginning of an id"
        ) from None
    if not place.is_dir():
        raise UsageError(f"{path} is a file; a run is a directory, and a lone file is never loaded as one")
    return RunDirectory(place)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more or "none"
