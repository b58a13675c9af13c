"""semfocus: exact top-k attention, and the experiments that show what focus does for learning."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Imported on first use, so that `semfocus --help` pays for nothing.
_PUBLIC = {
    "get_task": "semfocus.tasks",
    "task_names": "semfocus.tasks",
    "register_task": "semfocus.tasks",
    "Task": "semfocus.tasks",
    "Batch": "semfocus.tasks",
}

__all__ = ["__version__", *sorted(_PUBLIC)]  # pyrefly: ignore


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'semfocus' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
