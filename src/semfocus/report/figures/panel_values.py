"""What a declared panel names, read from runs: fields of a configuration, metrics, fields of a stored measurement.

A field is dotted: `model.blocks`. A metric is a column of metrics.jsonl, `final.` or `best.` of one, `converged_at`,
`speed_up`, `seconds`, `head_start.25`, or a field of a measurement: `mask_stability.kept`. Where a measurement has
percentiles, `PERCENTILE` is taken, unless the field names one: `mask_stability.separation.50`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from semfocus.analysis.comparability import (
    default_of,
    differing,
    setting_text,
    setting_title,
    settings_of,
    task_label,
)
from semfocus.analysis.groups import Group, baselines_of, mechanism_order
from semfocus.analysis.head_start import tokens_of
from semfocus.analysis.records import Record
from semfocus.errors import UsageError
from semfocus.measurements import Measurements
from semfocus.measurements.kinds import USUAL_PERCENT
from semfocus.report.figures import language_values
from semfocus.report.figures.lines import Quantiles
from semfocus.report.figures.style import STYLES, MechanismStyle, Theme, mechanism_style, step_style
from semfocus.tasks.registry import option_defaults
from semfocus.training.objective import CLASSIFICATION, known_columns
from semfocus.training.objective import is_share as is_share_column

MECHANISM, TASK, OPTIONS = "attention.mechanism", "task.name", "task.options."
NORMALISER = "attention.normaliser"
PERCENTILE = USUAL_PERCENT
CONFIG_PARTS = ("task", "attention", "model", "training")
LABELS = {
    "epoch": "epoch",
    "converged_at": f"epochs to {CLASSIFICATION.learned.text()}",
    "speed_up": "times fewer epochs than full attention",
    "mask_stability.kept": "kept keys that stay",
    "mask_stability.noise": "noise / spread of the embeddings",
    "surface.squares": "half side of the square",
    "dispersion.checkpoints.0.delta": "dispersion at the start",
    "lengths.area": "accuracy over the logarithm of the length",
    "kept_keys.mean": "keys with a weight, on average",
    "smoothness.lengths": "tokens",
    "smoothness.constants": "local Lipschitz constant of attention",
    "smoothness.exponent": "exponent of its growth with the length",
    **language_values.LABELS,
}
SHARES = ("mask_stability.kept", "lengths.area", "induction.best_heads", "induction.accuracies")  # of measurements
T = TypeVar("T")
Key = tuple[Any, ...]  # values of several fields


class Panel(Protocol):
    """What is read of a panel that an experiment declares."""

    @property
    def title(self) -> str: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def along(self) -> str: ...
    @property
    def lines(self) -> tuple[str, ...]: ...
    @property
    def each(self) -> tuple[str, ...]: ...
    @property
    def quantiles(self) -> Quantiles: ...


class Results(Protocol):
    """What is read of a store's results."""

    @property
    def root(self) -> Path: ...
    @property
    def records(self) -> Sequence[Record]: ...
    @property
    def groups(self) -> Sequence[Group]: ...
    @property
    def measurements(self) -> Measurements: ...


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of one panel, and everything that is known of them."""

    records: Sequence[Record]
    groups: Sequence[Group]
    measurements: Measurements

    @property
    def horizon(self) -> float:
        return float(max((record.horizon for record in self.records), default=1))

    @property
    def seeds(self) -> int:
        return len({record.seed for record in self.records})

    @property
    def baselines(self) -> Mapping[str, float]:
        """Accuracies that need no learning, of the first run's task."""
        return baselines_of(self.records[0].config) if self.records else {}

    def only(self, records: Sequence[Record]) -> Runs:
        return Runs(records, self.groups, self.measurements)

    def split(self, fields: Sequence[str]) -> dict[Key, Runs]:
        """The runs by their values of these fields, in order of the values."""
        parts: dict[Key, list[Record]] = {}
        for record in self.records:
            parts.setdefault(tuple(field_value(record, field) for field in fields), []).append(record)
        ordered = sorted(parts, key=lambda key: [rank(*pair) for pair in zip(fields, key, strict=True)])
        return {key: self.only(parts[key]) for key in ordered}

    def values(self, metric: str) -> list[float]:
        """The metric of each run that has it; NaN for a run that never converged.

        `speed_up` is not a property of one run: it is given once for each group of comparable runs.
        """
        if metric == "speed_up":
            arms = [(arm, group) for group in self.groups for arm in group.comparison.arms]
            own = {record.id for record in self.records}
            ratios = [
                arm.speed_up.ratio.value
                for arm, group in arms
                if arm.speed_up is not None and any(run.id in own for run in group.runs(arm.mechanism))
            ]
            return [ratio for ratio in ratios if ratio is not None]
        return [value for record in self.records if (value := self._value(record, metric)) is not None]

    def _value(self, record: Record, metric: str) -> float | None:
        kind, _, name = metric.partition(".")
        if kind == language_values.HEAD_START:
            return language_values.head_start_of(record, self.groups, float(name) / 100)
        if metric == "seconds":
            return record.seconds if record.ended else None
        if metric == "converged_at":
            return (math.nan if record.converged_at is None else record.converged_at) if record.ended else None
        if kind in ("final", "best"):
            return (record.final(name) if kind == "final" else record.best(name)) if record.ended else None
        value = self.measured(record, metric)
        return number(value) if not isinstance(value, list) else _mean(value)

    def percentiles(self, field: str) -> list[str]:
        """The percentiles that a field of a measurement has; none for a single number."""
        values = [self._stored(record, field) for record in self.records]
        return list(dict.fromkeys(str(name) for value in values if isinstance(value, Mapping) for name in value))

    def measured(self, record: Record, field: str) -> Any:
        """The value of a measurement's field, or the values of a metric along training; None where there is none."""
        if field == language_values.TOKENS:
            return tokens_of(record).tolist()
        if field in known_columns():
            return record.column(field).tolist()
        value = self._stored(record, field)
        return value.get(PERCENTILE) if isinstance(value, Mapping) else value

    def _stored(self, record: Record, field: str) -> Any:
        kind, *names = field.split(".")
        measurement = self.measurements.get(record.id, {}).get(kind)
        if measurement is not None and names and names[0] in measurement.DERIVED:
            return getattr(measurement, names[0])
        value: Any = None if measurement is None else measurement.document
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


@dataclass(frozen=True, eq=False)
class Sheet:
    """One panel with its runs, and where it is drawn."""

    panel: Panel
    runs: Runs
    root: Path  # of the store
    stem: Path
    formats: Sequence[str]
    theme: Theme

    def columns(self) -> list[tuple[str, Runs]]:
        """The runs of each value of `each`, with a title; a field that has one value is left out of the titles."""
        parts = self.runs.split(self.panel.each)
        varied = [i for i, field in enumerate(self.panel.each) if field == TASK or len({key[i] for key in parts}) > 1]
        fields = [self.panel.each[i] for i in varied]
        return [(key_text(fields, tuple(key[i] for i in varied)), runs) for key, runs in parts.items()]

    def lines(self, runs: Runs) -> list[tuple[str, MechanismStyle, Runs]]:
        """Label, style and runs of each line; a line has the same style in all columns."""
        fields = self.panel.lines
        styles = line_styles(fields, list(self.runs.split(fields)))
        return [(key_text(fields, key), styles[key], own) for key, own in runs.split(fields).items()]

    def parts(self, items: Sequence[T], most: int) -> list[tuple[Path, Sequence[T]]]:
        """At most so many items for each file: `stem`, or `stem`-1, `stem`-2 and so on."""
        parts = [items[i : i + most] for i in range(0, len(items), most)]
        if len(parts) == 1:
            return [(self.stem, parts[0])]
        return [(self.stem.with_name(f"{self.stem.name}-{i}"), part) for i, part in enumerate(parts, start=1)]


def field_value(record: Record, field: str) -> Any:
    """The value of a dotted field of a run's configuration; None where it has none.

    What was not given has its default: two runs that say so and that do not are the same run.
    """
    if field == TASK:
        return task_label(record.config)
    if field == language_values.PARAMETERS:
        return language_values.parameters_of(record.config["model"])
    value: Any = record.config
    for name in field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None and field.startswith(OPTIONS):
        value = option_defaults(str(record.config["task"]["name"])).get(field.removeprefix(OPTIONS))
    value = default_of(field) if value is None else value
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def number(value: Any) -> float | None:
    """A finite number, or None for anything else: a measurement may hold anything."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def rank(field: str, value: Any) -> tuple[Any, ...]:
    """A sort key: mechanisms in the order of legends, numbers by size, then texts."""
    if field == MECHANISM:
        return mechanism_order(str(value))
    if field == NORMALISER:  # the usual one first
        return (str(value) != "softmax", str(value))
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))


def key_text(fields: Sequence[str], key: Key) -> str:
    """`topk:5, blocks 6`: names as they are, other values with the name of their field."""
    pairs = zip(fields, key, strict=True)
    return ", ".join(str(value) if field in (MECHANISM, TASK) else setting_text(field, value) for field, value in pairs)


def metric_text(metric: str) -> str:
    """A metric or field as an axis label."""
    columns = known_columns()
    kind, _, name = metric.partition(".")
    if kind in ("final", "best") and name in columns:
        return f"{kind} {columns[name]}"
    if kind in CONFIG_PARTS:
        return setting_title(metric)
    return LABELS.get(metric) or columns.get(metric) or metric.replace("_", " ").replace(".", ", ")


def is_share(metric: str) -> bool:
    """Whether values are shares of 1, written in per cent."""
    return is_share_column(metric.rpartition(".")[2]) or metric in SHARES


def check_alike(title: str, name: str, records: Sequence[Record]) -> None:
    """Refuse a line of runs that differ in more than their seed: their median would mean nothing."""
    seeds = [record.seed for record in records]
    varied = differing([{**settings_of(record.config), MECHANISM: record.mechanism} for record in records])
    if not varied and len(set(seeds)) == len(seeds):
        return
    fields = ", ".join(varied) or "nothing but their ids"
    raise UsageError(f"panel {title!r}: the line {name!r} mixes runs that differ in {fields}; name it in lines or each")


def line_styles(fields: Sequence[str], keys: Sequence[Key]) -> dict[Key, MechanismStyle]:
    """A style for each line: a mechanism has its own; the other fields change its shade and dash."""
    place = list(fields).index(MECHANISM) if MECHANISM in fields else None
    rests = list(dict.fromkeys(_without(key, place) for key in keys))
    styles = {}
    for key in keys:
        step = rests.index(_without(key, place))
        if place is not None:
            styles[key] = step_style(mechanism_style(str(key[place])), step)
        else:
            styles[key] = step_style(STYLES[step % len(STYLES)], step // len(STYLES))
    return styles


def _without(key: Key, place: int | None) -> Key:
    return key if place is None else key[:place] + key[place + 1 :]


def _mean(values: Sequence[Any]) -> float | None:
    known = [known for value in values if (known := number(value)) is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
