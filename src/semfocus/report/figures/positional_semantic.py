"""The solvable layer: its two overlaps and its test error against the sample ratio, a column for each way to attend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semfocus.analysis.transition import medians, transitions
from semfocus.report.figures.drawing import FORMATS, caption, drawing, legend, logarithmic, save
from semfocus.report.figures.style import PALETTES, STYLES, Theme
from semfocus.theory.positional_semantic import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OVERLAPS = {"theta": ("meaning, θ", STYLES[1]), "m": ("position, m", STYLES[4])}
LINEAR = "linear"


def draw_overlaps(
    rows: Sequence[Trained],
    mechanisms: Sequence[str],
    stem: Path,
    *,
    title: str,
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw the medians over seeds of the lower minimum, with quartiles; a line where the median seed turns."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(1.0 + 2.6 * len(mechanisms), 4.6), layout="constrained")
        axes = figure.subplots(2, len(mechanisms), sharex=True, sharey="row", squeeze=False)
        for (above, below), mechanism in zip(axes.T, mechanisms, strict=True):
            above.set_title(mechanism)
            turn = float(np.median(list(transitions(rows, mechanism).values()))) if rows else 0.0
            for name, (label, style) in OVERLAPS.items():
                _band(above, rows, mechanism, name, style.on(theme), theme, label, style.marker)
            _band(below, rows, mechanism, "error", STYLES[1].on(theme), theme, "attention", "D")
            _band(below, rows, LINEAR, "error", PALETTES[theme].quiet, theme, "best mixture by position", "")
            for panel in (above, below):
                if 0 < turn < np.inf:
                    panel.axvline(turn, color=PALETTES[theme].quiet, linewidth=1, linestyle=":")
                logarithmic(panel, "x")
            below.set_xlabel("examples / dimension")
        for panel in axes[1]:
            logarithmic(panel, "y")
        axes[0, 0].set_ylabel("overlap")
        axes[1, 0].set_ylabel("test error")
        caption(figure, title)
        legend(figure, list(axes.flat))
        return save(figure, stem, formats)


def _band(
    panel: Axes, rows: Sequence[Trained], mechanism: str, name: str, colour: str, theme: Theme, label: str, marker: str
) -> None:
    alphas, quartiles = medians(rows, mechanism, name)
    if not alphas:
        return
    low, middle, high = np.array(quartiles).T
    panel.plot(alphas, middle, color=colour, marker=marker or None, markersize=4, label=label,
               linestyle="-" if marker else "--")  # fmt: skip
    panel.fill_between(alphas, low, high, color=colour, alpha=0.15, linewidth=0)
