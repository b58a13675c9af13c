"""WHAT is learned: the paper's eight tasks, a user's own data, and how to look at them."""

from semfocus.tasks.base import SPLITS, Batch, LengthTask, Task
from semfocus.tasks.registry import get_task, register_task, task_names

__all__ = ["SPLITS", "Batch", "LengthTask", "Task", "get_task", "register_task", "task_names"]
