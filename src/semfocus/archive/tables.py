"""Published results: every ended run of a store as tables that anybody can read, and from which the store is rebuilt.

    publish(RunStore("runs"), Path("results/paper"), about={"commit": "6b13da9"})
    results = read_published(Path("results/paper"), RunStore("build/paper/runs"))     # what Results.load gives

    evaluations.csv.xz       a row an evaluation: run, metrics, timing_* (seconds by the run's own clock)
    runs.csv.xz              a row a run: state, task, mechanism, seed, ..., config.json and status.json as they were
    measurements.jsonl.xz    a line a file of measurements
    manifest.json            format, SHA-256 sums of the tables, and how the runs were made

Python's standard library reads them; so does `duckdb` or pandas. Cells are JSON values, or nan, inf, -inf, or empty for
a field that a row does not have. A run that would not come back equal to the bit is refused when it is written.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.analysis.export import without_formula
from semfocus.analysis.results import Results
from semfocus.archive import cells, xz
from semfocus.archive.contents import ENDED, Files, read_files
from semfocus.archive.manifest import PackedFile
from semfocus.archive.merge import Arrivals, check_run
from semfocus.errors import CorruptData, OtherFormat, SemfocusError, UsageError
from semfocus.store import RunDirectory, RunStore, atomic, safe_json
from semfocus.store.directory import CONFIG, METRICS, STATUS, TIMING
from semfocus.store.measurements import MAX_ARRAY_BYTES

FORMAT = 1
MANIFEST = "manifest.json"
EVALUATIONS, RUNS, MEASUREMENTS = "evaluations.csv.xz", "runs.csv.xz", "measurements.jsonl.xz"
TABLES = (RUNS, EVALUATIONS, MEASUREMENTS)
FACTS = ("device", "device_name", "torch", "python", "threads", "compiled", "commit")  # of a status, as columns
MAX_TABLE_BYTES = 2**30  # compressed
MAX_BYTES = 16 * 2**30  # unpacked
MAX_LINE_BLOCKS = 2 * MAX_ARRAY_BYTES // 2**20  # of a MiB: the arrays of a measurement in base64
_COLUMNS = ("run", "state", "task", "mechanism", "seed", "precision", *FACTS, "seconds", "evaluations")
_PIECE_BYTES = 24 * 2**20


@dataclass(frozen=True)
class Published:
    """What was written, and what was left out."""

    runs: list[str]
    left_out: dict[str, str]  # entry of the store -> why
    bytes: int


def publish(store: RunStore, out: Path, about: Mapping[str, Any] | None = None) -> Published:
    """Write the tables of all ended runs. Every other entry of the store is left out by name."""
    left_out: dict[str, str] = {}
    runs: dict[str, Files] = {}
    for entry in store.entries():
        if entry.config is None or entry.state not in ENDED:
            left_out[entry.name] = f"{entry.state}{', ' if entry.why else ''}{entry.why}"
            continue
        try:
            runs[entry.name] = _sound_files(RunDirectory(entry.path))
        except SemfocusError as error:
            left_out[entry.name] = str(error)
    orders = {run_id: cells.field_orders(_logs(files), run_id) for run_id, files in runs.items()}
    left_out |= {run_id: why for run_id, own in orders.items() if (why := _why_no_headings(own))}
    names = cells.heading(order for own in orders.values() for order in own)
    left_out |= {run_id: why for run_id, files in runs.items() if (why := _why_not_as_it_was(files, run_id, names))}
    runs = {run_id: files for run_id, files in runs.items() if run_id not in left_out}
    if not runs:
        reasons = "".join(f"; {name}: {why}" for name, why in left_out.items())
        raise UsageError(f"{store.root} has no run that has ended: there is nothing to publish{reasons}")
    used = {name for run_id in runs for order in orders[run_id] for name in order}
    names = [name for name in names if name in used]
    tables = {
        RUNS: _compressed(_run_rows(runs)),
        EVALUATIONS: _compressed(cells.evaluation_lines({id: _logs(files) for id, files in runs.items()}, names)),
        MEASUREMENTS: _compressed(_measurement_lines(runs)),
    }
    hashes = {name: PackedFile.of(data) for name, data in tables.items()}
    body = {
        "format": FORMAT,
        **(about or {}),
        "runs": len(runs),
        **_machines(runs),
        "tables": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in hashes.items()},
    }
    for name, data in tables.items():
        atomic.write_bytes(out / name, data)
    atomic.write_json(out / MANIFEST, body)  # last: tables without it are not taken for published ones
    return Published([*runs], left_out, sum(map(len, tables.values())))


def read_published(folder: Path, store: RunStore) -> Results:
    """The published runs, put into a store and read from there; it may have them already.

    CorruptData where a table was cut or edited, or a run is there twice or differs from the store's.
    """
    ids: list[str] = []
    with Arrivals(store) as arrivals:
        for run_id, files in published_runs(folder):
            arrivals.add(run_id, files)
            ids.append(run_id)
        arrivals.place().raise_if_refused()
    return Results.load(store, ids)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of published tables; UsageError where there is none."""
    path = folder / MANIFEST
    data = safe_json.read(path)
    if data is None:
        raise UsageError(f"{path} is not there; `semfocus publish` writes it")
    document = safe_json.decode(data, str(path))
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise OtherFormat(
            f"{path} has format {str(version)[:20]}; this semfocus reads {FORMAT}: use the one that wrote it"
        )
    return document


def published_runs(folder: Path) -> Iterator[tuple[str, Files]]:
    """Each published run as the files of its directory, after a check of the tables' checksums."""
    try:
        yield from _runs_of(folder, _tables(folder))
    except SemfocusError:
        raise
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        csv.Error,
    ) as error:  # sums agree, but it is not what publish writes
        raise CorruptData(f"{folder} has a table without the columns or fields of one ({error!r:.80})") from error


def _runs_of(folder: Path, tables: Mapping[str, Iterator[str]]) -> Iterator[tuple[str, Files]]:
    measurements: dict[str, Files] = {}
    for line in tables[MEASUREMENTS]:
        fields = safe_json.decode(line.encode(), f"{folder / MEASUREMENTS}")
        content = fields.get("base64")
        data = fields["text"].encode() if content is None else base64.b64decode(content)
        measurements.setdefault(fields["run"], {})[fields["file"]] = data
    evaluations = cells.csv_rows(tables[EVALUATIONS])
    names = next(evaluations, [])
    by_run = itertools.groupby(evaluations, key=lambda row: row[0])
    waiting = next(by_run, None)
    listed = cells.csv_rows(tables[RUNS])
    columns = next(listed, [])
    for texts in listed:
        row = dict(zip(columns, texts, strict=True))
        run_id = row["run"]
        logs = {METRICS: b"", TIMING: b""}
        if waiting is not None and waiting[0] == run_id:
            logs = cells.logs_of(names, waiting[1], f"{folder / EVALUATIONS}")
            waiting = next(by_run, None)
        rows = logs[METRICS].count(b"\n")
        if str(rows) != row["evaluations"]:
            raise CorruptData(
                f"{folder / EVALUATIONS} has {rows} rows of run {run_id}, and {RUNS} says {row['evaluations']:.20}; "
                "publish the runs again"
            )
        files = {CONFIG: row["config"].encode(), METRICS: logs[METRICS], TIMING: logs[TIMING]}
        yield run_id, files | {STATUS: row["status"].encode()} | measurements.pop(run_id, {})
    if waiting is not None or measurements:
        raise CorruptData(f"{folder} has rows of runs that {RUNS} does not list; write the tables again")


def _tables(folder: Path) -> dict[str, Iterator[str]]:
    listed = read_manifest(folder).get("tables")
    tables: dict[str, Iterator[str]] = {}
    for name in TABLES:
        path, about = folder / name, listed.get(name) if isinstance(listed, dict) else None
        data = safe_json.read(path, MAX_TABLE_BYTES)
        if data is None or not isinstance(about, dict):
            raise CorruptData(f"{path} is missing, or its manifest does not list it; publish the runs again")
        actual = PackedFile.of(data)
        if (actual.bytes, actual.sha256) != (about.get("bytes"), about.get("sha256")):
            raise CorruptData(
                f"{path} is not the table that was published: it was cut or edited (SHA-256 {actual.sha256[:12]}..., "
                f"published {str(about.get('sha256'))[:12]}...). Restore it, or publish the runs again"
            )
        tables[name] = _lines(data, str(path))
    return tables


def _lines(data: bytes, name: str) -> Iterator[str]:
    reader = xz.Reader(io.BytesIO(data), name, MAX_BYTES)
    parts: list[bytes] = []  # of a line whose end is not read yet
    while block := reader.read_at_most(2**20):
        *ends, rest = block.split(b"\n")
        for end in ends:
            yield f"{b''.join((*parts, end)).decode()}\n"
            parts.clear()
        parts.append(rest)
        if len(parts) > MAX_LINE_BLOCKS:
            raise CorruptData(f"{name} has a line of more than {MAX_LINE_BLOCKS} MiB, and is refused")
    if any(parts):
        raise CorruptData(f"{name} ends in the middle of a line")


def _sound_files(run: RunDirectory) -> Files:
    check_run(run)
    return read_files(run)


def _why_no_headings(orders: Iterable[tuple[str, ...]]) -> str:
    """Why the fields of a run cannot be headings; empty where they can."""
    formulas = [name for order in orders for name in order if without_formula(name) != name]
    return f"a field is called {formulas[0]!r:.40}, which a spreadsheet would take for a formula" if formulas else ""


def _why_not_as_it_was(files: Files, run_id: str, names: Sequence[str]) -> str:
    """Why the tables cannot hold a run; empty where they can."""
    try:
        back = cells.round_trip(_logs(files), run_id, names)
    except SemfocusError as error:
        return str(error)
    for name in (METRICS, TIMING):
        if back[name] != files[name]:
            return (
                f"{name} is not written as semfocus writes it, or has its fields in another order than other runs, "
                "and would not come back to the bit"
            )
    return ""


def _logs(files: Files) -> Files:
    return {name: files[name] for name in (METRICS, TIMING)}


def _run_rows(runs: Mapping[str, Files]) -> Iterator[str]:
    yield cells.csv_line([*_COLUMNS, "config", "status"])
    for run_id, files in runs.items():
        config, status = json.loads(files[CONFIG])["config"], json.loads(files[STATUS])
        timing = files[TIMING].splitlines()
        seconds = json.loads(timing[-1]).get("seconds", "") if timing else ""
        facts = [status.get(name, "") for name in FACTS]
        known = [run_id, status["state"], config["task"]["name"], config["attention"]["mechanism"], config["seed"]]
        known += [config.get("precision", ""), *facts, seconds, files[METRICS].count(b"\n")]
        shown = [without_formula(str(value)) for value in known]  # for people: the documents beside are read back
        yield cells.csv_line([*shown, files[CONFIG].decode(), files[STATUS].decode()])


def _measurement_lines(runs: Mapping[str, Files]) -> Iterator[str]:
    for run_id, files in runs.items():
        for name, data in files.items():
            if name not in (CONFIG, METRICS, TIMING, STATUS):
                is_text = name.endswith(".json")
                content = {"text": data.decode()} if is_text else {"base64": base64.b64encode(data).decode()}
                yield json.dumps({"run": run_id, "file": name, **content}) + "\n"


def _machines(runs: Mapping[str, Files]) -> dict[str, dict[str, int]]:
    """How many runs there are of each device, PyTorch and precision."""
    statuses = [json.loads(files[STATUS]) for files in runs.values()]
    configs = [json.loads(files[CONFIG])["config"] for files in runs.values()]
    counted: dict[str, Callable[[], Counter[str]]] = {
        "devices": lambda: Counter(str(status.get("device_name", "unknown")) for status in statuses),
        "torch": lambda: Counter(str(status.get("torch", "unknown")) for status in statuses),
        "precisions": lambda: Counter(str(config.get("precision", "fp32")) for config in configs),
    }
    return {name: dict(sorted(count().items())) for name, count in counted.items()}


def _compressed(lines: Iterator[str]) -> bytes:
    def pieces() -> Iterator[bytes]:
        data = bytearray()
        for line in lines:
            data += line.encode()
            if len(data) > _PIECE_BYTES:
                yield bytes(data)
                data.clear()
        yield bytes(data)

    return b"".join(xz.compress_all(pieces()))
