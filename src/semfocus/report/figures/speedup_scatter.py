"""One point a task: what was measured on its models against how soon they learn, with rank correlations."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semfocus.analysis.masks_vs_speedup import OUTCOMES, MaskPoint, drawn_masks, masks_against
from semfocus.report.figures.drawing import (
    FORMATS,
    caption,
    drawing,
    log_scale,
    logarithmic,
    plain_log_ticks,
    save,
)
from semfocus.report.figures.point_names import name_points
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style
from semfocus.report.text import correlation_text

if TYPE_CHECKING:
    from semfocus.analysis.correlation import Correlation

LABELS = {"epochs": "epochs to 95 % training accuracy", "speed-up": "times fewer epochs than full attention"}


def draw_dispersion_vs_speedup(
    points: Sequence[tuple[str, float, float]],
    correlation: Correlation,
    stem: Path,
    *,
    when: str = "start",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw `points` (task, ratio of dispersions, speed-up) with Spearman's correlation over them."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(5.2, 4.0), layout="constrained")
        panel = figure.subplots()
        style = mechanism_style("topk:5")
        for _, ratio, speed in points:
            panel.plot(ratio, speed, style.marker, color=style.on(theme), markersize=7)
        panel.axhline(1, color=PALETTES[theme].quiet, linewidth=0.9)
        if log_scale(panel, "y"):
            plain_log_ticks(panel.yaxis)
        panel.margins(x=0.2, y=0.15)
        panel.set_xlabel(f"dispersion of the k heaviest / of all keys, {when} of training")
        panel.set_ylabel(LABELS["speed-up"])
        figure.suptitle(correlation_text(correlation), fontsize=9, x=0.01, ha="left")
        name_points(panel, points, theme, rule=1)
        return save(figure, stem, formats)


def draw_masks_vs_speedup(
    points: Sequence[MaskPoint],
    stem: Path,
    *,
    mechanism: str = "topk:5",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw the stability of masks against epochs (left) and speed-up (right).

    A hollow mark is a bound: runs that never reach the threshold count all the epochs they had.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    style, palette = mechanism_style(mechanism), PALETTES[theme]
    bounds = {
        "epochs": {point.task for point in points if not point.all_reached},
        "speed-up": {point.task for point in points if point.speed_up.ratio.sign != "="},
    }
    with drawing(theme):
        figure = Figure(figsize=(8.6, 4.3), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True)
        for panel, outcome in zip(panels, OUTCOMES, strict=True):
            for task, kept, value in drawn_masks(points, outcome):
                face = palette.ground if task in bounds[outcome] else style.on(theme)
                panel.plot(kept, value, style.marker, color=style.on(theme), markerfacecolor=face, markersize=7)
            panel.margins(x=0.25, y=0.2)
            logarithmic(panel, "y")
            panel.set_ylabel(LABELS[outcome])
            panel.set_xlabel("kept keys that stay under noise")
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(lambda value, place: f"{100 * value:.4g}%")
            title = correlation_text(masks_against(points, outcome), break_before_p=True).splitlines()
            lines = [part for line in title for part in textwrap.wrap(line, 52)]
            panel.set_title("\n".join(lines), fontsize=8, fontweight="normal")
        panels[1].axhline(1, color=palette.quiet, linewidth=0.9)
        hollow = " Hollow: a bound, for some runs never got there." if any(bounds.values()) else ""
        caption(figure, f"Stability of the masks of {mechanism}, and how soon it learns: a point a task.{hollow}")
        for panel, outcome in zip(panels, OUTCOMES, strict=True):
            name_points(panel, drawn_masks(points, outcome), theme, rule=1 if outcome == "speed-up" else None)
        return save(figure, stem, formats)
