"""All runs as one tidy table: a row for each run and evaluation, the configuration in columns beside the metrics.

    export_records(Results.load("runs").records, Path("runs.parquet"), "parquet")

    SELECT attention_mechanism, seed, min(epoch) FROM 'runs.parquet' WHERE train_accuracy >= 0.95 GROUP BY ALL

Configuration fields are named by their place: `training.lr` becomes `training_lr`. In a CSV file a text that a
spreadsheet would take for a formula gets an apostrophe in front.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from semfocus.analysis.metrics import Column
from semfocus.analysis.records import Record
from semfocus.errors import MissingExtra, UsageError
from semfocus.store.atomic import replacing

if TYPE_CHECKING:
    import duckdb

Format = Literal["parquet", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "csv")
FIRST = ("run", "state")  # then the configuration, then the metrics in this order, then any others
METRICS = ("epoch", "step", "lr", "train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_PLACE = "which run"  # joins the two tables, and is not exported; no field's name has a space


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    runs: int
    rows: int
    without_rows: tuple[str, ...]  # ids of runs that have no metrics yet, and so no rows


def export_records(records: Sequence[Record], out: Path, to: Format) -> Exported:
    """Write the table; the file appears whole or not at all."""
    if to not in FORMATS:
        raise UsageError(f"to = {to!r} is not one of {', '.join(FORMATS)}")
    measured = sorted((record for record in records if len(record.metrics)), key=lambda record: record.id)
    if not measured:
        raise UsageError("there is no run with metrics to export")
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "analysis", "exporting runs") from None
    runs = _run_columns(measured, plain=to == "csv")
    metrics = _metric_columns(measured, taken=set(runs))
    with duckdb.connect() as connection, replacing(out.expanduser().absolute()) as draft:
        _create_runs(connection, runs, len(measured))
        connection.register("metrics", metrics)
        columns = ", ".join(_quoted(name) for name in [*runs, *metrics] if name != _PLACE)
        table = f"SELECT {columns} FROM metrics JOIN runs USING ({_quoted(_PLACE)}) ORDER BY {_quoted(_PLACE)}, step"
        options = "(FORMAT parquet, COMPRESSION zstd)" if to == "parquet" else "(FORMAT csv, HEADER)"
        connection.execute(f"COPY ({table}) TO {_text(str(draft))} {options}")
    without = tuple(sorted(record.id for record in records if not len(record.metrics)))
    return Exported(out, len(measured), len(metrics[_PLACE]), without)


def flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested fields by joined names; lists become JSON."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{name}_")
        else:
            yield f"{before}{name}", json.dumps(value) if isinstance(value, (list, tuple)) else value


def _run_columns(records: Sequence[Record], plain: bool) -> dict[str, list[Any]]:
    """One value a run in each column; where fields of different kinds meet, all become texts."""
    rows = []
    for record in records:
        row: dict[str, Any] = {"run": record.id, "state": record.state}
        for name, value in flatten(record.config):
            while name in row or name in METRICS:  # two fields that join to one name, or a metric's
                name += "_"
            row[name] = value
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _one_kind([row.get(name) for row in rows]) for name in names}
    return {name: [_harmless(v) for v in values] for name, values in columns.items()} if plain else columns


def _one_kind(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) <= 1 or kinds == {int, float}:
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _metric_columns(records: Sequence[Record], taken: set[str]) -> dict[str, Column]:
    """The metrics of all runs, one below the other; NaN, which becomes a null, where a run has no such metric."""
    found = dict.fromkeys(name for record in records for name in record.metrics[0])
    numeric = [
        name for name in found if all(record.column(name).dtype.kind in "if" for record in _having(records, name))
    ]
    names = [*(name for name in METRICS if name in numeric), *sorted(set(numeric) - set(METRICS))]
    columns = {_PLACE: np.repeat(np.arange(len(records)), [len(record.metrics) for record in records])}
    for name in names:
        parts = [_values(record, name) for record in records]
        columns[name if name not in taken else f"metric_{name}"] = np.concatenate(parts)
    return columns


def _having(records: Sequence[Record], name: str) -> list[Record]:
    return [record for record in records if name in record.metrics[0]]


def _values(record: Record, name: str) -> Column:
    return record.column(name) if name in record.metrics[0] else np.full(len(record.metrics), np.nan)


def _create_runs(connection: duckdb.DuckDBPyConnection, columns: Mapping[str, list[Any]], rows: int) -> None:
    every = {_PLACE: list(range(rows)), **columns}
    kinds = ", ".join(f"{_quoted(name)} {_kind(values)}" for name, values in every.items())
    connection.execute(f"CREATE TABLE runs ({kinds})")
    connection.execute(f"INSERT INTO runs SELECT {', '.join('unnest(?)' for _ in every)}", list(every.values()))


def _kind(values: list[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        fits = all(-(2**63) <= value < 2**63 for value in values if value is not None)
        return "BIGINT" if fits else "DOUBLE"
    return (
        "DOUBLE" if kinds <= {int, float} else "VARCHAR"
    )  # also where nobody has a value: fields left out are numbers


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
