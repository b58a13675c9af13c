"""Tasks from what a user has in hand: a task object, pairs, columns, or a table of another library.

    keep([("what a film", "good"), ("never again", "bad"), ...], root)     pairs of text and label
    keep({"text": [...], "label": [...]}, root)                            columns
    keep(frame, root)                    a pandas or polars frame, an Arrow table, a Hugging Face Dataset
    keep(task, root)                     a Task

Each gives the name and the options by which a configuration knows the task. What lies in memory is checked, and then
stored as a file beside the runs (`tasks.stored`). Tables are known by what they can do; no library is imported.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from semfocus.errors import BadRow, DataError, UsageError
from semfocus.tasks.arrays import ArrayTask
from semfocus.tasks.base import Task
from semfocus.tasks.files import FileTask, checked_options, find_columns, read_items
from semfocus.tasks.readers import Pair, Source
from semfocus.tasks.registry import TASKS
from semfocus.tasks.rows import Origin
from semfocus.tasks.stored import store

KINDS = (
    "the name of a task, a file, a Task, pairs of (text, label), a dictionary of columns, a pandas or polars frame, "
    "or a Hugging Face Dataset"
)
_MISSING = ("NAType", "NaTType")  # types of a missing value, by their names: pandas is not imported


def keep(
    task: Any, root: Path, options: Mapping[str, Any] | None = None, title: str = "data"
) -> tuple[str, dict[str, Any]]:
    """The name and the options of a task; data in memory are stored below `root`, called `title` in messages."""
    options = dict(options or {})
    if isinstance(task, (str, os.PathLike)):
        return os.fspath(task), options
    if isinstance(task, ArrayTask):
        return store(task.title, ".safetensors", task.to_bytes(), root), options
    if isinstance(task, FileTask):
        return str(task.path), {**task.options, **options}
    if isinstance(task, Task):
        return _registered(task), {**task.options, **options}
    return _keep_rows(Columns.of(task, title), root, options), options


def _registered(task: Task) -> str:
    cls = type(task)
    if task.name not in TASKS or TASKS.get(task.name) is not cls:
        raise UsageError(
            f"{cls.__name__} is not registered, so that a run directory could not build it again: "
            f"put @register_task above the class {cls.__name__}"
        )
    return task.name


def _keep_rows(source: Columns, root: Path, options: Mapping[str, Any]) -> str:
    """Store the text column and the label column as JSON lines."""
    text, label = find_columns(source, checked_options(source.path, options))
    items = read_items(source, text, label)
    lines = (
        json.dumps({text: _listed(item.content), label: item.label}, ensure_ascii=False, separators=(",", ":"))
        for item in items
    )
    return store(str(source.path), ".jsonl", "".join(f"{line}\n" for line in lines).encode(), root)


class Columns(Source):
    """Columns in memory, read like a file; rows are numbered from 0."""

    unit = "row"

    def __init__(self, title: str, columns: Mapping[str, Iterable[Any]], classes: Mapping[str, list[str]]) -> None:
        self.path = Path(title)
        self.origin = Origin(title, self.unit, "compare")
        self.content, self.classes = columns, classes
        self.columns = self._read_columns()

    @staticmethod
    def of(data: Any, title: str) -> Columns:
        """The columns of a table or of rows."""
        if isinstance(data, (bytes, int, float)) or data is None:
            raise UsageError(f"task = {data!r:.60} is of type {type(data).__name__}; give {KINDS}")
        if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # polars' LazyFrame: a query, not yet a table
            data = data.collect()
        names = getattr(data, "column_names", None)
        if isinstance(names, Mapping) or (isinstance(data, Mapping) and names is not None):
            splits = ", ".join(map(str, names))
            raise UsageError(
                f"task has several splits ({splits}); give one of them, such as data[{next(iter(names))!r}]"
            )
        if names is None and not isinstance(data, (str, Mapping)) and hasattr(data, "columns"):
            names = list(data.columns)
        if names is not None:  # a Dataset, an Arrow table, a frame
            columns = {str(name): data[name] for name in names}
            return Columns(title, columns, _class_names(getattr(data, "features", None)))
        if isinstance(data, Mapping):
            return Columns(title, {str(name): values for name, values in data.items()}, {})
        if not isinstance(data, Iterable):
            raise UsageError(f"task is of type {type(data).__name__}; give {KINDS}")
        return Columns(title, _of_rows(title, list(data)), {})

    def _read_columns(self) -> list[str]:
        if not self.content:
            raise self.empty()
        return list(self.content)

    def pairs(self, text: str, label: str) -> Iterator[Pair | BadRow]:
        texts, labels = (_values(self.content[name]) for name in (text, label))
        names = self.classes.get(label)
        for number, (content, value) in enumerate(itertools.zip_longest(texts, labels)):
            value = _plain(value)
            if names is not None and isinstance(value, int):
                value = names[value] if 0 <= value < len(names) else None  # -1 stands for an unknown class
            yield Pair(number, _plain(content), value)


def _of_rows(title: str, rows: list[Any]) -> dict[str, list[Any]]:
    """Pairs, or dictionaries with the same keys, as columns."""
    if rows and all(isinstance(row, Mapping) for row in rows):
        return {str(name): [row.get(name) for row in rows] for name in rows[0]}
    is_apart = len(rows) == 2 and all(isinstance(row, (list, tuple)) for row in rows) and len(rows[0]) == len(rows[1])
    for number, row in enumerate(rows):
        if isinstance(row, (str, bytes)) or not hasattr(row, "__len__") or len(row) != 2:
            hint = "; of texts and labels apart give zip(texts, labels)" if is_apart else ""
            raise DataError(f"{title}, row {number}: {row!r:.60} is not a pair of a text and a label{hint}")
    return {"text": [row[0] for row in rows], "label": [row[1] for row in rows]} if rows else {}


def _class_names(features: Any) -> dict[str, list[str]]:
    """The names of the classes of each column that has some, as a Dataset's ClassLabel gives them."""
    if not isinstance(features, Mapping):
        return {}
    names = {str(column): getattr(feature, "names", None) for column, feature in features.items()}
    return {column: list(each) for column, each in names.items() if each is not None}


def _values(column: Any) -> list[Any]:
    """The values of a column of any library."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return getattr(column, method)()
    return list(column)


def _plain(value: Any) -> Any:
    """A cell as a plain Python value; None where it is missing."""
    if hasattr(value, "tolist"):  # of numpy or torch, as a Dataset with a format has them
        value = value.tolist()
    if type(value).__name__ in _MISSING or (isinstance(value, float) and math.isnan(value)):
        return None
    return list(value) if isinstance(value, tuple) else value


def _listed(content: Any) -> Any:
    return content if isinstance(content, str) else list(content)
