"""WHAT is learned: the paper's eight tasks, a user's own data, and how to look at them."""

from semfocus.tasks.base import LengthTask, Task
from semfocus.tasks.batch import NO_TARGET, SPLITS, Batch, Windows, next_tokens
from semfocus.tasks.registry import get_task, register_task, task_names

__all__ = [
    "NO_TARGET", "SPLITS", "Batch", "LengthTask", "Task", "Windows", "get_task", "next_tokens", "register_task",
    "task_names",
]  # fmt: skip
