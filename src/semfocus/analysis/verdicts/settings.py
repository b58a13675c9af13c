"""The settings that claims are judged on: comparable runs that ended, by mechanism and seed.

    settings = settings_from(records)
    choose(settings, "listops", {"model.blocks": 15})      the setting nearest to the paper's that has 15 blocks
    choose(settings, "parity", level=0.95)                 also with runs that stop at 95 % training accuracy

Runs are selected by their configuration, never by the name of a study. The distance of a setting from the paper's is
the number of fields that differ from the recipe `paper`; quirks of the paper's code count less than any other field,
and those that the recipe `authors` turns on less than those that `clean` turns off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from semfocus import recipes
from semfocus.analysis.comparability import Settings, comparability_key, settings_of, task_name
from semfocus.analysis.multiple import pairs_needed
from semfocus.analysis.paired import PairedTest
from semfocus.analysis.records import Record
from semfocus.analysis.survival import ConvergenceTimes
from semfocus.tasks import get_task

# The eight tasks of the paper. Claims are about these: a task added to the package or by a user changes no verdict.
TASKS = (
    "parity", "even_pairs", "missing_duplicate", "cycle_navigation",
    "stack_manipulation", "modular_arithmetic", "solve_equation", "listops",
)  # fmt: skip
FULL, TOPK = "full", "topk:5"
QUIRKS = frozenset(
    f"{part}.{name}"
    for part, names in {
        "model": ("padding_visible", "pad_to_multiple", "dropout_in_evaluation", "first_norm_exact"),
        "training": ("drop_one_row",),
    }.items()
    for name in names
)
STOP = "training.stop_accuracy"
STOPS_EARLY = (STOP, "training.patience")
_SHOWN = 4


@dataclass(frozen=True, eq=False)
class Setting:
    """Comparable runs that ended."""

    key: str
    task: str
    fields: Settings
    departures: Mapping[str, Any]  # the fields that are not as in the paper
    seq_len: Any  # of the data, as recorded with the first run
    arms: dict[str, dict[int, Record]] = field(default_factory=dict)  # by mechanism and seed
    tests: dict[Any, PairedTest] = field(default_factory=dict)  # cached: several claims use the same ones
    known_times: dict[tuple[str, float], ConvergenceTimes] = field(default_factory=dict)  # cached, too
    siblings: list[Setting] = field(default_factory=list)  # differ in where runs stop alone
    known_pools: dict[float, Setting] = field(default_factory=dict)  # cached: what `until` gives
    stopped_at: tuple[float, ...] = ()  # where runs stop that siblings have added

    def seeds(self, *mechanisms: str, usable: Callable[[Record], bool] = lambda record: True) -> list[int]:
        """The seeds for which each of these mechanisms has a run that ended and is usable."""
        arms = [
            {seed for seed, record in self.arms.get(mechanism, {}).items() if usable(record)}
            for mechanism in mechanisms
        ]
        return sorted(set.intersection(*arms)) if arms else []

    def times(self, mechanism: str, level: float) -> ConvergenceTimes:
        """Epochs to a training accuracy, by seed; a diverged run never reaches it."""
        if (mechanism, level) not in self.known_times:
            runs = self.arms.get(mechanism, {})
            epochs = {seed: None if has_diverged(run) else run.first_at(level) for seed, run in runs.items()}
            self.known_times[mechanism, level] = self.as_times(epochs)
        return self.known_times[mechanism, level]

    def as_times(self, epochs: Mapping[int, float | None]) -> ConvergenceTimes:
        return ConvergenceTimes.of(epochs, horizon=float(self.fields["training.epochs"]))

    def ids(self, seeds: Sequence[int], *mechanisms: str) -> frozenset[str]:
        return frozenset(self.arms[mechanism][seed].id for mechanism in mechanisms for seed in seeds)

    @property
    def precision(self) -> str:
        """One for all runs of a setting: runs of different precisions are never compared."""
        return str(self.fields["precision"])

    @property
    def stops_early(self) -> bool:
        """Whether runs may end before their last epoch: claims about final accuracy do not apply to them."""
        return any(self.fields.get(name) is not None for name in STOPS_EARLY)

    @property
    def stop(self) -> float:
        """The training accuracy at which runs stop; infinite where they go on."""
        value = self.fields.get(STOP)
        return math.inf if value is None else float(value) if isinstance(value, (int, float)) else 0.0

    def until(self, level: float) -> Setting:
        """With the runs of siblings that stop at this training accuracy or above.

        Until it stops, such a run is the run that goes on: same data, same steps. Where nothing is read of a run but
        when it gets to `level`, it counts as that one does. Of two runs of one mechanism and seed the own one counts.
        """
        if not self.siblings:
            return self
        if level not in self.known_pools:
            arms, added = dict(self.arms), list[float]()
            for other in sorted(self.siblings, key=lambda other: -other.stop):
                for mechanism, runs in other.arms.items() if other.stop >= level else ():
                    own = arms.get(mechanism, {})
                    added += [other.stop] if runs.keys() - own.keys() else []
                    arms[mechanism] = runs | own
            stopped_at = tuple(sorted({*added}))
            pool = replace(self, arms=arms, tests={}, known_times={}, known_pools={}, stopped_at=stopped_at)
            self.known_pools[level] = pool if added else self
        return self.known_pools[level]

    def differs(self, changes: Mapping[str, Any] = {}) -> tuple[list[str], list[str]]:
        """Fields that differ from the paper, except the wanted `changes`: other fields, and the paper's quirks."""
        others = sorted(name for name in self.departures if name not in changes)
        return [name for name in others if name not in QUIRKS], [name for name in others if name in QUIRKS]

    def lacks(self, quirks: Sequence[str]) -> list[str]:
        """Those of the quirks that are off here."""
        return [name for name in quirks if not self.departures[name]]

    def note(self, changes: Mapping[str, Any] = {}) -> str:
        """The same in words; empty if nothing differs."""
        fields, quirks = self.differs(changes)
        texts = ["clean recipe"] if self.lacks(quirks) else []
        texts += ["more of the authors' quirks"] if len(self.lacks(quirks)) < len(quirks) else []
        texts += [f"{name} = {self.departures[name]}" for name in fields[:_SHOWN]]
        texts += [f"with runs that stop at {level:.4g}" for level in self.stopped_at if level < math.inf]
        return ", ".join(texts) + (f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else "")


def has_diverged(record: Record) -> bool:
    """Whether a run diverged: it then counts as never reaching anything."""
    return record.state == "diverged"


def settings_from(records: Sequence[Record]) -> list[Setting]:
    """The settings of all runs that ended, in the order of their keys.

    Of two runs with the same seed and mechanism the one with the smaller id counts.
    """
    settings: dict[str, Setting] = {}
    for record in sorted((record for record in records if record.ended), key=lambda record: record.id):
        key = comparability_key(record.config)
        if key not in settings:
            fields = settings_of(record.config)
            task = task_name(fields)
            settings[key] = Setting(key, task, fields, departures(task, fields), _seq_len(record))
        settings[key].arms.setdefault(record.mechanism, {}).setdefault(record.seed, record)
    families: dict[str, list[Setting]] = {}
    for setting in settings.values():
        others = {name: value for name, value in setting.fields.items() if name != STOP}
        families.setdefault(json.dumps(others, sort_keys=True, default=str), []).append(setting)
    for family in families.values():
        for setting in family:
            setting.siblings.extend(other for other in family if other is not setting)
    return [settings[key] for key in sorted(settings)]


def choose(
    settings: Sequence[Setting],
    task: str,
    changes: Mapping[str, Any] = {},
    mechanisms: Sequence[str] | Callable[[Setting], Sequence[str]] = (FULL, TOPK),
    usable: Callable[[Record], bool] = lambda record: True,
    to_the_end: bool = False,
    level: float | None = None,
) -> Setting | None:
    """The setting of this task that has `changes` and otherwise differs least from the paper's.

    Settings with enough pairs of runs for a test come first. All `mechanisms` must have runs; a function gives them by
    setting. `to_the_end` requires runs that trained for all their epochs. `level` says that nothing is read of a run
    but when it gets to this training accuracy: runs that stop there or above count too (`Setting.until`), and no
    others that stop. None if no setting has a pair.
    """
    if level is not None:
        settings = [setting.until(level) for setting in settings if setting.stop >= level]

    def pairs_of(setting: Setting) -> int:
        wanted = mechanisms(setting) if callable(mechanisms) else mechanisms
        return len(setting.seeds(*wanted, usable=usable))

    def order(setting: Setting) -> tuple[Any, ...]:
        pairs = pairs_of(setting)
        fields, quirks = setting.differs(changes)
        lacking = len(setting.lacks(quirks))
        return pairs < pairs_needed(1), len(fields), lacking, len(quirks), -pairs, setting.key

    fitting = [
        setting
        for setting in settings
        if setting.task == task
        and all(setting.fields.get(name) == value for name, value in changes.items())
        and not (to_the_end and setting.stops_early)
        and pairs_of(setting)
    ]
    return min(fitting, key=order, default=None)


def sibling(settings: Sequence[Setting], setting: Setting, changes: Mapping[str, Any]) -> Setting | None:
    """The setting that differs from this one in these fields alone."""
    wanted = {**setting.fields, **changes}
    return next((other for other in settings if other.fields == wanted), None)


def departures(task: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not as in the paper; empty for a task that the paper does not have."""
    wanted = _paper_settings(task) if task in TASKS else {}
    return {name: fields[name] for name, value in wanted.items() if name in fields and fields[name] != value}


@cache
def _paper_settings(task: str) -> Settings:
    config = recipes.configure(task, FULL, 0, "paper").model_dump(mode="json")
    options = json.loads(json.dumps(get_task(task).options))
    wanted = settings_of(config | {"data": {"options": options}})
    return {name: value for name, value in wanted.items() if name != "precision"}


def _seq_len(record: Record) -> Any:
    sizes = record.config.get("sizes")
    return sizes.get("seq_len") if isinstance(sizes, dict) else None
