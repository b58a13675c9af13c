"""Writing to a run directory.

    with run.lock() as writer:
        checkpoint = writer.load_checkpoint()
        writer.rewind(checkpoint)                  # truncates logs and removes newer checkpoints
        writer.write_status("running")
        ...
        writer.append_metrics({"step": 40, ...})
        writer.save_checkpoint(40, tensors, meta)  # syncs the rows above as well
        ...
        writer.write_status("done")

Every write first checks that the directory still exists and that this process still holds its lock.

`save_checkpoints` and `write_statuses` write to all members of a cohort together. One sync costs milliseconds and many
at once hardly more: saving a hundred members takes little more time than saving one. Each member's checkpoint still
exists completely or not at all.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semfocus.errors import CorruptData, StorageError, UsageError, check_int, unknown
from semfocus.store import atomic, checkpoints, formats, safe_json
from semfocus.store.checkpoints import Checkpoint, DamagedCheckpoint
from semfocus.store.directory import CHECKPOINTS, LOCK, LOGS, METRICS, RESERVED, STATES, STATUS, TIMING, RunDirectory
from semfocus.store.locks import HeldLock
from semfocus.store.logs import Log, Mark
from semfocus.store.tensors import Mismatch

if TYPE_CHECKING:
    import torch

NEWEST_KEPT = 2


class RunWriter(RunDirectory):
    """A run whose lock this process holds: reads and writes it."""

    def __init__(self, path: Path, held: HeldLock) -> None:
        super().__init__(path)
        self.folder = path / CHECKPOINTS
        self._metrics, self._timing = self.log(METRICS), self.log(TIMING)
        self.logs = (self._metrics, self._timing)
        self._held = held
        self._never_pruned: set[int] = set()  # steps known to be kept, so that their manifests are read once

    def ensure_held(self) -> None:
        """Raise StorageError when the directory is gone or replaced, Locked when another process has taken it over."""
        self._held.check()

    def share_lock(self, directory: Path) -> None:
        """Give a directory that is to take this one's place the same lock file, so that it is held throughout."""
        self.ensure_held()
        atomic.link(self.path / LOCK, directory / LOCK)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one row of metrics; its `step` must exceed the last one's. Times belong into the timing."""
        self._append(self._metrics, row)

    def append_timing(self, row: Mapping[str, Any]) -> None:
        """Append one row of durations, measured by a monotonic clock."""
        self._append(self._timing, row)

    def write_status(self, state: str, **facts: Any) -> None:
        """Replace the status; sync the logs first unless the state is `running`."""
        write_statuses([(self, state, facts)])

    def save_checkpoint(
        self, step: int, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any], keep: bool = False
    ) -> None:
        """Save a step and sync the logs. The newest two checkpoints and those saved with `keep` are not pruned."""
        save_checkpoints([Save(self, step, tensors, meta, keep)])

    def load_checkpoint(
        self, step: int | None = None, expect: Mapping[str, torch.Tensor] | None = None
    ) -> Checkpoint | None:
        """Return what a reader gets; newer checkpoints that are damaged are renamed out of the way."""
        if step is not None:
            return self._load_step(step, expect)
        checkpoint, damage = checkpoints.load_newest(self.folder, expect)
        for bad, reason in damage.items():
            self.set_aside(bad, reason)
        return checkpoint

    def rewind(self, checkpoint: Checkpoint | None) -> None:
        """Return to the step of this checkpoint (None: the start): remove newer checkpoints and truncate the logs."""
        self.ensure_held()
        marks = {
            log.path.name: checkpoint.logs.get(log.path.name, Mark(0)) if checkpoint else Mark(0) for log in self.logs
        }
        self._forget_saved(marks)
        step = -1 if checkpoint is None else checkpoint.step
        newer = [other for other in checkpoints.all_steps(self.folder) if other > step]
        for other in newer:
            atomic.remove_directory(self.folder / str(other))
        self._never_pruned.clear()
        if newer:
            atomic.sync_all([self.folder])  # a checkpoint that reappeared after a power cut would lack its rows
        for log in self.logs:
            log.truncate(marks[log.path.name])

    def set_aside(self, step: int, reason: str) -> None:
        """Rename a damaged checkpoint, with a warning."""
        self.ensure_held()
        path = self.folder / f"{checkpoints.ASIDE}{step}-{os.urandom(4).hex()}"
        atomic.rename(self.folder / str(step), path)
        warnings.warn(f"a damaged checkpoint was set aside as {path}: {reason}", DamagedCheckpoint, stacklevel=4)

    def marks(self) -> dict[str, Mark]:
        """Return size and checksum of each log."""
        return {log.path.name: log.mark() for log in self.logs}

    def _forget_saved(self, marks: Mapping[str, Mark]) -> None:
        """Write a status that says nothing of the logs, where the last one says more than these marks."""
        saved = self.saved()
        if saved.is_whole and any(mark.bytes > marks.get(name, mark).bytes for name, mark in saved.marks.items()):
            facts = self.status() or {}
            self.write_status("running", **{name: value for name, value in facts.items() if name != "state"})

    def has_progress(self) -> bool:
        """Return whether the last status says that a checkpoint was saved, or rows are there without a status."""
        status = self.status()
        step = (status or {}).get("step", 0)
        return bool(self.metrics()) if status is None else status["state"] in STATES and type(step) is int and step > 0

    def unsynced(self) -> list[Log]:
        """Return the logs with rows that a power cut could lose."""
        return [log for log in self.logs if log.unsynced]

    def has_saved(self, step: int, files: Mapping[str, bytes], keep: bool) -> bool:
        """Return whether this step is saved with these tensors (and set its `keep`); UsageError when with others."""
        saved = checkpoints.all_steps(self.folder)
        if saved and step < saved[0]:
            raise UsageError(f"run {self.id} has a checkpoint of step {saved[0]}; rewind before saving step {step}")
        if step not in saved:
            return False
        manifest = checkpoints.read_manifest(self.folder, step)
        if manifest["files"][checkpoints.STATE]["sha256"] != hashlib.sha256(files[checkpoints.STATE]).hexdigest():
            raise UsageError(f"run {self.id} has other tensors saved for step {step}; rewind to an earlier step first")
        if keep and not manifest["keep"]:
            path = self.folder / str(step) / checkpoints.MANIFEST
            atomic.replace_all({path: checkpoints.manifest_to_keep(self.folder, step)})
        return True

    def prune(self) -> None:
        """Delete all checkpoints except the newest two and those saved with `keep`."""
        for step in checkpoints.all_steps(self.folder)[NEWEST_KEPT:]:
            directory = self.folder / str(step)
            if step in self._never_pruned:
                continue
            if checkpoints.is_kept(self.folder, step) or atomic.find_symlink(directory) is not None:
                self._never_pruned.add(step)
            else:
                atomic.remove_directory(directory)

    def _append(self, log: Log, row: Mapping[str, Any]) -> None:
        self.ensure_held()
        with still_held([self]):
            log.append(row)


class DamagedRuns(CorruptData):
    """Some runs of a cohort cannot go on; `reasons` says why, by id. The others can."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"run {run_id}: {reason}" for run_id, reason in reasons.items()))
        self.reasons = dict(reasons)


class Save(NamedTuple):
    """One member's checkpoint to save."""

    writer: RunWriter
    step: int
    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]
    keep: bool = False


def save_checkpoints(saves: Sequence[Save]) -> None:
    """Save one checkpoint per member; when this returns, all of them and their logs are synced to disk."""
    logs = [log for save in saves for log in save.writer.unsynced()]
    with still_held(save.writer for save in saves):
        atomic.create_directories(_new_directories(saves), also_sync=[log.path for log in logs])
        for log in logs:
            log.unsynced = False
        for save in saves:
            save.writer.prune()


def load_common(
    writers: Sequence[RunWriter], expect: Mapping[str, torch.Tensor] | None = None
) -> list[Checkpoint] | None:
    """Return each member's checkpoint of the newest step that is intact for all; set aside damaged newer ones.

    None when some member has never saved a checkpoint: then all start from the beginning. Raises DamagedRuns where a
    member has lost its checkpoints, has none that is intact, or has other logs than its checkpoint says; CorruptData
    when no step is intact for all. Nothing is changed then.
    """
    if not writers:
        return []
    _refuse_lost(writers)
    damage: dict[tuple[RunWriter, int], str] = {}
    shared = set.intersection(*(set(checkpoints.all_steps(writer.folder)) for writer in writers))
    for step in sorted(shared, reverse=True):
        intact: list[Checkpoint] = []
        for writer in writers:
            try:
                intact.append(checkpoints.load(writer.folder, step, expect))
            except Mismatch as error:
                raise DamagedRuns({writer.id: str(error)}) from error
            except CorruptData as error:
                damage[writer, step] = str(error)
        if len(intact) == len(writers):
            _refuse_other_logs(writers, intact)
            for (writer, bad), reason in damage.items():
                writer.set_aside(bad, reason)
            return intact
    if any(not checkpoints.all_steps(w.folder) and not checkpoints.names_set_aside(w.folder) for w in writers):
        return None
    hopeless = {writer.id: reason for writer in writers if (reason := _why_none_is_intact(writer, expect))}
    if hopeless:
        raise DamagedRuns(hopeless)
    raise CorruptData(
        f"no step is intact for all {len(writers)} runs: {'; '.join(damage.values()) or 'none is shared'}"
    )


def _refuse_lost(writers: Sequence[RunWriter]) -> None:
    """Raise DamagedRuns for members whose checkpoints are gone: they would silently start again."""
    saved = {writer: checkpoints.all_steps(writer.folder) for writer in writers}
    twice = any(len(steps) > 1 for steps in saved.values())  # all have saved then: members save together
    lost = {
        writer.id: (
            f"it has made progress, and its checkpoints are gone from {writer.folder}. Put them back to go on, or "
            f"remove {writer.path} to start this run over"
        )
        for writer, steps in saved.items()
        if not steps and not checkpoints.names_set_aside(writer.folder) and (twice or writer.has_progress())
    }
    if lost:
        raise DamagedRuns(lost)


def _refuse_other_logs(writers: Sequence[RunWriter], intact: Sequence[Checkpoint]) -> None:
    """Raise DamagedRuns for members whose logs are not what was saved with these checkpoints."""
    reasons = {}
    for writer, checkpoint in zip(writers, intact, strict=True):
        try:
            for log in writer.logs:
                log.check(checkpoint.logs.get(log.path.name, Mark(0)))
        except CorruptData as error:
            reasons[writer.id] = str(error)
    if reasons:
        raise DamagedRuns(reasons)


def _why_none_is_intact(writer: RunWriter, expect: Mapping[str, torch.Tensor] | None) -> str:
    """Return what is wrong with all checkpoints of a run; empty when one of them is intact."""
    try:
        checkpoints.load_newest(writer.folder, expect)
    except CorruptData as error:
        return str(error)
    return ""


def write_statuses(entries: Sequence[tuple[RunWriter, str, Mapping[str, Any]]]) -> None:
    """Replace the status of each run by (state, facts); sync the logs of the runs that stop running first."""
    contents: dict[Path, bytes] = {}
    for writer, state, facts in entries:
        if state not in STATES:
            raise unknown("state", state, STATES)
        if facts.keys() & RESERVED:
            raise UsageError(f"{', '.join(sorted(RESERVED))} are not facts that a status can be given")
        writer.ensure_held()
        what = f"the status of run {writer.id}"
        document = safe_json.finite_row({"state": state, formats.RUN: writer.id, **facts}, what) | _marks_for(
            writer, state
        )
        contents[writer.path / STATUS] = formats.encode(document, what)
    logs = [log for writer, state, _ in entries if state != "running" for log in writer.unsynced()]
    with still_held(writer for writer, _, _ in entries):
        atomic.sync_all(log.path for log in logs)
        for log in logs:
            log.unsynced = False
        atomic.replace_all(contents)


def _marks_for(writer: RunWriter, state: str) -> dict[str, Any]:
    """Return the field with the marks of the logs; none while they grow, or where they are why the run failed."""
    if state == "running":
        return {}
    try:
        return {LOGS: {name: mark.to_json() for name, mark in writer.marks().items()}}
    except CorruptData:
        if state != "failed":
            raise
        return {}


@contextmanager
def still_held(writers: Iterable[RunWriter]) -> Iterator[None]:
    """Replace a write error by the error that a run directory has vanished, where that is its cause."""
    try:
        yield
    except (CorruptData, StorageError):
        for writer in writers:
            writer.ensure_held()
        raise


def _new_directories(saves: Sequence[Save]) -> Iterator[tuple[Path, Mapping[str, bytes]]]:
    for writer, step, tensors, meta, keep in saves:
        step = check_int("step", step, at_least=0, at_most=checkpoints.MAX_STEP)
        writer.ensure_held()
        files = checkpoints.encode(writer.id, step, tensors, meta, writer.marks(), keep)
        if not writer.has_saved(step, files, keep):
            yield writer.folder / str(step), files
