"""A run directory as a reader sees it. Its name is the run's id.

    config.json                      what was run
    metrics.jsonl, timing.jsonl      one line an evaluation; clocks are in the second alone
    status.json                      how it ended, or that it began
    checkpoints/<step>/              see `checkpoints`
    lock                             see `locks`

Everything may come from a stranger: links are not followed, sizes and depths are limited, sums are checked.
Reading changes nothing on disk and is safe while another process writes.
"""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import CorruptData, UsageError
from semfocus.store import atomic, checkpoints, formats, locks, safe_json
from semfocus.store.checkpoints import Checkpoint, DamagedCheckpoint
from semfocus.store.logs import Log

if TYPE_CHECKING:
    import torch

    from semfocus.store.writer import RunWriter

CONFIG, STATUS, LOCK, CHECKPOINTS = "config.json", "status.json", "lock", "checkpoints"
METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
STATES = ("running", "done", "diverged", "interrupted", "failed")
_ID = re.compile(r"[0-9a-f]{8,64}")
_ABSENT = object()


def is_run_id(name: str) -> bool:
    """Whether `name` can be a run's id: 8 to 64 lowercase hexadecimal digits and nothing else."""
    return _ID.fullmatch(name) is not None


class RunDirectory:
    """One run, to read; `lock` gives its writer."""

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
        """The configuration that the run was created with."""
        path = self.path / CONFIG
        document = formats.read(path, "config")
        if document is None:
            raise CorruptData(f"{path} is missing: not a run, or no longer one")
        if document.get("id") != self.id or not isinstance(document.get("config"), dict):
            raise CorruptData(f"{path} is not the configuration of run {self.id}; was the directory renamed?")
        return document["config"]

    def check_config(self, config: Mapping[str, Any], free: tuple[str, ...] = ()) -> None:
        """Refuse a configuration that differs from the run's own, naming the fields; those in `free` may differ."""
        given = safe_json.decode(safe_json.encode(dict(config), "the configuration"), "the configuration")
        lines = [
            f"{name} was {_shown(old)}, is {_shown(new)}"
            for name, old, new in _differences(self.config(), given)
            if not any(name == field or name.startswith(f"{field}.") for field in free)
        ]
        if lines:
            raise UsageError(
                f"run {self.id} was created with another configuration: {'; '.join(lines)}. "
                "Restore these values, or start a new run"
            )

    def status(self) -> dict[str, Any] | None:
        """The last status written, `state` and facts; None when there is none."""
        path = self.path / STATUS
        document = formats.read(path, "status", safe_json.decode_row)
        if document is not None and document.get("state") not in STATES:
            raise CorruptData(f"{path} has the unknown state {str(document.get('state'))[:40]!r}")
        return document

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl by rising step; floats that are not finite come back as they were."""
        return self.log(METRICS).rows()

    def timing(self) -> list[dict[str, Any]]:
        """The rows of timing.jsonl."""
        return self.log(TIMING).rows()

    def checkpoint_steps(self) -> list[int]:
        """The steps whose checkpoint is complete and looks sound, newest first."""
        folder = self.path / CHECKPOINTS
        return [step for step in checkpoints.all_steps(folder) if checkpoints.looks_sound(folder, step)]

    def kept_steps(self) -> list[int]:
        """Those of them that were saved to stay, newest first."""
        folder = self.path / CHECKPOINTS
        return [step for step in self.checkpoint_steps() if checkpoints.is_kept(folder, step)]

    def load_checkpoint(
        self, step: int | None = None, expect: Mapping[str, torch.Tensor] | None = None
    ) -> Checkpoint | None:
        """The newest checkpoint that is intact, with a warning for each newer one that is not; or that of `step`.

        None when none was ever saved; CorruptData when there are some and none is intact. With `expect`, tensors of
        other names, shapes or dtypes are refused before they are read.
        """
        if step is not None:
            return self._load_step(step, expect)
        found, damage = checkpoints.newest(self.path / CHECKPOINTS, expect)
        for bad, reason in damage.items():
            warnings.warn(f"the checkpoint of step {bad} is not used: {reason}", DamagedCheckpoint, stacklevel=2)
        return found

    def holder(self) -> locks.Holder | None:
        """The process that writes to this run now."""
        return locks.holder(self.path / LOCK)

    @contextmanager
    def lock(self) -> Iterator[RunWriter]:
        """The run to write to, for this process alone; Locked, naming the holder, when another has it."""
        from semfocus.store.writer import RunWriter

        with locks.hold(self.path / LOCK) as held:
            for directory in (self.path, self.path / CHECKPOINTS):
                atomic.ensure_writable(directory)
                atomic.sweep(directory)
            yield RunWriter(self.path, held)

    def log(self, name: str) -> Log:
        """The log file of this name."""
        return Log(self.path / name, ordered=name == METRICS)

    def _load_step(self, step: int, expect: Mapping[str, torch.Tensor] | None) -> Checkpoint:
        folder = self.path / CHECKPOINTS
        known = checkpoints.all_steps(folder)
        if step not in known:
            raise UsageError(f"run {self.id} has no checkpoint of step {step}; it has {known or 'none'}")
        return checkpoints.load(folder, step, expect)


def _differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted field, old value, new value) wherever two configurations differ; lists are compared whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{name}.{key}" if name else key)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield name, old, new


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else reprlib.repr(value)
