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
        explain,
        parse_mechanism,
        register_mechanism,
        register_normaliser,
    )
    from semfocus.config import RunConfig
    from semfocus.diagnostics import diagnose
    from semfocus.execution import Executor, executor_names, register_executor, train
    from semfocus.experiments.compare import compare
    from semfocus.plugins import load_plugins
    from semfocus.tasks import Batch, Task, get_task, register_task, task_names
    from semfocus.training import Runtime, load
    from semfocus.training.objective import register_objective

__version__ = "0.2.0"

__all__ = [
    "Attention",
    "Banded",
    "Batch",
    "BlockLocal",
    "BottomK",
    "Executor",
    "Full",
    "RandomK",
    "RunConfig",
    "Runtime",
    "Sigmoid",
    "Softmax",
    "Task",
    "TopK",
    "attend",
    "compare",
    "diagnose",
    "executor_names",
    "explain",
    "get_task",
    "load",
    "load_plugins",
    "parse_mechanism",
    "register_executor",
    "register_mechanism",
    "register_normaliser",
    "register_objective",
    "register_task",
    "task_names",
    "train",
]

_HOMES = {
    "semfocus.tasks": ("Batch", "Task", "get_task", "register_task", "task_names"),
    "semfocus.training": ("Runtime", "load"),
    "semfocus.training.objective": ("register_objective",),
    "semfocus.execution": ("Executor", "executor_names", "register_executor", "train"),
    "semfocus.plugins": ("load_plugins",),
    "semfocus.config": ("RunConfig",),
    "semfocus.experiments.compare": ("compare",),
    "semfocus.diagnostics": ("diagnose",),
}
_ELSEWHERE = {name: home for home, names in _HOMES.items() for name in names}
__getattr__, __dir__ = attach(__name__, {name: _ELSEWHERE.get(name, "semfocus.attention") for name in __all__})
