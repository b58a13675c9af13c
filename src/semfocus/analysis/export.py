"""All runs as one tidy table: a row per run and evaluation, with the configuration in columns beside the metrics.

    export_records(Results.load("runs").records, Path("runs.parquet"), "parquet")

    SELECT attention_mechanism, seed, min(epoch) FROM 'runs.parquet' WHERE train_accuracy >= 0.95 GROUP BY ALL

Configuration fields are named by their path: `training.lr` becomes `training_lr`. In a CSV file a text that a
spreadsheet would read as a formula gets a leading apostrophe. Names that differ in case only get a number, because the
database does not tell them apart. A metric that is a text in some run is a column of texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from semfocus.analysis.metrics import Column
from semfocus.analysis.records import Record
from semfocus.errors import MissingExtra, StorageError, UsageError, expanded
from semfocus.store.atomic import replacing
from semfocus.training.objective import CLASSIFICATION

if TYPE_CHECKING:
    import duckdb

Format = Literal["parquet", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "csv")
METRICS = ("epoch", "step", "lr", *CLASSIFICATION.columns)  # the order of the columns; others follow
_FORMULA = re.compile(
    "(?:^|(?<=[\\r\\n]))(?=[\\t\\r]|[ \\0]*[-=+@\uff0d\uff1d\uff0b\uff20])"
)  # where a line of a cell begins
_RUN_INDEX, _ROW = "run index", "row"  # join the two tables and order the rows, and are not exported


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    runs: int
    rows: int
    without_rows: tuple[str, ...]  # ids of runs that have no metrics yet


def export_records(records: Sequence[Record], out: Path, to: Format) -> Exported:
    """Write the table; the file is complete or absent, never partial."""
    if to not in FORMATS:
        raise UsageError(f"to = {to!r} is not one of {', '.join(FORMATS)}")
    evaluated = sorted((record for record in records if len(record.metrics)), key=lambda record: record.id)
    if not evaluated:
        raise UsageError("there is no run with metrics to export")
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "analysis", "exporting runs") from None
    escaped = without_formula if to == "csv" else lambda value: value
    runs = _run_columns(evaluated)
    metrics = _metric_columns(evaluated, taken=set(runs))
    own = {f"r{place}": [escaped(value) for value in values] for place, values in enumerate(runs.values())}
    measured = {f"m{place}": values for place, values in enumerate(_escaped_texts(metrics.values(), escaped))}
    shown = _distinct([escaped(name) for name in (*runs, *metrics)])
    index = np.repeat(np.arange(len(evaluated)), [len(record.metrics) for record in evaluated])
    steps = np.concatenate([np.arange(len(record.metrics)) for record in evaluated])
    with duckdb.connect() as connection, replacing(expanded(out).absolute()) as draft:
        _create_runs(connection, own, len(evaluated))
        connection.register("metrics", {_RUN_INDEX: index, _ROW: steps, **measured})
        columns = ", ".join(f"{key} AS {_quoted(name)}" for key, name in zip((*own, *measured), shown, strict=True))
        order = f"{_quoted(_RUN_INDEX)}, {_quoted(_ROW)}"
        table = f"SELECT {columns} FROM metrics JOIN runs USING ({_quoted(_RUN_INDEX)}) ORDER BY {order}"
        options = "(FORMAT parquet, COMPRESSION zstd)" if to == "parquet" else "(FORMAT csv, HEADER)"
        try:
            connection.execute(f"COPY ({table}) TO {_text(str(draft))} {options}")
        except duckdb.IOException as error:  # a full disk is no OSError there
            raise StorageError(f"cannot write {out}: {error}") from error
    without = tuple(sorted(record.id for record in records if not len(record.metrics)))
    return Exported(out, len(evaluated), len(index), without)


def flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested fields with joined names; lists become JSON."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{name}_")
        else:
            yield f"{before}{name}", json.dumps(value) if isinstance(value, (list, tuple)) else value


def _distinct(names: Iterable[str]) -> list[str]:
    """Names of columns, none of them empty, that differ in more than case."""
    distinct: dict[str, str] = {}
    for name in names:
        stem = own = name or "unnamed"
        number = 1
        while own.casefold() in distinct:
            number += 1
            own = f"{stem}_{number}"
        distinct[own.casefold()] = own
    return list(distinct.values())


def _run_columns(records: Sequence[Record]) -> dict[str, list[Any]]:
    """One value per run in each column; a column of mixed types becomes texts."""
    rows = []
    for record in records:
        row: dict[str, Any] = {"run": record.id, "state": record.state}
        for name, value in flatten(record.config):
            while name in row or name in METRICS:  # two fields with the same joined name, or a metric's name
                name += "_"
            row[name] = value
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _one_type([row.get(name) for row in rows]) for name in names}


def _one_type(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) <= 1 or kinds == {int, float}:
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def without_formula(value: Any) -> Any:
    """A text that no spreadsheet takes for a formula, nor a line of it."""
    return _FORMULA.sub("'", value) if isinstance(value, str) else value


def _metric_columns(records: Sequence[Record], taken: set[str]) -> dict[str, Column]:
    """The metrics of all runs, concatenated; NaN, which becomes a null, if a run has no such metric.

    Texts where some run has another value than a number.
    """
    present = {name for record in records for name in record.metrics[0]}
    columns: dict[str, Column] = {}
    for name in (*(name for name in METRICS if name in present), *sorted(present - {*METRICS})):
        having = [record for record in records if name in record.metrics[0]]
        if all(record.column(name).dtype.kind in "if" for record in having):
            parts = [_numbers(record, name) for record in records]
        else:
            parts = [_texts(record, name) for record in records]
        columns[name if name not in taken else f"metric_{name}"] = np.concatenate(parts)
    return columns


def _numbers(record: Record, name: str) -> Column:
    return record.column(name) if name in record.metrics[0] else np.full(len(record.metrics), np.nan)


def _escaped_texts(columns: Iterable[Column], escaped: Callable[[Any], Any]) -> Iterator[Column]:
    for column in columns:
        if column.dtype == object:
            column[:] = [escaped(value) for value in column]
        yield column


def _texts(record: Record, name: str) -> Column:
    values = record.column(name).tolist() if name in record.metrics[0] else [None] * len(record.metrics)
    texts = np.empty(len(values), dtype=object)
    texts[:] = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return texts


def _create_runs(connection: duckdb.DuckDBPyConnection, columns: Mapping[str, list[Any]], rows: int) -> None:
    every = {_RUN_INDEX: list(range(rows)), **columns}
    kinds = ", ".join(f"{_quoted(name)} {_sql_type(values)}" for name, values in every.items())
    connection.execute(f"CREATE TABLE runs ({kinds})")
    connection.execute(f"INSERT INTO runs SELECT {', '.join('unnest(?)' for _ in every)}", list(every.values()))


def _sql_type(values: list[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        fits = all(-(2**63) <= value < 2**63 for value in values if value is not None)
        return "BIGINT" if fits else "DOUBLE"
    # Also DOUBLE if no run has a value: the fields that may be left out are numbers.
    return "DOUBLE" if kinds <= {int, float} else "VARCHAR"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
