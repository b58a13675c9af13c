"""The stability of masks against how long training took, drawn: a point a task, epochs on the left, speed-up on the
right."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from semfocus.analysis.masks_vs_speedup import OUTCOMES, MaskPoint, drawn_masks, masks_against
from semfocus.report.figures.diagnosis import correlation_text
from semfocus.report.figures.drawing import FORMATS, caption, drawing, name_points, save
from semfocus.report.figures.scales import logarithmic
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style

LABELS = {"epochs": "epochs to 95 % training accuracy", "speed-up": "times fewer epochs than full attention"}


def draw_masks_against_speed(
    points: Sequence[MaskPoint],
    stem: Path,
    *,
    mechanism: str = "topk:5",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Hollow marks: a bound, for runs that never got there count all the epochs they had."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shape, paper = mechanism_style(mechanism), PALETTES[theme]
    with drawing(theme):
        figure = Figure(figsize=(8.6, 4.3), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True)
        bounds = {
            "epochs": {point.task for point in points if not point.all_reached},
            "speed-up": {point.task for point in points if point.speed_up.ratio.sign != "="},
        }
        for panel, outcome in zip(panels, OUTCOMES, strict=True):
            for task, kept, value in drawn_masks(points, outcome):
                face = paper.ground if task in bounds[outcome] else shape.on(theme)
                panel.plot(kept, value, shape.marker, color=shape.on(theme), markerfacecolor=face, markersize=7)
            panel.margins(x=0.25, y=0.2)
            logarithmic(panel, "y")
            panel.set_ylabel(LABELS[outcome])
            panel.set_xlabel("kept keys that stay under noise")
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(lambda value, place: f"{100 * value:.4g}%")
            words = correlation_text(masks_against(points, outcome)).replace("), p =", "),\np =")
            lines = [part for line in words.splitlines() for part in textwrap.wrap(line, 52)]
            panel.set_title("\n".join(lines), fontsize=8, fontweight="normal")
        panels[1].axhline(1, color=paper.quiet, linewidth=0.9)
        hollow = " Hollow: a bound, for some runs never got there." if any(bounds.values()) else ""
        caption(figure, f"Stability of the masks of {mechanism}, and how soon it learns: a point a task.{hollow}")
        for panel, outcome in zip(panels, OUTCOMES, strict=True):
            name_points(panel, drawn_masks(points, outcome), theme, rule=1 if outcome == "speed-up" else None)
        return save(figure, stem, formats)
