"""What is learned, from how many examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import field_validator

from semfocus.config.fields import Part, Positive
from semfocus.tasks import SPLITS, Task, get_task, task_names
from semfocus.tasks.registry import get_stored_task, task_class
from semfocus.tasks.stored import is_stored, stored_path


class TaskConfig(Part):
    """What is learned: a task's name or a data file, its options, and the number of examples (None: all of a file).

    With `lengths` (`1-40`) each training batch has one length drawn from that span, and each held-out example its own;
    without, every example has the length that the options give.
    """

    name: str
    options: dict[str, Any] = {}
    train_rows: Positive | None = 5000
    heldout_rows: Positive | None = 2000
    lengths: str | None = None

    @field_validator("lengths")
    @classmethod
    def _known_span(cls, text: str | None) -> str | None:
        if text is None:
            return None
        match = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text, flags=re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"task.lengths = {text!r} must be a shortest and a longest length, for example 1-40")
        return f"{int(match[1])}-{int(match[2])}"

    @property
    def span(self) -> tuple[int, int] | None:
        """The shortest and the longest length of an example, where lengths are drawn."""
        if self.lengths is None:
            return None
        low, _, high = self.lengths.partition("-")
        return int(low), int(high)

    @field_validator("options")
    @classmethod
    def _no_name(cls, options: dict[str, Any]) -> dict[str, Any]:
        if "name" in options:
            raise ValueError("task.options cannot hold a name: write it as task.name")
        return options

    @staticmethod
    def with_default_rows(name: str, options: dict[str, Any] | None = None) -> TaskConfig:
        """All examples of a file or a finite task; of any other task, its default numbers of examples."""
        rows: dict[str, int | None] = {"train_rows": None, "heldout_rows": None}
        if name in task_names():
            cls = task_class(name)
            is_endless = cls.size is Task.size or all(
                get_task(name, **options or {}).size(split) is None for split in SPLITS
            )
            if is_endless:
                rows = {"train_rows": cls.default_train_rows, "heldout_rows": cls.default_heldout_rows}
        return TaskConfig(
            name=name, options=options or {}, train_rows=rows["train_rows"], heldout_rows=rows["heldout_rows"]
        )

    def build(self, root: Path | None = None) -> Task:
        """The task itself; data that were given from memory lie in the store at `root`."""
        if is_stored(self.name):
            return get_stored_task(stored_path(self.name, root), **self.options)
        return get_task(self.name, **self.options)
