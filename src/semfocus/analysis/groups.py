"""Runs that may be shown in one curve: the same in everything but seed and mechanism. Others are never mixed.

    for group in grouped(records).groups:
        print(group.name, group.comparison.sentences())

A group is named by its task, and by whatever sets it apart from other groups of that task: `listops, blocks 6`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from semfocus.analysis.comparison import BASE, Comparison, compare_records
from semfocus.analysis.mechanism_order import mechanism_order as order
from semfocus.analysis.records import Record
from semfocus.errors import SemfocusError
from semfocus.tasks import get_task, task_names

Settings = dict[str, Any]  # by dotted name: {"model.blocks": 5}
_PLACE = "place"  # of the data where a configuration does not say what they are
_WORDS = {"training.lr": "learning rate", "data.version": "data version", "data.task": "data"}
_LONGEST = 24  # characters of a value in a name


@dataclass(frozen=True, eq=False)
class Group:
    """Comparable runs."""

    task: str
    details: str  # what sets it apart from other groups of its task; nothing when it is alone
    settings: Settings
    records: tuple[Record, ...]
    baselines: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.task}, {self.details}" if self.details else self.task

    @cached_property
    def comparison(self) -> Comparison:
        """What these runs say, mechanism by mechanism."""
        return compare_records(self.name, self.records, self.baselines)

    @cached_property
    def mechanisms(self) -> list[str]:
        return list(dict.fromkeys(record.mechanism for record in self.records))

    def runs(self, mechanism: str) -> list[Record]:
        return [record for record in self.records if record.mechanism == mechanism]

    def only(self, mechanisms: Sequence[str]) -> Group:
        """The same with these mechanisms alone."""
        kept = tuple(record for record in self.records if record.mechanism in mechanisms)
        return Group(self.task, self.details, self.settings, kept, self.baselines)


@dataclass(frozen=True, eq=False)
class Grouped:
    """All runs, sorted out."""

    groups: list[Group]
    repeated: list[tuple[str, str]]  # runs left out as copies: id, and why


def grouped(records: Iterable[Record]) -> Grouped:
    """Sort runs into groups: by task, then by settings; within a group by mechanism and seed."""
    ordered = sorted(records, key=lambda r: (task_label(r.config), order(r.mechanism), r.seed, r.id))
    found: dict[tuple[str, str], list[Record]] = {}
    seen: dict[tuple[str, str, str, int], str] = {}
    repeated = []
    for record in ordered:
        key = (task_label(record.config), json.dumps(settings_of(record.config), sort_keys=True, default=str))
        own = (*key, record.mechanism, record.seed)
        if own in seen:
            repeated.append((record.id, f"the same configuration as run {seen[own]}, which is shown in its place"))
            continue
        seen[own] = record.id
        found.setdefault(key, []).append(record)
    by_task: dict[str, list[tuple[Settings, list[Record]]]] = {}
    for (task, _), runs in found.items():
        by_task.setdefault(task, []).append((settings_of(runs[0].config), runs))
    groups = [group for task, parts in by_task.items() for group in _named(task, parts)]
    return Grouped(groups, repeated)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Everything that runs of one group share, by dotted name; the data by what they are, not where they lie."""
    parts = {name: value for name, value in config.items() if name not in ("seed", "label", "sizes", "data")}
    task = {name: value for name, value in parts.pop("task", {}).items() if name not in ("name", "options")}
    attention = {name: value for name, value in parts.pop("attention", {}).items() if name != "mechanism"}
    known = config.get("data")
    data = known if isinstance(known, dict) else {_PLACE: config["task"]["name"], **_options(config["task"])}
    return _flat({"data": data, "task": task, "attention": attention, **parts})


def task_label(config: Mapping[str, Any]) -> str:
    """A task's name; of a data file the name without folders and suffix."""
    name = str(config["task"]["name"])
    return PurePath(name).stem if "." in name else name


def setting_text(name: str, value: Any) -> str:
    """`blocks 6`, `padding visible`, `padding visible: no`, `until none`."""
    words = setting_words(name)
    if isinstance(value, bool):
        return words if value else f"{words}: no"
    text = f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
    return f"{words} {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}"


def setting_words(name: str) -> str:
    """`model.head_width` is "head width"."""
    return _WORDS.get(name, name.rsplit(".", 1)[-1].replace("_", " "))


def differing(many: Sequence[Settings]) -> list[str]:
    """The dotted names whose values are not the same in all of these settings, in their order."""
    names = list(dict.fromkeys(name for settings in many for name in settings))
    texts = {name: {json.dumps(settings.get(name), default=str) for settings in many} for name in names}
    return [name for name in names if len(texts[name]) > 1]


def _named(task: str, parts: list[tuple[Settings, list[Record]]]) -> list[Group]:
    apart = differing([settings for settings, _ in parts])
    parts = sorted(parts, key=lambda part: [_rank(part[0].get(name)) for name in apart])
    groups = []
    for settings, runs in parts:
        details = ", ".join(setting_text(name, settings.get(name)) for name in apart)
        groups.append(Group(task, details, settings, tuple(runs), baselines_of(runs[0].config)))
    return groups


def baselines_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies that need no learning. A registered task is asked; of other data just chance is known.

    A file that a configuration names is not opened: the configuration may be a stranger's.
    """
    task = config["task"]
    if task["name"] in task_names():
        try:
            return dict(get_task(task["name"], **_options(task)).baselines)
        except (SemfocusError, TypeError, ValueError):
            pass  # options that this version does not have: fall back on the sizes recorded with the run
    sizes = config.get("sizes")
    classes = sizes.get("num_classes") if isinstance(sizes, dict) else None
    return {"chance": 1 / classes} if type(classes) is int and classes > 0 else {}


def short_name(group: Group, among: Sequence[Group]) -> str:
    """Its task is enough where no other of these groups has it."""
    return group.task if sum(other.task == group.task for other in among) == 1 else group.name


def base_first(names: Iterable[str]) -> list[str]:
    """Mechanisms in the order in which they are shown."""
    return sorted(set(names), key=lambda name: (name != BASE, order(name)))


def _options(task: Mapping[str, Any]) -> dict[str, Any]:
    options = task.get("options")
    return options if isinstance(options, dict) else {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, part in value.items():
        if isinstance(part, dict):
            flat |= _flat(part, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = part
    return flat


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then texts; never a comparison between the two."""
    number = isinstance(value, (int, float))
    return (0 if number else 1, float(value) if number else 0.0, str(value))
