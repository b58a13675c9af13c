"""Learning curves as the paper draws them: median and quartiles over seeds, training loss above, accuracy below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.groups import Group
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.report.figures.drawing import caption, drawing, heading, legend, save
from semfocus.report.figures.panels import draw_baselines, draw_metric, draw_threshold
from semfocus.report.figures.series import METRICS
from semfocus.report.figures.style import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONE_TASK = ("train_loss", "train_accuracy", "heldout_accuracy")
MANY_TASKS = ("train_loss", "heldout_accuracy")  # as in the paper


def draw_curves(
    comparison: Comparison,
    records: Sequence[Record],
    stem: Path,
    *,
    formats: Sequence[str] = ("svg", "png"),
    theme: Theme = "light",
) -> list[Path]:
    """One task in three panels, written as `stem`.svg and so on; a run that stopped early keeps its last value."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(6.4, 7.6), layout="constrained")
        axes = figure.subplots(len(ONE_TASK), 1, sharex=True)
        for panel, metric in zip(axes, ONE_TASK, strict=True):
            _fill(panel, comparison, records, metric, theme)
            panel.set_ylabel(METRICS[metric])
        axes[-1].set_xlabel("epoch")
        heading(axes[0], comparison.task)
        _say_what_is_shown(figure, comparison.seeds)
        legend(figure, axes)
        return save(figure, stem, formats)


def draw_columns(
    columns: Sequence[tuple[str, Group]],
    stem: Path,
    *,
    title: str = "",
    formats: Sequence[str] = ("svg", "pdf", "png"),
    theme: Theme = "light",
) -> list[Path]:
    """Several tasks or settings side by side, each with its title: training loss above, held-out accuracy below."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(max(4.2, 0.9 + 2.75 * len(columns)), 5.4), layout="constrained")
        axes = figure.subplots(len(MANY_TASKS), len(columns), sharex="col", sharey="row", squeeze=False)
        for (name, group), panels in zip(columns, axes.T, strict=True):
            for panel, metric in zip(panels, MANY_TASKS, strict=True):
                _fill(panel, group.comparison, group.records, metric, theme)
            heading(panels[0], name)
            panels[-1].set_xlabel("epoch")
        for panels, metric in zip(axes, MANY_TASKS, strict=True):
            panels[0].set_ylabel(METRICS[metric])
        seeds = max(group.comparison.seeds for _, group in columns)
        _say_what_is_shown(figure, seeds, title)
        legend(figure, list(axes.flat))
        return save(figure, stem, formats)


def _fill(panel: Axes, comparison: Comparison, records: Sequence[Record], metric: str, theme: Theme) -> None:
    draw_metric(panel, comparison, records, metric, theme)
    if metric == "train_accuracy":
        draw_threshold(panel, theme)
    if metric == "heldout_accuracy":
        draw_baselines(panel, comparison, theme)


def _say_what_is_shown(figure: Figure, seeds: int, title: str = "") -> None:
    what = f"median and quartiles over {seeds} seeds" if seeds > 1 else "one seed"
    words = f"{title}: {what}" if title else what.capitalize()
    caption(figure, f"{words}; marks: half of the seeds at {THRESHOLD:.0%}")
