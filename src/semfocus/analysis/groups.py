"""Comparable runs in groups: the runs of a group differ in seed and mechanism only.

    for group in group_records(records).groups:
        print(group.name, group.comparison.sentences())

A group is named by its task and by the settings that differ between the groups of that task: `listops, blocks 6`. Its
mechanisms have one order everywhere: `mechanism_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from semfocus.analysis.comparability import (
    Settings,
    comparability_key,
    differing,
    setting_text,
    settings_of,
    task_label,
)
from semfocus.analysis.comparison import Comparison, compare_records
from semfocus.analysis.records import Fault, Record, facts_of
from semfocus.attention.base import size_fields
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.errors import SemfocusError, UsageError
from semfocus.tasks import get_task, task_names
from semfocus.tasks.registry import task_class

FAMILIES = ("full", "topk", "bottomk", "randomk", "banded", "block_local")  # the paper's, in the order of its legends


@dataclass(frozen=True, eq=False)
class Group:
    """Comparable runs."""

    task: str
    details: str  # the settings that differ from other groups of the task; empty for the only group
    settings: Settings
    records: tuple[Record, ...]
    baselines: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.task}, {self.details}" if self.details else self.task

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison of the group's mechanisms."""
        return compare_records(self.name, self.records, self.baselines)

    @cached_property
    def mechanisms(self) -> list[str]:
        return list(dict.fromkeys(record.mechanism for record in self.records))

    def runs(self, mechanism: str) -> list[Record]:
        return [record for record in self.records if record.mechanism == mechanism]

    def only(self, mechanisms: Sequence[str]) -> Group:
        """The same group with the runs of these mechanisms only."""
        kept = tuple(record for record in self.records if record.mechanism in mechanisms)
        return Group(self.task, self.details, self.settings, kept, self.baselines)


@dataclass(frozen=True, eq=False)
class Grouping:
    """All runs in groups, and the copies that belong to none."""

    groups: list[Group]
    repeated: list[Fault]


def group_records(records: Iterable[Record]) -> Grouping:
    """Group runs by task and settings; sort the runs of a group by mechanism and seed."""
    ordered = sorted(records, key=lambda r: (task_label(r.config), mechanism_order(r.mechanism), r.seed, r.id))
    by_key: dict[str, list[Record]] = {}
    first_ids: dict[tuple[str, str, int], str] = {}
    repeated = []
    for record in ordered:
        key = comparability_key(record.config)
        first_id = first_ids.setdefault((key, record.mechanism, record.seed), record.id)
        if first_id != record.id:
            why = f"the same configuration as run {first_id}, which is shown in its place"
            repeated.append(Fault(record.id, "repeated", why))
            continue
        by_key.setdefault(key, []).append(record)
    by_task: dict[str, list[list[Record]]] = {}
    for runs in by_key.values():
        by_task.setdefault(task_label(runs[0].config), []).append(runs)
    return Grouping([group for task, parts in by_task.items() for group in _named(task, parts)], repeated)


def _named(task: str, parts: Sequence[list[Record]]) -> list[Group]:
    """The groups of one task, sorted by the settings in which they differ."""
    pairs = [(settings_of(runs[0].config), runs) for runs in parts]
    names = differing([settings for settings, _ in pairs])
    pairs.sort(key=lambda pair: [_sort_key(pair[0].get(name)) for name in names])
    groups = []
    for settings, runs in pairs:
        details = ", ".join(setting_text(name, settings.get(name)) for name in names)
        groups.append(Group(task, details, settings, tuple(runs), baselines_of(runs[0].config)))
    return groups


def baselines_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies that need no learning. A registered task knows them; a run on given data recorded them.

    A file named by a configuration is not opened: the configuration may come from someone else.
    """
    task = config["task"]
    if task["name"] in task_names() and not task_class(task["name"]).reads_files:
        options = task.get("options")
        try:
            return dict(get_task(task["name"], **(options if isinstance(options, dict) else {})).baselines)
        except (SemfocusError, TypeError, ValueError):
            pass  # this version does not have these options: use the sizes recorded with the run
    recorded = facts_of(config).get("baselines")
    if isinstance(recorded, dict):
        shares = {str(kind): share for kind, share in recorded.items() if type(share) in (int, float)}
        known = {kind: float(share) for kind, share in shares.items() if 0 <= share <= 1}
        if known:
            return known
    sizes = config.get("sizes")
    classes = sizes.get("num_classes") if isinstance(sizes, dict) else None
    return {"chance": 1 / classes} if type(classes) is int and classes > 0 else {}


def short_name(group: Group, among: Sequence[Group]) -> str:
    """The task alone if no other of these groups has the same task, else the full name."""
    return group.task if sum(other.task == group.task for other in among) == 1 else group.name


def base_first(names: Iterable[str]) -> list[str]:
    """Distinct mechanisms in display order: full attention first."""
    return sorted(set(names), key=mechanism_order)


def _sort_key(value: Any) -> tuple[int, float, str]:
    """Numbers by size before texts; the two are never compared with each other."""
    is_number = isinstance(value, (int, float))
    return (0 if is_number else 1, float(value) if is_number else 0.0, str(value))


class MechanismParts(NamedTuple):
    """`banded:5+1g` is ("banded", 5, {"globals": 1}, {}); a variant, `topk:5~0.1`, has the family that it is one of."""

    family: str
    size: int | None  # None: it takes none
    extras: dict[str, int]  # every optional field by name, 0 where it is not used
    marked: dict[str, float]  # {"sigma": 0.1}


def mechanism_parts(text: str) -> MechanismParts | None:
    """The parts of a mechanism in its text form; None where no registered mechanism has this text."""
    try:
        mechanism = parse_mechanism(text)
    except (UsageError, ValueError):
        return None
    extras = {name: getattr(mechanism, name) for name in mechanism.suffixes.values()}
    marked = {name: getattr(mechanism, name) for name in mechanism.marks.values()}
    sizes = [getattr(mechanism, name) for name in size_fields(type(mechanism))]
    return MechanismParts(mechanism.variant_of or mechanism.name, next(iter(sizes), None), extras, marked)


def mechanism_order(text: str) -> tuple[int, tuple[float, ...], int, str]:
    """A sort key: full attention first, then by family, marks and extras (least first) and size; unknown last."""
    parts = mechanism_parts(text)
    if parts is None:
        return len(FAMILIES) + 1, (), 0, text
    rank = FAMILIES.index(parts.family) if parts.family in FAMILIES else len(FAMILIES)
    return rank, (*parts.marked.values(), *parts.extras.values()), parts.size or 0, text
