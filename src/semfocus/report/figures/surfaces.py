"""Loss surfaces side by side on one scale (the paper's figures 5 and 23 to 26)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semfocus.errors import UsageError
from semfocus.measurements import Surface
from semfocus.report.figures.drawing import FORMATS, drawing, is_wide, save
from semfocus.report.figures.style import PALETTES, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = 6  # at most, on a logarithmic scale
LINES = 60  # of a drawn surface, along each direction
NOT_FINITE = {"light": "#c0392b", "dark": "#ff7b6b"}


@dataclass(frozen=True)
class Scale:
    """One scale for the losses of several surfaces."""

    low: float
    high: float
    logarithmic: bool

    @staticmethod
    def of(surfaces: Sequence[Surface]) -> Scale:
        """The scale from the lowest to the highest finite loss of all surfaces."""
        finite = np.concatenate([surface.losses[np.isfinite(surface.losses)] for surface in surfaces])
        if not len(finite):
            raise UsageError("no loss on any of the grids is finite; there is nothing to draw")
        low, high = float(finite.min()), float(finite.max())
        logarithmic = is_wide((low, high))
        return Scale(low, high if high > low else low + 1e-12 + abs(low) * 1e-6, logarithmic)

    def height(self, losses: np.ndarray) -> np.ndarray:
        """Losses as heights; NaN for losses that are not finite."""
        known = np.where(np.isfinite(losses), losses, np.nan)
        return np.log10(known) if self.logarithmic else known

    def norm(self) -> Any:
        from matplotlib.colors import LogNorm, Normalize

        return (LogNorm if self.logarithmic else Normalize)(self.low, self.high)

    def marks(self) -> list[float]:
        """Round numbers between the lowest and the highest loss: powers of ten, and multiples of them if those are few.

        Of many every second, third and so on is taken: at most `MARKS`, so that labels do not touch.
        """
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1,), (1, 3), (1, 2, 5)):
            marks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            marks = [mark for mark in marks if self.low <= mark <= self.high]
            if len(marks) >= 3:
                break
        return marks[:: -(-len(marks) // MARKS)] if marks else marks


def draw_surfaces(
    surfaces: Mapping[str, Surface],
    stem: Path,
    *,
    title: str = "",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw a column for each name: the surface above, its heat map below. Losses that are not finite are red."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    kinds = {surface.meta.directions for surface in surfaces.values()}
    if len(kinds) > 1:
        raise UsageError(
            f"surfaces along different directions share no scale: {', '.join(sorted(kinds))}; draw each apart"
        )
    scale = Scale.of(list(surfaces.values()))
    with drawing(theme):
        # The relief keeps no room for the labels beside the maps.
        layout = ConstrainedLayoutEngine(rect=(0.03, 0, 0.97, 1))
        figure = Figure(figsize=(0.7 + 3.1 * len(surfaces), 5.9), layout=layout)
        below: list[Axes] = []
        grid = figure.add_gridspec(2, len(surfaces), height_ratios=(1.05, 1))
        for column, (name, surface) in enumerate(surfaces.items()):
            above = figure.add_subplot(grid[0, column], projection="3d")
            _draw_relief(above, surface, scale, theme)
            above.set_title(name, loc="center", pad=3)
            below.append(figure.add_subplot(grid[1, column]))
            _draw_map(below[-1], surface, scale, theme)
        below[0].set_ylabel("second direction")
        _colour_bar(figure, below, scale)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        return save(figure, stem, formats)


def _draw_relief(panel: Any, surface: Surface, scale: Scale, theme: Theme) -> None:
    palette, axis = PALETTES[theme], surface.axis
    every = max(1, len(axis) // LINES)
    across, up = np.meshgrid(axis[::every], axis[::every])
    heights = scale.height(surface.losses)[::every, ::every]
    lowest, highest = scale.height(np.array([scale.low, scale.high]))
    panel.plot_surface(
        across, up, heights, cmap="viridis", vmin=lowest, vmax=highest, rstride=1, cstride=1, linewidth=0,
        antialiased=False, rasterized=True,
    )  # fmt: skip
    panel.set_zlim(lowest, highest)
    panel.view_init(elev=32, azim=-55)
    panel.set_box_aspect((1, 1, 0.72), zoom=1.25)
    panel.grid(visible=True)
    edge = surface.meta.extent
    for sides in (panel.xaxis, panel.yaxis, panel.zaxis):
        sides.set_pane_color((0, 0, 0, 0))
        sides._axinfo["grid"].update(color=palette.line, linewidth=0.5)
        sides.line.set_color(palette.line)
    panel.set_xticks([-edge, 0, edge], [f"{-edge:g}", "0", f"{edge:g}"])
    panel.set_yticks([-edge, 0, edge], ["", "0", f"{edge:g}"])  # the corner has the other axis's label
    panel.tick_params(labelsize=7, pad=-3, colors=palette.quiet)
    if scale.logarithmic:
        marks = scale.marks()
        panel.set_zticks([math.log10(mark) for mark in marks], [f"{mark:g}" for mark in marks])
    panel.zaxis.set_tick_params(pad=0)


def _draw_map(panel: Axes, surface: Surface, scale: Scale, theme: Theme) -> None:
    palette, axis, edge = PALETTES[theme], surface.axis, surface.meta.extent
    half = (axis[1] - axis[0]) / 2
    panel.set_facecolor(NOT_FINITE[theme])
    panel.imshow(
        np.where(np.isfinite(surface.losses), surface.losses, np.nan), origin="lower", cmap="viridis",
        norm=scale.norm(), extent=(-edge - half, edge + half, -edge - half, edge + half), interpolation="nearest",
    )  # fmt: skip
    lowest, highest = scale.height(np.array([scale.low, scale.high]))
    levels = np.linspace(lowest, highest, 12)[1:-1]
    panel.contour(
        axis, axis, scale.height(surface.losses), levels=levels, colors="white", linestyles="solid", linewidths=0.45,
        alpha=0.65,
    )  # fmt: skip
    if surface.path is not None:
        inside = surface.path[(np.abs(surface.path) <= edge).all(axis=1)]
        panel.plot(inside[:, 0], inside[:, 1], color="white", linewidth=1.2, marker="o", markersize=3)
    panel.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=1.6)
    panel.grid(visible=False)
    panel.set_aspect("equal")
    panel.set_xticks([-edge, 0, edge])
    panel.set_yticks([-edge, 0, edge])
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_xlabel("first direction")
    lost, lowest = surface.not_finite, surface.lowest
    facts = [f"lowest {lowest:.3g}"] if lowest is not None else []
    facts += [f"{lost} of {surface.losses.size} not finite (red)"] if lost else []
    panel.set_title("; ".join(facts), fontsize=7.5, color=palette.quiet, fontweight="normal", pad=4)


def _colour_bar(figure: Figure, panels: Sequence[Axes], scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(
        ScalarMappable(scale.norm(), "viridis"), ax=list(panels), location="right", shrink=0.85, aspect=22, pad=0.03
    )
    bar.outline.set_visible(False)
    bar.set_label("training loss" + (", logarithmic" if scale.logarithmic else ""))
    if scale.logarithmic:
        marks = scale.marks()
        bar.set_ticks(marks, labels=[f"{mark:g}" for mark in marks])
    bar.ax.minorticks_off()
