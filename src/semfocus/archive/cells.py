"""The rows of metrics.jsonl and timing.jsonl as rows of one CSV table, and back to the bit.

A line of timing belongs to the evaluation of the same place; its fields are named timing_*. A cell is the JSON text of
a value; nan, inf and -inf for floats that are not finite; and empty for a field that the row does not have.
"""

from __future__ import annotations

import csv
import heapq
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from semfocus.archive.contents import Files
from semfocus.errors import CorruptData
from semfocus.store import safe_json
from semfocus.store.directory import METRICS, TIMING

TIMING_PREFIX = "timing_"
MAX_CELL = 8 * safe_json.MAX_BYTES  # characters: of a document, or of a text with each character escaped
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def evaluation_lines(runs: Mapping[str, Files], names: Sequence[str]) -> Iterator[str]:
    """The table of all evaluations: a heading of these fields, and the rows of each run in the given order."""
    yield csv_line(["run", *names])
    for run_id, logs in runs.items():
        for row in _rows(logs, run_id):
            yield csv_line([run_id, *(_cell(row[name]) if name in row else "" for name in names)])


def field_orders(logs: Files, run_id: str) -> set[tuple[str, ...]]:
    """The fields of the rows of a run, in each order in which they stand in one."""
    return {tuple(row) for row in _rows(logs, run_id)}


def heading(orders: Iterable[tuple[str, ...]]) -> list[str]:
    """Every field once, those of the timing last; behind all that stand before it in one of the orders.

    A row that comes back from a table has its fields in the order of the heading. Where orders contradict each other,
    no heading serves them all, and the more common one counts.
    """
    common = [order for order, _ in Counter(orders).most_common()]
    place = {name: i for i, name in enumerate(dict.fromkeys(itertools.chain(*common)))}
    behind: dict[str, set[str]] = {name: set() for name in place}
    for order in common:
        for name, following in itertools.pairwise(order):
            behind[name].add(following)
    waiting = dict.fromkeys(place, 0)
    for following in itertools.chain(*behind.values()):
        waiting[following] += 1
    free = [(i, name) for name, i in place.items() if not waiting[name]]
    names: dict[str, None] = {}
    left = iter(place)
    while len(names) < len(place):
        # Of the fields that may come next the one that was seen first; in a circle, the first that is left.
        name = heapq.heappop(free)[1] if free else next(name for name in left if name not in names)
        if name in names:
            continue
        names[name] = None
        for following in behind[name]:
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(free, (place[following], following))
    return sorted(names, key=lambda name: name.startswith(TIMING_PREFIX))


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


def round_trip(logs: Files, run_id: str, names: Sequence[str]) -> Files:
    """The logs as they come back from a table of these fields."""
    header, *table = csv_rows(evaluation_lines({run_id: logs}, names))
    return logs_of(header, table, run_id)


def csv_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """The cells of each row of a CSV file."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
    return csv.reader(lines)


def csv_line(texts: Sequence[str]) -> str:
    """One row of a CSV file."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(texts)  # quotes a text with either, which readers split at
    return line.getvalue().removesuffix("\r\n") + "\n"


def _rows(logs: Files, run_id: str) -> list[dict[str, Any]]:
    """Metrics with the timing of the same place, as one row each."""
    metrics, timing = (
        [safe_json.decode_row(line, f"{name} of run {run_id}") for line in logs[name].splitlines()]
        for name in (METRICS, TIMING)
    )
    pairs = itertools.zip_longest(metrics, timing, fillvalue={})
    return [row | {f"{TIMING_PREFIX}{name}": value for name, value in times.items()} for row, times in pairs]


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)


def _value(cell: str, what: str) -> Any:
    return _NOT_FINITE[cell] if cell in _NOT_FINITE else safe_json.decode(cell.encode(), f"a cell of {what}")
