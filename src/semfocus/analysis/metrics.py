"""The metrics of one run by column, read fast and as strictly as the store reads them.

    metrics = read_metrics(run)
    metrics.column("train_accuracy")      one value per evaluation, as an array
    metrics[-1]["heldout_accuracy"]       or row by row, as plain dictionaries

A thousand runs of two hundred epochs are two hundred thousand lines. A file of flat objects with finite numbers is
parsed in one call. Any other file (a float that was not finite, a text, a repeated key, a line that is not one object)
is read line by line by the store, which parses it or says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import CorruptData
from semfocus.store import RunDirectory, safe_json
from semfocus.store.directory import METRICS, TIMING, Saved

LONGEST_S = 1e10  # three centuries
Column = NDArray[Any]


class Metrics(Sequence[dict[str, Any]]):
    """Rows of metrics kept as columns of integers, floats (NaN where a row has no value), or objects for texts."""

    def __init__(self, columns: Mapping[str, Column], rows: int) -> None:
        self.columns = dict(columns)
        self._rows = rows
        for values in self.columns.values():
            values.setflags(write=False)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Metrics:
        """From rows, in their order."""
        rows = list(rows)
        names = dict.fromkeys(name for row in rows for name in row)
        return cls({name: _column([row.get(name) for row in rows]) for name in names}, len(rows))

    def column(self, name: str) -> Column:
        """All values of one metric; KeyError if no row has it."""
        return self.columns[name]

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        values = [column.tolist() for column in self.columns.values()]
        for row in zip(*values, strict=True):
            yield dict(zip(self.columns, row, strict=True))

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        return {name: column[place : place + 1 or None].tolist()[0] for name, column in self.columns.items()}


def read_metrics(run: RunDirectory, saved: Saved | None = None) -> Metrics:
    """The metrics of a run; CorruptData if they are damaged. `saved` is what `run.saved()` gave."""
    data = run.log_data(METRICS, saved)
    fast = _parse_flat(data)
    return Metrics.of(run.log(METRICS).parse(data)) if fast is None else fast


def read_seconds(run: RunDirectory, saved: Saved | None = None) -> float:
    """The seconds spent on a run so far, by its own clock, from the last row of its timing."""
    data = run.log_data(TIMING, saved)
    end = len(data) - 1
    if end < 0:
        return 0.0
    row = safe_json.decode_row(data[data.rfind(b"\n", 0, end) + 1 : end], f"the last line of {run.path / TIMING}")
    seconds = row.get("seconds", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < LONGEST_S:
        raise CorruptData(f"{run.path / TIMING} has seconds = {seconds!r:.40}, which is no duration")
    return float(seconds)


def _parse_flat(data: bytes) -> Metrics | None:
    """Parse complete lines if every line is one flat object of finite numbers; None if any is not.

    If each line has one brace at either end and none elsewhere, the text parsed as one list has one object per line.
    If there are as many `":` as values, no key is repeated.
    """
    lines = data.count(b"\n")
    if lines == 0:
        return Metrics({}, 0)
    framed = data.startswith(b"{") and data.count(b"\n{") == lines - 1 and data.count(b"}\n") == lines
    if not framed or data.count(b"{") != lines or data.count(b"}") != lines:
        return None
    try:
        rows = json.loads(b"[" + data[:-1].replace(b"\n", b",") + b"]")
    except (ValueError, RecursionError):
        return None
    names = list(rows[0])
    if (
        len(rows) != lines
        or data.count(b'":') != lines * len(names)
        or any(row.keys() != rows[0].keys() for row in rows)
    ):
        return None
    columns = {name: _column([row[name] for row in rows]) for name in names}
    return Metrics(columns, lines) if _is_valid(columns) else None


def _is_valid(columns: Mapping[str, Column]) -> bool:
    steps = columns.get("step")
    if steps is None or steps.dtype != np.int64 or steps[0] < 0 or np.any(np.diff(steps) <= 0):
        return False
    return all(values.dtype == np.int64 or _is_finite(values) for values in columns.values())


def _is_finite(values: Column) -> bool:
    return values.dtype == np.float64 and bool(np.all(np.isfinite(values)))


def _column(values: list[Any]) -> Column:
    kinds = {type(value) for value in values}
    try:
        if kinds == {int}:
            return np.array(values, dtype=np.int64)
        if kinds <= {int, float, type(None)}:
            return np.array(values, dtype=np.float64)
    except OverflowError:
        pass  # an integer beyond 64 bits stays a Python integer
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
