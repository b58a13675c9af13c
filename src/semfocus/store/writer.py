"""The one process that writes to a run.

    with run.lock() as writer:
        checkpoint = writer.load_checkpoint()
        writer.rewind(checkpoint)                  # logs and newer checkpoints go back to that step
        writer.write_status("running")
        ...
        writer.append_metrics({"step": 40, ...})
        writer.save_checkpoint(40, tensors, meta)  # with it, the rows above are safe on disk
        ...
        writer.write_status("done")

Every write first makes sure that the directory is still there and still this process's own. What many runs that
train in lockstep do together (`cohort`) costs a few syncs in all, and not a few for each.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import UsageError
from semfocus.store import atomic, checkpoints, cohort
from semfocus.store.checkpoints import Checkpoint, DamagedCheckpoint
from semfocus.store.directory import CHECKPOINTS, METRICS, TIMING, RunDirectory
from semfocus.store.locks import HeldLock
from semfocus.store.logs import Log

if TYPE_CHECKING:
    import torch

NEWEST_KEPT = 2


class RunWriter(RunDirectory):
    """A run while this process holds its lock: everything a reader can do, and writing."""

    def __init__(self, path: Path, held: HeldLock) -> None:
        super().__init__(path)
        self.folder = path / CHECKPOINTS
        self._metrics, self._timing = self.log(METRICS), self.log(TIMING)
        self.logs = (self._metrics, self._timing)
        self._held = held
        self._pinned: set[int] = set()

    def ensure_held(self) -> None:
        """StorageError when the directory is gone or another, Locked when another process has taken it over."""
        self._held.check()

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one row of metrics, whose `step` is above the last one's. Nothing about clocks belongs here."""
        self._append(self._metrics, row)

    def append_timing(self, row: Mapping[str, Any]) -> None:
        """Add one row about time; durations come from a monotonic clock."""
        self._append(self._timing, row)

    def write_status(self, state: str, **facts: Any) -> None:
        """Replace the status; unless the state is `running`, the logs are synced first."""
        cohort.write_statuses([(self, state, facts)])

    def save_checkpoint(
        self, step: int, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any], keep: bool = False
    ) -> None:
        """Save a step, with the logs as they are now. The newest two stay, and those saved with `keep` for ever."""
        cohort.save_checkpoints([cohort.Save(self, step, tensors, meta, keep)])

    def load_checkpoint(
        self, step: int | None = None, expect: Mapping[str, torch.Tensor] | None = None
    ) -> Checkpoint | None:
        """As a reader does; newer checkpoints that are damaged are also set aside, under a name that says so."""
        if step is not None:
            return self._load_step(step, expect)
        found, damage = checkpoints.newest(self.folder, expect)
        for bad, reason in damage.items():
            self.set_aside(bad, reason)
        return found

    def rewind(self, checkpoint: Checkpoint | None) -> None:
        """Go back to where this checkpoint was saved (None: the start), so that no row and no step comes twice."""
        self.ensure_held()
        step = -1 if checkpoint is None else checkpoint.step
        newer = [other for other in checkpoints.all_steps(self.folder) if other > step]
        for other in newer:
            atomic.discard(self.folder / str(other))
        self._pinned.clear()
        if newer:
            atomic.sync_all([self.folder])  # a checkpoint that came back after a power cut would miss its rows
        for log in self.logs:
            log.cut(0 if checkpoint is None else checkpoint.log_sizes.get(log.path.name, 0))

    def set_aside(self, step: int, reason: str) -> None:
        """Rename a damaged checkpoint, with a warning."""
        self.ensure_held()
        place = self.folder / f"{checkpoints.ASIDE}{step}-{os.urandom(4).hex()}"
        atomic.move(self.folder / str(step), place)
        warnings.warn(f"a damaged checkpoint was set aside as {place}: {reason}", DamagedCheckpoint, stacklevel=4)

    def log_sizes(self) -> dict[str, int]:
        """How many bytes each log has now."""
        return {log.path.name: log.size() for log in self.logs}

    def unsynced(self) -> list[Log]:
        """The logs that have rows which a power cut could still take."""
        return [log for log in self.logs if log.unsynced]

    def has_saved(self, step: int, files: Mapping[str, bytes], keep: bool) -> bool:
        """Whether this very checkpoint is there already (then `keep` is granted); an error when another is."""
        known = checkpoints.all_steps(self.folder)
        if known and step < known[0]:
            raise UsageError(f"run {self.id} has a checkpoint of step {known[0]}; rewind before saving step {step}")
        if step not in known:
            return False
        manifest = checkpoints.read_manifest(self.folder, step)
        if manifest["files"][checkpoints.STATE]["sha256"] != hashlib.sha256(files[checkpoints.STATE]).hexdigest():
            raise UsageError(f"run {self.id} has other tensors saved for step {step}; rewind to an earlier step first")
        if keep and not manifest["keep"]:
            path = self.folder / str(step) / checkpoints.MANIFEST
            atomic.replace_all({path: checkpoints.with_keep(self.folder, step)})
        return True

    def prune(self) -> None:
        """Delete all checkpoints but the newest two and those that were saved to stay."""
        for step in checkpoints.all_steps(self.folder)[NEWEST_KEPT:]:
            directory = self.folder / str(step)
            if step in self._pinned:
                continue
            if checkpoints.is_kept(self.folder, step) or atomic.link_below(directory) is not None:
                self._pinned.add(step)
            else:
                atomic.discard(directory)

    def _append(self, log: Log, row: Mapping[str, Any]) -> None:
        self.ensure_held()
        with cohort.still_held([self]):
            log.append(row)
