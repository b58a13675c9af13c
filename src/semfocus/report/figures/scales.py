"""Logarithmic axes with plain numbers on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def log_scale(panel: Axes, which: Literal["x", "y"]) -> bool:
    """Set the scale, if anything that is drawn has a place on it."""
    smallest = panel.dataLim.minposx if which == "x" else panel.dataLim.minposy
    if not math.isfinite(smallest):
        return False
    (panel.set_xscale if which == "x" else panel.set_yscale)("log")
    return True


def logarithmic(panel: Axes, which: Literal["x", "y"]) -> None:
    """Make this axis logarithmic once everything is drawn; the narrower its range, the more marks between decades."""
    from matplotlib.ticker import LogLocator, NullLocator

    if not log_scale(panel, which):
        return
    axis = panel.xaxis if which == "x" else panel.yaxis
    low, high = panel.get_xlim() if which == "x" else panel.get_ylim()
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.3 else (1, 3) if decades < 3 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, place: f"{value:g}")
