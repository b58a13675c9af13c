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
from semfocus.store import Entry, RunDirectory, RunStore, read_measurement
from semfocus.store.measurements import measurement_names
from semfocus.training.objective import CLASSIFICATION, Learned, Objective, get_objective

THRESHOLD = CLASSIFICATION.learned.threshold  # training accuracy at which a classifier counts as converged
FIELDS = {"task.name": str, "attention.mechanism": str, "training.epochs": int, "seed": int}  # no record without


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
    def objective(self) -> Objective:
        """What the run was trained to do; runs that do not say it are classifiers."""
        return get_objective(self.config.get("objective", CLASSIFICATION.name))

    @property
    def converged_at(self) -> float | None:
        """The first epoch at which the run has learned, as its objective says; None if there is none."""
        return self.first_reached(self.objective.learned)

    @property
    def ended(self) -> bool:
        """Whether the run counts: done, or diverged (which counts as never converged)."""
        return self.state in ("done", "diverged")

    def column(self, name: str) -> Column:
        """All values of a metric, one an evaluation; empty without rows."""
        metrics = self.metrics
        return metrics.column(name) if isinstance(metrics, Metrics) and len(metrics) else np.empty(0)

    def first_at(self, level: float) -> float | None:
        """The first epoch at which training accuracy is at `level` or above; None if there is none.

        An objective that is not learned by a share has its own threshold instead of `level`.
        """
        return self.first_reached(self.objective.learned.at(level))

    def first_reached(self, goal: Learned) -> float | None:
        """The first epoch at which a goal is reached; None if there is none."""
        there = np.flatnonzero(goal.reached(self.column(goal.column)))
        return self.column("epoch")[there[0]].item() if len(there) else None

    def final(self, name: str) -> float | None:
        """The last value of a metric; None if the run does not measure it."""
        return self.metrics[-1].get(name) if len(self.metrics) else None

    def best(self, name: str) -> float | None:
        """The largest value of a metric; None if the run does not measure it."""
        return np.fmax.reduce(self.column(name)).item() if self.final(name) is not None else None


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

    by_run: dict[str, dict[str, dict[str, Any]]]
    faults: list[Fault]


def load_measurements(store: RunStore, records: Sequence[Record]) -> Measured:
    """The measurements of these runs; a damaged one spoils nothing but itself."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    faults: list[Fault] = []
    for record in records:
        run = RunDirectory(store.root / record.id)
        try:
            names = measurement_names(run)
        except SemfocusError as error:
            faults.append(Fault(record.id, f"corrupt: {error}"))
            continue
        for name in names:
            try:
                payload = read_measurement(run, name)
            except SemfocusError as error:
                faults.append(Fault(record.id, f"corrupt: {error}"))
            else:
                found.setdefault(record.id, {})[name] = payload or {}
    return Measured(found, faults)


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
    _check(metrics, config["training"]["epochs"], get_objective(config.get("objective", CLASSIFICATION.name)))
    return Record(entry.name, config, metrics, entry.state, read_seconds(run))


def _check(metrics: Metrics, horizon: int, objective: Objective) -> None:
    """What everything after this relies on: the columns are there, epochs and shares are within their bounds."""
    if not len(metrics):
        return
    for name in ("epoch", *objective.columns):
        if name not in metrics.columns or metrics.column(name).dtype.kind not in "if":
            raise CorruptData(f"metrics.jsonl has no numbers called {name} in every row")
    bounds: dict[str, tuple[float, float]] = {"epoch": (np.nextafter(0, 1), horizon)}
    bounds |= {name: metric.bounds for name, metric in objective.columns.items() if metric.is_share}
    for name, (low, high) in bounds.items():
        values = metrics.column(name)
        wrong = values[~((values >= low) & (values <= high))]
        if len(wrong):
            raise CorruptData(f"metrics.jsonl has {name} = {wrong[0]}, outside of {low:.0f} .. {high}")
