"""The speed-up over full attention to each level of training accuracy: `draw_levels(groups, Path("levels"))`.

A column for each task, a line with its 95 % interval for each mechanism, where more than half of both arms get there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.analysis.groups import Group
from semfocus.analysis.levels import speed_at
from semfocus.analysis.records import THRESHOLD
from semfocus.report.figures.drawing import FORMATS, caption, drawing, heading, legend, logarithmic, percent, save
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = (*(round(share, 3) for share in np.arange(0.6, 0.995, 0.01)), 0.995)


def draw_levels(
    groups: Sequence[Group], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw groups side by side, each with its task as title."""
    from matplotlib.figure import Figure

    with drawing(theme):
        size = (max(4.2, 0.9 + 2.75 * len(groups)), 3.4)
        figure = Figure(figsize=size, layout="constrained")
        (axes,) = figure.subplots(1, len(groups), squeeze=False)
        for panel, group in zip(axes, groups, strict=True):
            _draw(panel, group, theme)
            heading(panel, group.name)
        axes[0].set_ylabel("times fewer epochs than full")
        caption(
            figure,
            "times fewer epochs than full attention to each training accuracy, with 95 % intervals, where more than "
            f"half of both arms get there; dotted: {THRESHOLD:.0%}, by which verdicts judge",
        )
        legend(figure, list(axes))
        return save(figure, stem, formats)


def _draw(panel: Axes, group: Group, theme: Theme) -> None:
    for mechanism in group.mechanisms:
        if mechanism == BASE:
            continue
        known = [one for one in (speed_at(group, mechanism, level) for level in DRAWN) if one.is_known]
        places = [
            (one.level, estimate, interval.low, interval.high)
            for one in known
            if (estimate := one.speed.estimate) is not None and (interval := one.speed.interval) is not None
        ]
        levels, means, low, high = ([place[i] for place in places] for i in range(4))
        style = mechanism_style(mechanism)
        panel.fill_between(levels, low, high, color=style.on(theme), alpha=0.13, linewidth=0)
        # without a place, too: every panel names the mechanisms in the same order
        panel.plot(levels, means, color=style.on(theme), linestyle=style.linestyle, label=mechanism)
    quiet = PALETTES[theme].quiet
    panel.axhline(1, color=quiet, linewidth=0.9)
    panel.axvline(THRESHOLD, color=quiet, linewidth=0.9, linestyle=":")
    panel.set_xlabel("training accuracy")
    percent(panel.xaxis)
    logarithmic(panel, "y")
