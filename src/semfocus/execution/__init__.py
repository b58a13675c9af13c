"""On this machine, in one process or several: `train` begins runs, `resume` goes on with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.execution.processes import LostProcess, train
    from semfocus.execution.resuming import resume

__all__ = ["LostProcess", "resume", "train"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "LostProcess": "semfocus.execution.processes",
        "resume": "semfocus.execution.resuming",
        "train": "semfocus.execution.processes",
    },
)
