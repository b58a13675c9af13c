"""Who trains, and where: `train` begins runs, `resume` goes on with them, an `Executor` does the work.

`cohorts` decides who trains with whom, `executor` is the interface, `serial` and `processes` implement it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.execution.executor import Executor, RunOutcome, executor_names, register_executor, train
    from semfocus.execution.processes import LostProcess
    from semfocus.execution.resuming import resume

__all__ = ["Executor", "LostProcess", "RunOutcome", "executor_names", "register_executor", "resume", "train"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Executor": "semfocus.execution.executor",
        "LostProcess": "semfocus.execution.processes",
        "RunOutcome": "semfocus.execution.executor",
        "executor_names": "semfocus.execution.executor",
        "register_executor": "semfocus.execution.executor",
        "resume": "semfocus.execution.resuming",
        "train": "semfocus.execution.executor",
    },
)
