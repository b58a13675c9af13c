"""Reading a run directory. Its name is the run's id.

    config.json                      the configuration
    metrics.jsonl, timing.jsonl      one line per evaluation; times are in timing.jsonl only
    status.json                      the last known state
    checkpoints/<step>/              see `checkpoints`
    lock                             see `locks`

No content is trusted: links are not followed, sizes and depths are limited, checksums are verified. Documents have a
checksum of their own and say of which run they are; the beginning of each log has a checksum in the manifest of every
checkpoint, and all of it in the last status. Reading changes nothing on disk and is safe while another process writes.
"""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from semfocus.errors import CorruptData, OtherFormat, UsageError
from semfocus.store import atomic, checkpoints, formats, locks, safe_json
from semfocus.store.checkpoints import Checkpoint, DamagedCheckpoint
from semfocus.store.logs import MAX_FILE_BYTES, Log, Mark

if TYPE_CHECKING:
    import torch

    from semfocus.store.writer import RunWriter

CONFIG, STATUS, LOCK, CHECKPOINTS = "config.json", "status.json", "lock", "checkpoints"
METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
STATES = ("running", "done", "diverged", "interrupted", "failed")
LOGS = "logs"  # the field of a status with the marks of both logs
RESERVED = frozenset({"format", "state", formats.SEAL, formats.RUN, LOGS})  # fields of a status that are not facts
Verification = Literal["verified", "up to the last checkpoint", "unverified"]
_ID = re.compile(r"[0-9a-f]{8,64}")
_ABSENT = object()


def is_run_id(name: str) -> bool:
    """Return whether `name` has the form of a run id: 8 to 64 lowercase hexadecimal digits."""
    return _ID.fullmatch(name) is not None


class Saved(NamedTuple):
    """How much of the logs was saved, and what says so."""

    marks: Mapping[str, Mark]
    by: str = ""
    is_whole: bool = False  # whether nothing follows what was saved

    def check(self, name: str, data: bytes, what: str) -> None:
        """Raise CorruptData where the content of this log is not what was saved."""
        mark = self.marks.get(name)
        if mark is None:
            return
        try:
            mark.check(data, what)
        except CorruptData as error:
            raise CorruptData(f"{error} (says {self.by})") from None
        if self.is_whole and data.rfind(b"\n") + 1 > mark.bytes:
            raise CorruptData(f"{what} has more lines than the {mark.bytes} bytes that {self.by} says were saved")


class RunDirectory:
    """Reads one run; `lock` returns its writer."""

    def __init__(self, path: Path) -> None:
        if not is_run_id(path.name):
            raise UsageError(f"{path.name!r} is not a run id: 8 to 64 lowercase hexadecimal digits")
        if path.is_symlink():
            raise UsageError(f"{path} is a symbolic link; give the run directory itself")
        self.path = path
        self.id = path.name

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def config(self) -> dict[str, Any]:
        """Return the configuration that the run was created with, in the current format."""
        return self.read_config().body

    def read_config(self) -> formats.Read:
        """Return the same, and whether its checksum was verified."""
        path = self.path / CONFIG
        document = formats.read(path, "config")
        if document is None:
            raise CorruptData(f"{path} is missing: not a run, or no longer one")
        body, is_sealed = document
        if body.get("id") != self.id or not isinstance(body.get("config"), dict):
            raise CorruptData(f"{path} is not the configuration of run {self.id}; was the directory renamed?")
        return formats.Read(body["config"], is_sealed)

    def check_config(self, config: Mapping[str, Any], free: tuple[str, ...] = ()) -> None:
        """Raise a UsageError that names the fields in which `config` differs; the fields in `free` may differ."""
        given = safe_json.decode(safe_json.encode(dict(config), "the configuration"), "the configuration")
        try:
            lines = _different_lines(self.config(), given, free)
        except formats.Edited as error:
            lines = _different_lines(error.body.get("config"), given, free)
            raise CorruptData(f"{error}: {'; '.join(lines) or 'its checksum, or a field that may differ'}") from None
        if lines:
            raise UsageError(
                f"run {self.id} was created with another configuration: {'; '.join(lines)}. "
                "Restore these values, or start a new run"
            )

    def status(self) -> dict[str, Any] | None:
        """Return the last status, `state` and facts; None when none was written."""
        return self._read_status()[0]

    def saved(self) -> Saved:
        """Return what the last status says was saved of the logs, else the newest complete checkpoint."""
        status, marks = self._read_status()
        if status is not None and marks:
            return Saved(marks, STATUS, is_whole=True)
        folder = self.path / CHECKPOINTS
        for step in self.checkpoint_steps():
            try:
                return Saved(checkpoints.marks_in(checkpoints.read_manifest(folder, step)), f"checkpoint {step}")
            except (CorruptData, OtherFormat):  # pruned just now, or damaged
                continue
        return Saved({})

    def verification(self) -> Verification:
        """Return how much of the metrics has a checksum; none in runs that were made before there were any."""
        saved = self.saved()
        if not any(mark.sha256 for mark in saved.marks.values()):
            return "unverified"
        return "verified" if saved.is_whole else "up to the last checkpoint"

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl by increasing step; floats that are not finite are restored."""
        rows = self.log(METRICS).parse(self.log_data(METRICS))
        check_end(self.status(), rows[-1]["step"] if rows else 0)
        return rows

    def timing(self) -> list[dict[str, Any]]:
        """Return the rows of timing.jsonl."""
        return self.log(TIMING).parse(self.log_data(TIMING))

    def log_data(self, name: str, saved: Saved | None = None) -> bytes:
        """Return all complete lines of a log; CorruptData where they are not what was saved."""
        path = self.path / name
        for known in (saved, None):
            data = safe_json.read(path, MAX_FILE_BYTES) or b""
            try:
                (known or self.saved()).check(name, data, str(path))
                break
            except CorruptData:
                if known is None:  # else a process may have gone on with the run since `saved` was read
                    self.log(name).parse(data)  # a line that cannot be read says more than a checksum
                    raise
        return data[: data.rfind(b"\n") + 1]

    def check_logs(self) -> None:
        """Raise CorruptData where a log is not what was saved; a look at its checksum, not at each line."""
        for name in (METRICS, TIMING):
            self.log_data(name)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps whose checkpoint is complete, newest first."""
        folder = self.path / CHECKPOINTS
        return [step for step in checkpoints.all_steps(folder) if checkpoints.is_complete(folder, step)]

    def intact_steps(self) -> list[int]:
        """Return the steps of all checkpoints whose checksums are right, newest first; a warning for each other one.

        Raises CorruptData when checkpoints exist and none is intact.
        """
        folder = self.path / CHECKPOINTS
        steps, damage = checkpoints.sort_out(folder)
        if damage and not steps:
            raise CorruptData(f"no checkpoint of run {self.id} is intact: {'; '.join(damage.values())}")
        self._warn(damage)
        return steps

    def _warn(self, damage: Mapping[int, str]) -> None:
        for bad, reason in damage.items():
            warnings.warn(f"the checkpoint of step {bad} is not used: {reason}", DamagedCheckpoint, stacklevel=4)

    def damaged_steps(self) -> list[int]:
        """Return the steps whose checkpoint is not complete, newest first."""
        return [step for step in checkpoints.all_steps(self.path / CHECKPOINTS) if step not in self.checkpoint_steps()]

    def kept_steps(self) -> list[int]:
        """Return the steps whose checkpoint is never pruned, newest first."""
        folder = self.path / CHECKPOINTS
        return [step for step in self.checkpoint_steps() if checkpoints.is_kept(folder, step)]

    def load_checkpoint(
        self, step: int | None = None, expect: Mapping[str, torch.Tensor] | None = None
    ) -> Checkpoint | None:
        """Return the checkpoint of `step`, or the newest intact one with a warning for each newer damaged one.

        None when none was ever saved. Raises CorruptData when checkpoints exist and none is intact. With `expect`,
        tensors of other names, shapes or dtypes are refused before they are read.
        """
        if step is not None:
            return self._load_step(step, expect)
        checkpoint, damage = checkpoints.load_newest(self.path / CHECKPOINTS, expect)
        self._warn(damage)
        return checkpoint

    def holder(self) -> locks.Holder | None:
        """Return the process that holds the lock of this run; None when none does."""
        return locks.holder(self.path / LOCK)

    @contextmanager
    def lock(self) -> Iterator[RunWriter]:
        """Yield the run's only writer; raise Locked, which names the holder, when another process has it."""
        from semfocus.store.writer import RunWriter

        with locks.hold(self.path / LOCK) as held:
            for directory in (self.path, self.path / CHECKPOINTS):
                atomic.ensure_writable(directory)
                atomic.remove_leftovers(directory)
            yield RunWriter(self.path, held)

    def log(self, name: str) -> Log:
        """Return the log file of this name."""
        return Log(self.path / name, ordered=name == METRICS)

    def _read_status(self) -> tuple[dict[str, Any] | None, dict[str, Mark]]:
        """Return the status, and the marks of the logs that it has unless the run was going on."""
        path = self.path / STATUS
        document = formats.read(path, "status")
        if document is None:
            return None, {}
        formats.check_run(document.body, self.id, path)
        status = safe_json.restored_row(document.body, str(path))
        status.pop(formats.RUN, None)
        marks = status.pop(LOGS, {})
        if status.get("state") not in STATES:
            raise CorruptData(f"{path} has the unknown state {str(status.get('state'))[:40]!r}")
        if not isinstance(marks, dict):
            raise CorruptData(f"{path} does not say how much of the logs was saved")
        return status, {name: Mark.parse(value) for name, value in marks.items()}

    def _load_step(self, step: int, expect: Mapping[str, torch.Tensor] | None) -> Checkpoint:
        folder = self.path / CHECKPOINTS
        known = checkpoints.all_steps(folder)
        if step not in known:
            raise UsageError(f"run {self.id} has no checkpoint of step {step}; it has {known or 'none'}")
        return checkpoints.load(folder, step, expect)


def check_end(status: Mapping[str, Any] | None, last_step: int) -> None:
    """Raise CorruptData where the last row of the metrics is not that of the step at which the run ended."""
    step = (status or {}).get("step")
    if status is None or type(step) is not int or status["state"] not in ("done", "diverged"):
        return
    if last_step > step or (status["state"] == "done" and last_step < step):
        raise CorruptData(f"{METRICS} ends at step {last_step}, but {STATUS} says {status['state']} at step {step}")


def _different_lines(old: Any, new: Any, free: tuple[str, ...]) -> list[str]:
    return [
        f"{name or 'the configuration'} was {_repr(before)}, is {_repr(after)}"
        for name, before, after in _differences(old, new)
        if not any(name == field or name.startswith(f"{field}.") for field in free)
    ]


def _differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted field, old value, new value) wherever two configurations differ; lists are compared whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{name}.{key}" if name else key)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield name, old, new


def _repr(value: Any) -> str:
    return "absent" if value is _ABSENT else reprlib.repr(value)
