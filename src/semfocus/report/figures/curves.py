"""Learning curves as the paper draws them: median and quartiles over seeds, metrics one above the other.

Also single panels of them, and of Kaplan-Meier curves: the share of seeds below the threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from semfocus.analysis.comparison import Comparison, best_baselines
from semfocus.analysis.groups import Group
from semfocus.analysis.records import Record
from semfocus.analysis.survival import ConvergenceTimes
from semfocus.report.figures.drawing import FORMATS, caption, drawing, heading, legend, percent, save
from semfocus.report.figures.lines import QUARTILES, Quantiles, series
from semfocus.report.figures.style import PALETTES, MechanismStyle, Theme, mechanism_style
from semfocus.report.text import seeds_text
from semfocus.training.objective import CLASSIFICATION, Learned, is_share, known_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELD = 0.8  # points, of a line that keeps its last value
MANY_TASKS = ("train_loss", "heldout_accuracy")  # as in the paper


@dataclass(frozen=True, eq=False)
class Curve:
    """Runs that differ only in their seed, drawn as one line."""

    label: str
    style: MechanismStyle
    runs: Sequence[Record]
    median_epoch: float | None  # at which half of the seeds had converged


@dataclass(frozen=True, eq=False)
class Column:
    """The curves of one task or setting; a figure has one panel of them for each metric."""

    title: str
    curves: Sequence[Curve]
    horizon: float
    baselines: Mapping[str, float] = field(default_factory=dict)
    learned: Learned = CLASSIFICATION.learned

    @staticmethod
    def of(title: str, comparison: Comparison, records: Sequence[Record]) -> Column:
        """A curve for each mechanism of a comparison."""
        curves = [
            Curve(
                arm.mechanism,
                mechanism_style(arm.mechanism),
                [record for record in records if record.mechanism == arm.mechanism],
                arm.times.median,
            )
            for arm in comparison.arms
        ]
        return Column(title, curves, comparison.horizon, comparison.baselines, comparison.learned)


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
    """Draw a row of panels for each metric and a column for each of `columns`, and save it."""
    with drawing(theme):
        return save(grid(columns, metrics, title=title, size=size, quantiles=quantiles, theme=theme), stem, formats)


def grid(
    columns: Sequence[Column],
    metrics: Sequence[str],
    *,
    title: str = "",
    size: tuple[float, float] | None = None,
    quantiles: Quantiles = QUARTILES,
    theme: Theme = "light",
) -> Figure:
    """The same as a figure that a notebook shows."""
    from semfocus.report.figures.shown import ShownFigure

    size = size or (max(4.2, 0.9 + 2.75 * len(columns)), 1.0 + 2.2 * len(metrics))
    with drawing(theme):
        figure = ShownFigure(figsize=size, layout="constrained")
        axes = figure.subplots(len(metrics), len(columns), sharex="col", sharey="row", squeeze=False)
        for column, panels in zip(columns, axes.T, strict=True):
            for panel, metric in zip(panels, metrics, strict=True):
                draw_metric(panel, column, metric, theme, quantiles)
            heading(panels[0], column.title)
            panels[-1].set_xlabel("epoch")
        for panels, metric in zip(axes, metrics, strict=True):
            panels[0].set_ylabel(known_columns()[metric])
        seeds = [len({run.seed for run in curve.runs}) for column in columns for curve in column.curves]
        shown = about_seeds(seeds, quantiles, title)
        thin = "; thin: all runs have stopped" if any(map(_holds, columns)) else ""
        caption(figure, f"{shown}; marks: half of the seeds at {columns[0].learned.level('')}{thin}")
        legend(figure, list(axes.flat))
        return figure


def _holds(column: Column) -> bool:
    """Whether all runs of one curve have stopped where those of another go on."""
    curves = [[run.metrics[-1]["epoch"] for run in curve.runs if run.ended and run.metrics] for curve in column.curves]
    return len({max(epochs) for epochs in curves if epochs}) > 1


def about_seeds(seeds: Collection[int], quantiles: Quantiles = QUARTILES, title: str = "") -> str:
    """What a caption says of lines with so many seeds each: `Ablation: median and quartiles over 3 seeds`."""
    low, middle, high = (f"{100 * share:g}" for share in quantiles)
    several = "median and quartiles" if quantiles == QUARTILES else f"percentiles {low}, {middle} and {high}"
    what = f"{several} over {seeds_text(seeds)}" if max(seeds) > 1 else "one seed"
    return f"{title}: {what}" if title else what.capitalize()


def median_epoch(runs: Sequence[Record], horizon: float) -> float | None:
    """The epoch at which half of the ended runs had converged; None where that is never."""
    ended = {run.seed: run.converged_at for run in runs if run.ended}
    return ConvergenceTimes.of(ended, horizon=horizon).median


def draw_metric(
    panel: Axes, column: Column, metric: str, theme: Theme = "light", quantiles: Quantiles = QUARTILES
) -> None:
    """Draw the median and band of each curve, with a mark at the epoch at which half of its seeds had converged.

    Where all runs of a curve have stopped and others go on, it keeps its last value as a thin line.
    """
    drawn = [
        (curve, points) for curve in column.curves if (points := series(curve.runs, metric, quantiles)) is not None
    ]
    last = max((points.epochs[-1] for _, points in drawn), default=0.0)
    for curve, points in drawn:
        colour = curve.style.on(theme)
        panel.plot(points.epochs, points.middle, color=colour, linestyle=curve.style.linestyle, label=curve.label)
        panel.fill_between(points.epochs, points.low, points.high, color=colour, alpha=0.16, linewidth=0)
        if points.epochs[-1] < last and not points.in_progress:
            held = [points.middle[-1]] * 2
            panel.plot([points.epochs[-1], last], held, color=colour, linestyle=curve.style.linestyle, linewidth=HELD)
        if curve.median_epoch is not None:
            place = int(abs(points.epochs - curve.median_epoch).argmin())
            panel.plot(
                curve.median_epoch, points.middle[place], curve.style.marker, color=colour, markersize=6,
                markeredgecolor=PALETTES[theme].ground, clip_on=False, zorder=4,
            )  # fmt: skip
    panel.set_xlim(0, column.horizon)
    panel.locator_params(axis="x", integer=True)
    if not is_share(metric):
        panel.set_ylim(bottom=0)
    else:
        percent(panel.yaxis)
        panel.set_ylim(top=1.0)
        panel.margins(y=0.12)
    if metric == column.learned.column:
        _draw_threshold(panel, column.learned, theme)
    if metric == "heldout_accuracy":
        _draw_baselines(panel, column.baselines, theme)


def draw_waiting(panel: Axes, comparison: Comparison, theme: Theme = "light") -> None:
    """Draw Kaplan-Meier curves: the share of seeds below the threshold; a tick where some never reached it."""
    for arm in comparison.arms:
        if not len(arm.times):
            continue
        style = mechanism_style(arm.mechanism)
        curve = arm.times.curve()
        epochs, waiting = [*curve.epochs, arm.times.horizon], [*curve.waiting, curve.waiting[-1]]
        colour = style.on(theme)
        panel.step(
            epochs, waiting, where="post", color=colour, linestyle=style.linestyle, label=arm.mechanism, clip_on=False
        )
        if curve.waiting[-1] > 0:
            panel.plot(arm.times.horizon, curve.waiting[-1], "|", color=colour, markersize=9, clip_on=False)
    panel.set_xlim(0, comparison.horizon)
    panel.set_ylim(0, 1)
    percent(panel.yaxis)


def _draw_threshold(panel: Axes, learned: Learned, theme: Theme) -> None:
    """Draw a line where a run counts as converged."""
    panel.axhline(learned.threshold, color=PALETTES[theme].quiet, linewidth=0.9, zorder=1)
    _note(panel, learned.threshold, learned.level(""), theme)


def _draw_baselines(panel: Axes, baselines: Mapping[str, float], theme: Theme) -> None:
    """Draw a line at the best accuracy that needs no learning, with all its names."""
    best = best_baselines(baselines)
    if best:
        level = max(best.values())
        panel.axhline(level, color=PALETTES[theme].quiet, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        _note(panel, level, ", ".join(best), theme, below=True)
        panel.set_ylim(bottom=min(panel.get_ylim()[0], max(0.0, level - 0.09)))


def _note(panel: Axes, level: float, text: str, theme: Theme, below: bool = False) -> None:
    """Write small text at the right end of a horizontal line, on a ground that keeps it apart from curves."""
    ground = {"facecolor": PALETTES[theme].ground, "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
    panel.annotate(
        text, (1, level), xycoords=("axes fraction", "data"), xytext=(-2, -4 if below else 2),
        textcoords="offset points", fontsize=7, color=PALETTES[theme].quiet, ha="right",
        va="top" if below else "bottom", bbox=ground,
    )  # fmt: skip
