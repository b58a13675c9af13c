"""A run as analysis sees it: its configuration, its metrics and its state.

    records, faults = read_records(store.entries())

A record is any run that can be read, in any state. Everything else in the store is a fault that says what is wrong.
`analysis.results` reads a whole store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from semfocus.analysis.metrics import Column, Metrics, read_metrics, read_seconds
from semfocus.config.run import check_recorded_id
from semfocus.errors import CorruptData, SemfocusError, UsageError
from semfocus.measurements import Measurement, Measurements, read_all
from semfocus.store import Entry, RunDirectory
from semfocus.store.directory import check_end
from semfocus.training.objective import CLASSIFICATION, Learned, Objective, get_objective

THRESHOLD = CLASSIFICATION.learned.threshold  # training accuracy at which a classifier counts as converged
FIELDS = {"task.name": str, "attention.mechanism": str, "training.epochs": int, "seed": int}  # required in config.json

MAX_EPOCHS = 10**7
MAX_FIELDS, MAX_METRICS = 5000, 500


@dataclass(frozen=True, eq=False)
class Record:
    """One run, read from its directory."""

    id: str
    config: dict[str, Any]
    metrics: Sequence[Mapping[str, Any]]  # rows, kept by column
    state: str
    seconds: float  # of training, by the run's own clock
    why: str = ""  # what the store says about the state

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Metrics):
            object.__setattr__(self, "metrics", Metrics.of(self.metrics))

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
        """All values of a metric, one per evaluation; empty without rows."""
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

    def selected(self, name: str) -> float | None:
        """The value of a metric that counts: at the lowest held-out loss if the run stopped by that, else the last."""
        losses = self.column("heldout_loss")
        if self.config["training"].get("patience_on") != "validation" or not np.isfinite(losses).any():
            return self.final(name)
        return self.metrics[int(np.nanargmin(losses))].get(name)

    def best(self, name: str) -> float | None:
        """The best value of a metric, the smallest where lower is better; None if the run does not measure it."""
        metric = self.objective.columns.get(name)
        choose = np.fmin if metric is not None and not metric.higher_is_better else np.fmax
        return choose.reduce(self.column(name)).item() if self.final(name) is not None else None


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says of the data it was given: rows, classes, baselines; empty of a task that draws its examples."""
    facts = config.get("facts")
    return facts if isinstance(facts, dict) else {}


class Fault(NamedTuple):
    """Something that is not shown as a run or a measurement, and why."""

    name: str  # of the entry in the store, or the id of the run
    kind: str  # "corrupt", "unrecognised", "empty" or "repeated"
    what: str

    @property
    def text(self) -> str:
        """`corrupt: metrics.jsonl has ...`."""
        return f"{self.kind}: {self.what}"


def read_records(entries: Iterable[Entry]) -> tuple[list[Record], list[Fault]]:
    """Read the runs among these entries; every other entry becomes a fault."""
    records: list[Record] = []
    faults: list[Fault] = []
    for entry in entries:
        if entry.config is None:
            faults.append(Fault(entry.name, entry.state, entry.why))
            continue
        try:
            records.append(_record(entry, entry.config))
        except UsageError as error:  # of an objective that nobody has registered
            faults.append(Fault(entry.name, "unrecognised", str(error)))
        except SemfocusError as error:
            faults.append(Fault(entry.name, "corrupt", str(error)))
    return records, faults


def read_run_measurements(runs: Iterable[RunDirectory]) -> tuple[Measurements, list[Fault]]:
    """Read the measurements of these runs; a damaged one becomes a fault and does not affect the others."""
    measurements: dict[str, dict[str, Measurement]] = {}
    faults: list[Fault] = []
    for run in runs:
        stored = read_all(run)
        if stored.measurements:
            measurements[run.id] = stored.measurements
        faults += [Fault(run.id, "corrupt", one.text) for one in stored.unreadable]
    return measurements, faults


def _record(entry: Entry, config: dict[str, Any]) -> Record:
    _check_size(config)
    for field, kind in FIELDS.items():
        value: Any = config
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if type(value) is not kind:
            raise CorruptData(f"config.json has {field} = {value!r:.40}, which is no {kind.__name__}")
    if not 1 <= config["training"]["epochs"] <= MAX_EPOCHS:
        epochs = config["training"]["epochs"]
        raise CorruptData(
            f"config.json has training.epochs = {epochs}, which must be positive and at most {MAX_EPOCHS}"
        )
    check_recorded_id(config, entry.name, entry.is_sealed)
    run = RunDirectory(entry.path)
    saved = run.saved()
    metrics = read_metrics(run, saved)
    _check(metrics, config["training"]["epochs"], _objective_of(config))
    if entry.state != "running":
        check_end(entry.status, metrics.column("step")[-1].item() if len(metrics) else 0)
    return Record(entry.name, config, metrics, entry.state, read_seconds(run, saved), entry.why)


def _check_size(config: Mapping[str, Any]) -> None:
    """Check that a configuration has no more fields than a table can have columns."""
    waiting: list[Any] = [config]
    fields = 0
    while waiting:
        item = waiting.pop()
        parts = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
        waiting += parts
        fields += len(parts)
        if fields > MAX_FIELDS:
            raise CorruptData(f"config.json has more than {MAX_FIELDS} fields")


def _check(metrics: Metrics, horizon: int, objective: Objective) -> None:
    """Check what all analysis relies on: the columns exist, and epochs and shares are within their bounds."""
    if not len(metrics):
        return
    if len(metrics.columns) > MAX_METRICS:
        raise CorruptData(f"metrics.jsonl has more than {MAX_METRICS} columns")
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


def _objective_of(config: Mapping[str, Any]) -> Objective:
    name = config.get("objective", CLASSIFICATION.name)
    if not isinstance(name, str):
        raise CorruptData(f"config.json has objective = {name!r:.40}, which is not a name")
    return get_objective(name)
