"""The rows of metrics.jsonl and timing.jsonl as rows of one CSV table, and back to the bit.

A line of timing belongs to the evaluation of the same place; its fields are named timing_*. A cell is the JSON text of
a value; nan, inf and -inf for floats that are not finite; and empty for a field that the row does not have.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from semfocus.archive.contents import Files
from semfocus.errors import CorruptData
from semfocus.store import safe_json
from semfocus.store.directory import METRICS, TIMING

TIMING_PREFIX = "timing_"
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def evaluation_lines(runs: Mapping[str, Files]) -> Iterator[str]:
    """The table of all evaluations: a heading, and the rows of each run in the given order."""
    decoded = ((run_id, _rows(logs, run_id)) for run_id, logs in runs.items())
    names = _names(row for _, rows in decoded for row in rows)
    yield csv_line(["run", *names])
    for run_id, logs in runs.items():
        for row in _rows(logs, run_id):
            yield csv_line([run_id, *(_cell(row[name]) if name in row else "" for name in names)])


def logs_of(heading: Sequence[str], table: Iterable[Sequence[str]], what: str) -> Files:
    """The two logs of the run to which these rows of the table belong."""
    logs: dict[str, list[bytes]] = {METRICS: [], TIMING: []}
    for cells in table:
        if len(cells) != len(heading):
            raise CorruptData(f"{what} has a row of {len(cells)} cells under {len(heading)} headings")
        fields = {name: _value(cell, what) for name, cell in zip(heading[1:], cells[1:], strict=True) if cell}
        timing = {
            name.removeprefix(TIMING_PREFIX): value for name, value in fields.items() if name.startswith(TIMING_PREFIX)
        }
        metrics = {name: value for name, value in fields.items() if not name.startswith(TIMING_PREFIX)}
        for log, row in ((METRICS, metrics), (TIMING, timing)):
            if row:
                logs[log].append(safe_json.encode_row(row, what) + b"\n")
    return {name: b"".join(lines) for name, lines in logs.items()}


def round_trip(logs: Files, run_id: str) -> Files:
    """The logs as they come back from a table."""
    heading, *table = csv.reader(evaluation_lines({run_id: logs}))
    return logs_of(heading, table, run_id)


def csv_line(texts: Sequence[str]) -> str:
    """One row of a CSV file."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(texts)
    return line.getvalue()


def _rows(logs: Files, run_id: str) -> list[dict[str, Any]]:
    """Metrics with the timing of the same place, as one row each."""
    metrics, timing = (
        [safe_json.decode_row(line, f"{name} of run {run_id}") for line in logs[name].splitlines()]
        for name in (METRICS, TIMING)
    )
    pairs = itertools.zip_longest(metrics, timing, fillvalue={})
    return [row | {f"{TIMING_PREFIX}{name}": value for name, value in times.items()} for row, times in pairs]


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every field once, those of the timing last."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return sorted(names, key=lambda name: name.startswith(TIMING_PREFIX))


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)


def _value(cell: str, what: str) -> Any:
    return _NOT_FINITE[cell] if cell in _NOT_FINITE else safe_json.decode(cell.encode(), f"a cell of {what}")
