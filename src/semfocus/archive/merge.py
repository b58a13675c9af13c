"""Runs that come from elsewhere, put into a store: each whole or not at all, and never mixed with another.

    with Arrivals(store) as arrivals:
        arrivals.add(run_id, files)         # written aside, and checked
        merged = arrivals.place()           # each gets its place, or a reason why not

What happens to a run that the store has already:

same        every file is equal: nothing is done
completed   it is the same run, and brings checkpoints or measurements that ours lacks: they are added
replaced    ours has not ended, and the newcomer goes on from where ours would be resumed; or both have ended, trained
            apart, and the newcomer was asked for (`replace`)
older       the newcomer has not ended, and ours goes on from there: ours stays
refused     anything else, by name; ours stays
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from semfocus.archive.contents import CORE, ENDED, Files, limit_of, read_files, with_folders
from semfocus.config.run import check_recorded_id
from semfocus.errors import CorruptData, SemfocusError, UsageError
from semfocus.store import RunDirectory, RunStore, RunWriter, atomic, checkpoints, is_run_id, safe_json
from semfocus.store.directory import CHECKPOINTS, CONFIG, METRICS
from semfocus.store.measurements import measurement_names

Fate = Literal["added", "same", "completed", "replaced", "older", "refused"]
_TELLING: tuple[Fate, ...] = ("refused", "added", "replaced", "completed", "older", "same")
_NAMED = 3  # of the runs that share a reason


@dataclass(frozen=True)
class Merged:
    """What became of each run."""

    fates: dict[str, Fate]
    why: dict[str, str] = field(default_factory=dict)  # of the refused ones

    @staticmethod
    def of(parts: Sequence[Merged]) -> Merged:
        """Several as one: of a run that came more than once, the fate that tells most."""
        whole = Merged({})
        for part in parts:
            for run_id, fate in part.fates.items():
                whole.fates[run_id] = min(fate, whole.fates.get(run_id, fate), key=_TELLING.index)
            whole.why.update(part.why)
        return whole

    def ids(self, fate: Fate) -> list[str]:
        return [run_id for run_id, one in self.fates.items() if one == fate]

    def raise_if_refused(self) -> None:
        """CorruptData that names the runs that were refused, by reason."""
        if self.why:
            runs = "run is" if len(self.why) == 1 else "runs are"
            reasons = "; ".join(by_reason(self.why))
            raise CorruptData(f"{len(self.why)} {runs} refused, and ours left as they were: {reasons}")


def by_reason(why: Mapping[str, str], shown: int = _NAMED) -> list[str]:
    """A line for each reason, with those that share it: `118dc014c0e74d2f and 4 more: created, not started`."""
    names: dict[str, list[str]] = {}
    for name, reason in why.items():
        names.setdefault(reason, []).append(name)
    return [
        f"{', '.join(own[:shown])}{f' and {len(own) - shown} more' if len(own) > shown else ''}: {reason}"
        for reason, own in names.items()
    ]


class Arrivals:
    """Runs that were written beside a store and are not yet part of it; `held` are writers of runs locked already."""

    def __init__(self, store: RunStore, held: Mapping[str, RunWriter] | None = None) -> None:
        self._store, self._held = store, held or {}
        self._ids: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder = self._stack.enter_context(atomic.staging(self._store.root))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, run_id: str, files: Files) -> None:
        """Write a run aside and check it as the store would read it; CorruptData where it is not sound."""
        strange = [name for name in files if limit_of(name) is None]
        if not is_run_id(run_id) or strange:  # before any of them is joined to a path
            raise CorruptData(f"{(run_id, *strange)[-1][:80]!r} is not the name of a run, or of a file that a run has")
        if run_id in self._ids:
            raise CorruptData(f"run {run_id} is there twice; take one of the two away")
        path = self._folder / run_id
        atomic.create_directories([(path, with_folders(files))])
        _check(RunDirectory(path), files)
        self._ids.append(run_id)

    def place(self, replace: bool = False) -> Merged:
        """Put every run into the store that may be; `replace` ended ones by the same runs trained elsewhere."""
        merged = Merged({})
        for run_id in self._ids:
            try:
                merged.fates[run_id] = self._place(run_id, replace)
            except SemfocusError as error:
                merged.fates[run_id] = "refused"
                merged.why[run_id] = str(error)
        return merged

    def _place(self, run_id: str, replace: bool) -> Fate:
        target, path = self._store.root / run_id, self._folder / run_id
        if not target.is_symlink() and (not target.exists() or _is_empty(target)):
            atomic.move_directory(path, target)
            return "added"
        ours, theirs = RunDirectory(target), RunDirectory(path)
        different = _differing(ours, theirs)
        if not different:
            return self._complete(ours, read_files(theirs, "all"))
        if CONFIG not in different:
            if (not _has_ended(ours) and _goes_on(theirs, ours)) or (replace and _may_replace(theirs, ours)):
                with self._lock(ours) as writer:
                    writer.share_lock(path)
                    atomic.move_directory(path, target)
                return "replaced"
            if not _has_ended(theirs) and _goes_on(ours, theirs):
                return "older"
        raise UsageError(
            f"{self._store.root} has the same run with another {', '.join(different)}; unpack into another store, or "
            "take theirs with --replace"
        )

    def _complete(self, ours: RunDirectory, theirs: Files) -> Fate:
        """Add the checkpoints and measurements that ours lacks; UsageError where one differs."""
        new: Files = {}
        for name, data in theirs.items():
            present = safe_json.read(ours.path / name, limit_of(name) or 0)
            if present is None:
                new[name] = data
            elif present != data:
                raise UsageError(f"{ours.path / name} has another content; remove ours to take the new one")
        if not new:
            return "same"
        folders: dict[Path, Files] = {}
        for name, data in new.items():
            path = ours.path / name
            folders.setdefault(path.parent, {})[path.name] = data
        with self._lock(ours):
            for folder, files in folders.items():
                if folder.parent.name == CHECKPOINTS:
                    atomic.create_directories([(folder, dict(files))])
                else:
                    atomic.make_directories(folder)
                    atomic.ensure_writable(folder)
                    atomic.replace_all({folder / name: data for name, data in files.items()})
        return "completed"

    def _lock(self, run: RunDirectory) -> AbstractContextManager[RunWriter]:
        return nullcontext(self._held[run.id]) if run.id in self._held else run.lock()


def check_run(run: RunDirectory) -> None:
    """Read the documents and logs of a run; CorruptData where one of them is not what was saved."""
    config, _ = run.read_config()
    check_recorded_id(config, run.id, is_sealed=False)  # what travels must say all that an id is made of
    run.metrics()
    run.timing()


def _check(run: RunDirectory, files: Files) -> None:
    """Refuse what a store could not use."""
    check_run(run)
    steps = {int(name.split("/")[1]) for name in files if name.startswith(f"{CHECKPOINTS}/")}
    for step in steps - {*run.checkpoint_steps()}:
        raise CorruptData(f"run {run.id}: the checkpoint of step {step} is not complete")


def _differing(ours: RunDirectory, theirs: RunDirectory) -> list[str]:
    return [name for name in CORE if _content(ours, name) != _content(theirs, name)]


def _content(run: RunDirectory, name: str) -> bytes:
    return safe_json.read(run.path / name, limit_of(name) or 0) or b""


def _has_ended(run: RunDirectory) -> bool:
    return (run.status() or {}).get("state") in ENDED


def _may_replace(theirs: RunDirectory, ours: RunDirectory) -> bool:
    """Whether both have ended; UsageError where a measurement that ours has would be lost."""
    lost = sorted({*measurement_names(ours)} - {*measurement_names(theirs)})
    ended = _has_ended(ours) and _has_ended(theirs)
    if ended and lost:
        raise UsageError(f"{ours.path} has the measurement {', '.join(lost)}, which the new one lacks; ours stays")
    return ended


def _goes_on(later: RunDirectory, earlier: RunDirectory) -> bool:
    """Whether the metrics of one begin with those with which the other would be resumed.

    Rows after the last checkpoint are made again by a resume, on another device not to the bit; they do not count.
    """
    return _lasting(later).startswith(_lasting(earlier))


def _lasting(run: RunDirectory) -> bytes:
    rows = _content(run, METRICS)
    if _has_ended(run):
        return rows
    steps = run.checkpoint_steps()
    if not steps:
        return b""
    mark = checkpoints.marks_in(checkpoints.read_manifest(run.path / CHECKPOINTS, steps[0])).get(METRICS)
    return rows[: mark.bytes] if mark else b""


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
