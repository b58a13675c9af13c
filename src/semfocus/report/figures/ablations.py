"""Ablations: groups of a task that differ from its base group in one setting.

The base is the group that most others differ from in one setting. An optimiser has its own learning rate and decay, so
a change of all three counts as one setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semfocus.analysis.comparability import Settings, differing, setting_text, setting_title
from semfocus.analysis.groups import Group

_OPTIMISER = {"training.optimizer", "training.lr", "training.decay"}


@dataclass(frozen=True, eq=False)
class Ablation:
    """A task under several values of one setting, the base among them."""

    task: str
    setting: str  # dotted
    columns: list[tuple[str, Group]]  # the value as text, and its runs

    @property
    def title(self) -> str:
        return f"{self.task}, {setting_title(self.setting)}"

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that every column has."""
        return [m for m in self.columns[0][1].mechanisms if all(m in group.mechanisms for _, group in self.columns)]


def ablations(groups: Sequence[Group]) -> list[Ablation]:
    """Every setting that was varied alone, task by task."""
    varied_alone = []
    for task in dict.fromkeys(group.task for group in groups):
        own = [group for group in groups if group.task == task]
        base = base_group(own)
        by_setting: dict[str, list[Group]] = {}
        for group in own:
            setting = _varied_setting(base.settings, group.settings)
            if setting is not None:
                by_setting.setdefault(setting, []).append(group)
        for setting, varied in by_setting.items():
            shown = [group for group in own if group is base or group in varied]  # in the order of their values
            varied_alone.append(Ablation(task, setting, [(_value(setting, group.settings), group) for group in shown]))
    return varied_alone


def main_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups that a figure of all tasks shows: base groups, and groups of no ablation."""
    bases = {id(base_group([other for other in groups if other.task == group.task])) for group in groups}
    shown = {id(group) for ablation in ablations(groups) for _, group in ablation.columns}
    return [group for group in groups if id(group) in bases or id(group) not in shown]


def base_group(groups: Sequence[Group]) -> Group:
    """The group that most others differ from in one setting; the first of several."""
    return max(
        groups, key=lambda base: sum(_varied_setting(base.settings, group.settings) is not None for group in groups)
    )


def _varied_setting(base: Settings, other: Settings) -> str | None:
    """The setting in which two groups differ; None when they differ in none or in several."""
    names = set(differing([base, other]))
    if len(names) == 1:
        return names.pop()
    return "training.optimizer" if "training.optimizer" in names and names <= _OPTIMISER else None


def _value(setting: str, settings: Settings) -> str:
    text = setting_text(setting, settings.get(setting))
    if setting == "training.optimizer":
        return f"{settings.get(setting)}, {setting_text('training.lr', settings.get('training.lr'))}"
    return text
