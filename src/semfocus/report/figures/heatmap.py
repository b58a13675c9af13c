"""The heat map of tasks by mechanisms: the speed-up over full attention with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semfocus.analysis.comparison import BASE, Arm
from semfocus.analysis.groups import Group, base_first
from semfocus.analysis.multiple import ALPHA
from semfocus.report.figures.drawing import FORMATS, caption, drawing, save
from semfocus.report.figures.style import PALETTES, Theme
from semfocus.report.text import at_odds, interval_text, ratio_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SLOWER, FASTER = "#a6611a", "#0d8577"  # brown and teal differ in every kind of colour vision
STRONGEST = 3.0  # doublings at which the colour is strongest: 8x
Colour = tuple[float, float, float]


def speed_cells(groups: Sequence[Group]) -> tuple[list[str], list[list[Arm | None]]]:
    """The mechanisms that any group compares with full attention, and for each group its arm of each of them."""
    mechanisms = [name for name in base_first(m for group in groups for m in group.mechanisms) if name != BASE]
    rows = []
    for group in groups:
        arms = {arm.mechanism: arm for arm in group.comparison.arms}
        rows.append([arms.get(name) for name in mechanisms])
    return mechanisms, rows


def strength(value: float | None) -> float:
    """A speed-up on the colour scale: -1 the slowest, 0 as fast as full attention, 1 the fastest."""
    return 0.0 if value is None or value <= 0 else max(-1.0, min(math.log2(value) / STRONGEST, 1.0))


def cell_texts(arm: Arm) -> tuple[str, str]:
    """The large and the small text of a cell: `5.2x` and `4.1 to 6.6`; `never` and `0.7x or less`.

    An interval that leaves out 1 is not shown beside a test that finds nothing beyond chance.
    """
    ratio = arm.speed_up.ratio if arm.speed_up is not None else None
    if ratio is None or ratio.value is None:
        return ("never", "nor does full") if len(arm.times) else ("", "")
    if ratio.sign == "<=":
        return "never", f"{ratio.value:.2g}x or less"
    return ratio_text(ratio), "may be chance" if at_odds(arm) else interval_text(arm)


def draw_heatmap(
    groups: Sequence[Group], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw the heat map; bold: beyond chance after Holm within a task."""
    from matplotlib.figure import Figure

    mechanisms, rows = speed_cells(groups)
    longest = max(len(group.name) for group in groups)
    width = 0.075 * min(longest, 44) + 1.25 * len(mechanisms) + 0.6
    with drawing(theme):
        figure = Figure(figsize=(max(width, 5.2), 1.0 + 0.62 * len(groups)), layout="constrained")
        panel = figure.subplots()
        for row, arms in enumerate(rows):
            for column, arm in enumerate(arms):
                _cell(panel, column, row, arm, theme)
        panel.set_xlim(-0.5, len(mechanisms) - 0.5)
        panel.set_ylim(len(groups) - 0.5, -0.5)
        panel.set_xticks(range(len(mechanisms)), mechanisms)
        panel.set_yticks(range(len(groups)), [_short(group.name) for group in groups])
        panel.tick_params(length=0, labelcolor=PALETTES[theme].ink, top=False, labeltop=True, labelbottom=False)
        panel.grid(visible=False)
        for spine in panel.spines.values():
            spine.set_visible(False)
        caption(
            figure,
            "Times fewer epochs to 95 % training accuracy than full attention, 95 % interval; bold: beyond chance",
        )
        return save(figure, stem, formats)


def _cell(panel: Axes, column: int, row: int, arm: Arm | None, theme: Theme) -> None:
    from matplotlib.patches import Rectangle

    palette = PALETTES[theme]
    if arm is None or arm.speed_up is None:
        return
    amount = strength(arm.speed_up.ratio.value)
    fill = _mix(palette.ground, FASTER if amount > 0 else SLOWER, 0.08 + 0.8 * abs(amount))
    panel.add_patch(Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=fill, edgecolor="none"))
    ink = palette.ink if _light(fill) == (theme == "light") else PALETTES["dark" if theme == "light" else "light"].ink
    bold = arm.p is not None and arm.p <= ALPHA
    large, small = cell_texts(arm)
    panel.text(
        column, row - (0.13 if small else 0), large, ha="center", va="center", color=ink,
        fontsize=10, fontweight="bold" if bold else "normal",
    )  # fmt: skip
    panel.text(column, row + 0.22, small, ha="center", va="center", color=ink, fontsize=7)


def _mix(ground: str, colour: str, share: float) -> Colour:
    from matplotlib.colors import to_rgb

    low, high = to_rgb(ground), to_rgb(colour)
    return (
        low[0] + share * (high[0] - low[0]),
        low[1] + share * (high[1] - low[1]),
        low[2] + share * (high[2] - low[2]),
    )


def _light(colour: Colour) -> bool:
    """Whether dark text reads better than light text on this colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.22


def _short(name: str) -> str:
    return name if len(name) <= 44 else name[:43] + "…"
