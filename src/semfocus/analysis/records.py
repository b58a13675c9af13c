"""Runs as analysis sees them: what was asked, what was measured, how it ended.

found = load_records("runs")
found.records      every run that can be read, whatever its state: done, diverged, running, interrupted, ...
found.faults       everything else in the store, and what is wrong with it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from semfocus.analysis.metrics import Column, Metrics, read_metrics, read_seconds
from semfocus.errors import CorruptData, SemfocusError, UsageError
from semfocus.measurements import Measurement, read_all
from semfocus.store import Entry, RunDirectory, RunStore

THRESHOLD = 0.95  # training accuracy at which a run counts as converged, as in the paper
FIELDS = {"task.name": str, "attention.mechanism": str, "training.epochs": int, "seed": int}  # no record without
MEASURED = ("epoch", "train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy")  # in every row


@dataclass(frozen=True, eq=False)
class Record:
    """One run, read from its directory."""

    id: str
    config: dict[str, Any]
    metrics: Sequence[Mapping[str, Any]]  # kept by column; any rows are taken
    state: str
    seconds: float  # spent on it, by its own clock

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Metrics):
            object.__setattr__(self, "metrics", Metrics.of(self.metrics))

    @staticmethod
    def read(run: RunDirectory) -> Record:
        status = run.status() or {"state": "new"}
        return Record(run.id, run.config(), read_metrics(run), status["state"], read_seconds(run))

    @property
    def mechanism(self) -> str:
        return self.config["attention"]["mechanism"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def horizon(self) -> int:
        return self.config["training"]["epochs"]

    @property
    def converged_at(self) -> float | None:
        """The first epoch whose training accuracy is at the threshold; None if there is none."""
        return self.first_at(THRESHOLD)

    @property
    def ended(self) -> bool:
        """Whether the run counts: done, or diverged (which counts as never converged)."""
        return self.state in ("done", "diverged")

    def column(self, name: str) -> Column:
        """All values of a metric, one an evaluation; empty without rows."""
        metrics = self.metrics
        return metrics.column(name) if isinstance(metrics, Metrics) and len(metrics) else np.empty(0)

    def first_at(self, level: float, name: str = "train_accuracy") -> float | None:
        """The first epoch at which a metric is at `level` or above; None if there is none."""
        there = np.flatnonzero(self.column(name) >= level)
        return self.column("epoch")[there[0]].item() if len(there) else None

    def final(self, name: str) -> float | None:
        """The last value of a metric."""
        return self.metrics[-1][name] if len(self.metrics) else None

    def best(self, name: str) -> float | None:
        """The largest value of a metric."""
        return np.fmax.reduce(self.column(name)).item() if len(self.metrics) else None


class Fault(NamedTuple):
    """Something in a store that is not a run that can be read."""

    name: str  # its file name
    what: str  # `corrupt: ...`, `unrecognised: ...` or `empty: ...`


@dataclass(frozen=True)
class Loaded:
    """A whole store, nothing left out: what is not among the records is among the faults."""

    records: list[Record]
    faults: list[Fault]


@dataclass(frozen=True)
class Measured:
    """What was measured on trained models, by run id and name, and the measurements that are damaged."""

    by_run: dict[str, dict[str, Measurement]]
    faults: list[Fault]


def load_measurements(store: RunStore, records: Sequence[Record]) -> Measured:
    """The measurements of these runs; a damaged one spoils nothing but itself."""
    by_run: dict[str, dict[str, Measurement]] = {}
    faults: list[Fault] = []
    for record in records:
        stored = read_all(RunDirectory(store.root / record.id))
        if stored.measurements:
            by_run[record.id] = stored.measurements
        faults += [Fault(record.id, f"corrupt: {unreadable.text}") for unreadable in stored.unreadable]
    return Measured(by_run, faults)


def load_records(store: RunStore | Path | str) -> Loaded:
    """Read everything in a store, in the order of names. One bad directory spoils nothing but itself."""
    store = store if isinstance(store, RunStore) else RunStore(store)
    if not store.root.is_dir():
        raise UsageError(f"{store.root} is not a directory of runs; make some: semfocus compare even_pairs --quick")
    records: list[Record] = []
    faults: list[Fault] = []
    for entry in store.entries():
        if entry.config is None:
            faults.append(Fault(entry.name, f"{entry.state}: {entry.why}"))
            continue
        try:
            records.append(_record(entry, entry.config))
        except SemfocusError as error:
            faults.append(Fault(entry.name, f"corrupt: {error}"))
    return Loaded(records, faults)


def _record(entry: Entry, config: dict[str, Any]) -> Record:
    for field, kind in FIELDS.items():
        value: Any = config
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if type(value) is not kind:
            raise CorruptData(f"config.json has {field} = {value!r:.40}, which is no {kind.__name__}")
    if config["training"]["epochs"] < 1:
        raise CorruptData(f"config.json has training.epochs = {config['training']['epochs']}, which must be positive")
    run = RunDirectory(entry.path)
    metrics = read_metrics(run)
    _check(metrics, config["training"]["epochs"])
    return Record(entry.name, config, metrics, entry.state, read_seconds(run))


def _check(metrics: Metrics, horizon: int) -> None:
    """What everything after this relies on: the columns are there, epochs and shares are within their bounds."""
    if not len(metrics):
        return
    for name in MEASURED:
        if name not in metrics.columns or metrics.column(name).dtype.kind not in "if":
            raise CorruptData(f"metrics.jsonl has no numbers called {name} in every row")
    bounds = {"epoch": (np.nextafter(0, 1), horizon), "train_accuracy": (0, 1), "heldout_accuracy": (0, 1)}
    for name, (low, high) in bounds.items():
        values = metrics.column(name)
        wrong = values[~((values >= low) & (values <= high))]
        if len(wrong):
            raise CorruptData(f"metrics.jsonl has {name} = {wrong[0]}, outside of {low:.0f} .. {high}")
