"""All the figures of a store as files: SVG, PDF and PNG, light and dark.

    write_figures(Path("runs"), Path("figures"))

Tasks stand side by side; each setting that was varied alone (an ablation) has a figure of its own. The base of a task's
ablations is the group that most others differ from in one setting. An optimiser has its own learning rate and decay, so
a change of all three counts as one setting.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semfocus.analysis.comparability import Settings, differing, setting_text, setting_title
from semfocus.analysis.groups import Group, short_name
from semfocus.analysis.results import Results
from semfocus.report.figures.curves import draw_columns, draw_waiting
from semfocus.report.figures.drawing import FORMATS, caption, drawing, heading, legend, save
from semfocus.report.figures.heatmap import draw_heatmap, speed_cells
from semfocus.report.figures.style import Theme

ACROSS = 4  # panels side by side, as in the paper
_OPTIMISER = {"training.optimizer", "training.lr", "training.decay"}


def write_figures(
    store_root: Path, directory: Path, formats: Sequence[str] = FORMATS, themes: Sequence[Theme] = ("light", "dark")
) -> list[Path]:
    """Draw everything the runs have values for; the name of a dark figure ends in `-dark`."""
    groups = [group for group in Results.load(store_root).groups if _measured(group)]
    written: list[Path] = []
    for theme in themes:
        end = "-dark" if theme == "dark" else ""
        written += draw_all(groups, directory, end, formats, theme)
    return written


def draw_all(
    groups: Sequence[Group], directory: Path, end: str = "", formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw curves and convergence with tasks side by side, the heat map, and a figure for each ablation."""
    written: list[Path] = []
    main = main_groups(groups)
    sheets = [main[i : i + ACROSS] for i in range(0, len(main), ACROSS)]
    for number, sheet in enumerate(sheets, start=1):
        columns = [(short_name(group, main), group) for group in sheet]
        place = f"-{number}" if len(sheets) > 1 else ""
        written += draw_columns(columns, directory / f"curves{place}{end}", formats=formats, theme=theme)
        written += draw_convergence(columns, directory / f"convergence{place}{end}", formats=formats, theme=theme)
    if any(arm is not None for row in speed_cells(groups)[1] for arm in row):
        written += draw_heatmap(groups, directory / f"speed-up{end}", formats=formats, theme=theme)
    for ablation in ablations(groups):
        stem = directory / f"ablation-{_slug(ablation.title)}{end}"
        columns = [(name, group.only(ablation.mechanisms)) for name, group in ablation.columns]
        written += draw_columns(columns, stem, title=ablation.title, formats=formats, theme=theme)
    return written


def draw_convergence(
    columns: Sequence[tuple[str, Group]], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw Kaplan-Meier curves side by side."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(max(4.2, 0.9 + 2.75 * len(columns)), 3.4), layout="constrained")
        axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for (name, group), panel in zip(columns, axes, strict=True):
            draw_waiting(panel, group.comparison, theme)
            heading(panel, name)
            panel.set_xlabel("\n".join(["epoch", *_never(group)]))
        learned = columns[0][1].comparison.learned
        axes[0].set_ylabel(f"seeds below {learned.level('')}")
        caption(figure, f"Share of seeds whose {learned.label} has not reached {learned.level('')} (Kaplan-Meier)")
        legend(figure, list(axes))
        return save(figure, stem, formats)


def _measured(group: Group) -> bool:
    return any(record.metrics for record in group.records)


def _never(group: Group) -> list[str]:
    """The mechanisms with which no seed converged, as text: their lines lie on one another."""
    names = [arm.mechanism for arm in group.comparison.arms if len(arm.times) and not arm.reached]
    return textwrap.wrap(f"never: {', '.join(names)}", 42) if len(names) > 1 else []


def _slug(title: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in title.lower()).replace("--", "-").strip("-")


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
    tasks = dict.fromkeys(group.task for group in groups)
    bases = {id(base_group([group for group in groups if group.task == task])) for task in tasks}
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
