"""semfocus: exact top-k attention, and the experiments that show what focus does for learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.attention import (
        Attention,
        Banded,
        BlockLocal,
        BottomK,
        Full,
        RandomK,
        Sigmoid,
        Softmax,
        TopK,
        attend,
        parse_mechanism,
        register_mechanism,
    )
    from semfocus.tasks import Batch, Task, get_task, register_task, task_names

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "Banded",
    "Batch",
    "BlockLocal",
    "BottomK",
    "Full",
    "RandomK",
    "Sigmoid",
    "Softmax",
    "Task",
    "TopK",
    "attend",
    "get_task",
    "parse_mechanism",
    "register_mechanism",
    "register_task",
    "task_names",
]

_TASKS = ("Batch", "Task", "get_task", "register_task", "task_names")
__getattr__, __dir__ = attach(
    __name__, {name: "semfocus.tasks" if name in _TASKS else "semfocus.attention" for name in __all__}
)
