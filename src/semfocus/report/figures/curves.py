"""Learning curves as the paper draws them: median and quartiles over seeds, metrics one above the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.groups import Group
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.report.figures.drawing import FORMATS, caption, drawing, heading, legend, save
from semfocus.report.figures.panels import Column, draw_metric
from semfocus.report.figures.series import METRICS, QUARTILES, Quantiles
from semfocus.report.figures.style import Theme

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
    """Draw one task in three panels, as `stem`.svg and so on."""
    column = Column.of(comparison.task, comparison, records)
    return draw_grid([column], ONE_TASK, stem, size=(6.4, 7.6), formats=formats, theme=theme)


def draw_columns(
    columns: Sequence[tuple[str, Group]],
    stem: Path,
    *,
    title: str = "",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw tasks or settings side by side, each with its title: training loss above, held-out accuracy below."""
    drawn = [Column.of(name, group.comparison, group.records) for name, group in columns]
    return draw_grid(drawn, MANY_TASKS, stem, title=title, formats=formats, theme=theme)


def draw_grid(
    columns: Sequence[Column],
    metrics: Sequence[str],
    stem: Path,
    *,
    title: str = "",
    size: tuple[float, float] | None = None,
    quantiles: Quantiles = QUARTILES,
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw a row of panels for each metric and a column for each of `columns`."""
    from matplotlib.figure import Figure

    size = size or (max(4.2, 0.9 + 2.75 * len(columns)), 1.0 + 2.2 * len(metrics))
    with drawing(theme):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(metrics), len(columns), sharex="col", sharey="row", squeeze=False)
        for column, panels in zip(columns, axes.T, strict=True):
            for panel, metric in zip(panels, metrics, strict=True):
                draw_metric(panel, column, metric, theme, quantiles)
            heading(panels[0], column.title)
            panels[-1].set_xlabel("epoch")
        for panels, metric in zip(axes, metrics, strict=True):
            panels[0].set_ylabel(METRICS[metric])
        shown = about_seeds(max(column.seeds for column in columns), quantiles, title)
        caption(figure, f"{shown}; marks: half of the seeds at {THRESHOLD:.0%}")
        legend(figure, list(axes.flat))
        return save(figure, stem, formats)


def about_seeds(seeds: int, quantiles: Quantiles = QUARTILES, title: str = "") -> str:
    """What a caption says of lines and bands: `Ablation: median and quartiles over 3 seeds`."""
    low, middle, high = (f"{100 * share:g}" for share in quantiles)
    several = "median and quartiles" if quantiles == QUARTILES else f"percentiles {low}, {middle} and {high}"
    what = f"{several} over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{title}: {what}" if title else what.capitalize()
