"""Tasks by name. The built-in ones are listed here and imported when first used."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from semfocus.errors import UsageError, unknown
from semfocus.registry import Registry
from semfocus.tasks.base import Task

FILE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".tex")  # without labels
ARRAYS_SUFFIX = ".safetensors"  # of arrays that were stored
_BUILT_IN = (
    "parity", "even_pairs", "missing_duplicate", "cycle_navigation", "stack_manipulation", "modular_arithmetic",
    "solve_equation", "listops", "copy", "reverse", "sort", "flip_flop", "two_back", "mqar", "text", "next_word",
)  # fmt: skip
TASKS: Registry[type[Task]] = Registry(
    "task",
    {name: f"semfocus.tasks.{name}" for name in _BUILT_IN},
    hint="; or a file ending in " + ", ".join(FILE_SUFFIXES),
)


def register_task(cls: type[Task]) -> type[Task]:
    """Make a task known under `cls.name`; usable as a class decorator."""
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"{cls.__name__}.name = {name!r} must be a name such as 'my_task'")
    return TASKS.register(cls)


def task_names() -> list[str]:
    """The names of all registered tasks, the paper's eight first."""
    return TASKS.names()


def task_class(name: str) -> type[Task]:
    """The class registered under `name`."""
    return TASKS.get(name)


def option_defaults(name: str) -> dict[str, Any]:
    """The options of a registered task with their defaults; empty for a file, whose options have another meaning."""
    if name not in task_names():
        return {}
    return {field.name: field.default for field in dataclasses.fields(task_class(name)) if field.init}


def get_task(name: str | os.PathLike[str], **options: Any) -> Task:
    """A task by its name, `get_task("parity", length=60)`, or over a user's own file, `get_task("data.csv")`."""
    if Path(name).suffix.lower() == ARRAYS_SUFFIX:
        from semfocus.tasks.arrays import ArrayTask

        return ArrayTask.load(Path(name), **options)
    if isinstance(name, os.PathLike) or Path(name).suffix.lower() in FILE_SUFFIXES:
        from semfocus.tasks.files import FileTask

        return FileTask.load(Path(name), **options)
    if name not in TASKS.names() and (Path(name).suffix.lower() in TEXT_SUFFIXES or os.path.isdir(name)):
        raise UsageError(
            f"{name!r} is text without labels: give it to a language model as the corpus of the task text "
            f"(--option corpus={name}, or options={{'corpus': {str(name)!r}}})"
        )
    cls = task_class(name)
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    given, options = options, {cls.other_spellings.get(option, option): value for option, value in options.items()}
    if len(options) < len(given):
        raise UsageError(f"{', '.join(given)}: two of them are spellings of one option; give one of them")
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    return cls(**options)


def get_stored_task(path: Path, **options: Any) -> Task:
    """A task over data that were given from memory and lie in this file."""
    if path.suffix.lower() == ARRAYS_SUFFIX:
        return get_task(path, **options)
    from semfocus.tasks.files import FileTask

    return FileTask.load_stored(path, **options)
