"""Logarithmic axes with plain numbers on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def logarithmic(panel: Axes, which: Literal["x", "y"]) -> None:
    """Make this axis logarithmic once everything is drawn; the narrower its range, the more marks between decades."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis = panel.xaxis if which == "x" else panel.yaxis
    (panel.set_xscale if which == "x" else panel.set_yscale)("log")
    low, high = panel.get_xlim() if which == "x" else panel.get_ylim()
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.3 else (1, 3) if decades < 3 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, place: f"{value:g}")
