"""Loss surfaces beside each other with one scale (the paper's figures 5 and 23 to 26), slopes in growing squares
(figure 27), and gradient and curvature along training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semfocus.analysis.groups import display_order
from semfocus.errors import UsageError
from semfocus.measurements import Sharpness, Surface, SurfaceMeta
from semfocus.measurements.kinds import PERCENTILES
from semfocus.report.figures.drawing import FORMATS, both_themes, drawing, legend, save
from semfocus.report.figures.scales import logarithmic
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE_RANGE = 30.0  # highest loss / lowest loss beyond which the scale is logarithmic
APART = 0.07  # of the axis, between the labels of two epochs
MARKS = 6  # at most, on a logarithmic scale
LINES = 60  # of a drawn surface, along each direction
NOT_FINITE = {"light": "#c0392b", "dark": "#ff7b6b"}
WAYS = {"per_step": "per grid unit", "per_distance": "per parameter distance"}
MEASURED = {"gradient_norm": "gradient norm", "hessian_top": "largest Hessian eigenvalue"}


@dataclass(frozen=True)
class Scale:
    """One scale for the losses of several surfaces."""

    low: float
    high: float
    logarithmic: bool

    @staticmethod
    def of(surfaces: Sequence[Surface]) -> Scale:
        """From the lowest to the highest finite loss of them all."""
        finite = np.concatenate([surface.losses[np.isfinite(surface.losses)] for surface in surfaces])
        if not len(finite):
            raise UsageError("no loss on any of the grids is finite; there is nothing to draw")
        low, high = float(finite.min()), float(finite.max())
        logarithmic = low > 0 and high / low > WIDE_RANGE
        return Scale(low, high if high > low else low + 1e-12 + abs(low) * 1e-6, logarithmic)

    def height(self, losses: np.ndarray) -> np.ndarray:
        """Losses as heights; what is not finite is left out."""
        known = np.where(np.isfinite(losses), losses, np.nan)
        return np.log10(known) if self.logarithmic else known

    def norm(self) -> Any:
        from matplotlib.colors import LogNorm, Normalize

        return (LogNorm if self.logarithmic else Normalize)(self.low, self.high)


def draw_surfaces(
    surfaces: Mapping[str, Surface],
    stem: Path,
    *,
    title: str = "",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """A column a name: the surface above, its heat map below, one scale for all. What is not finite is marked red."""
    from matplotlib.figure import Figure

    kinds = {surface.meta.directions for surface in surfaces.values()}
    if len(kinds) > 1:
        raise UsageError(
            f"surfaces along different directions share no scale: {', '.join(sorted(kinds))}; draw each apart"
        )
    scale = Scale.of(list(surfaces.values()))
    with drawing(theme):
        figure = Figure(figsize=(0.5 + 3.1 * len(surfaces), 5.9), layout="constrained")
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
    paper, axis = PALETTES[theme], surface.axis
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
        sides._axinfo["grid"].update(color=paper.line, linewidth=0.5)
        sides.line.set_color(paper.line)
    panel.set_xticks([-edge, 0, edge], [f"{-edge:g}", "0", f"{edge:g}"])
    panel.set_yticks([-edge, 0, edge], ["", "0", f"{edge:g}"])  # in that corner stands the other axis's label
    panel.tick_params(labelsize=7, pad=-3, colors=paper.quiet)
    if scale.logarithmic:
        marks = _decades(scale)
        panel.set_zticks([math.log10(mark) for mark in marks], [f"{mark:g}" for mark in marks])
    panel.zaxis.set_tick_params(pad=0)


def _draw_map(panel: Axes, surface: Surface, scale: Scale, theme: Theme) -> None:
    paper, axis, edge = PALETTES[theme], surface.axis, surface.meta.extent
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
    panel.set_title("; ".join(facts), fontsize=7.5, color=paper.quiet, fontweight="normal", pad=4)


def _colour_bar(figure: Figure, panels: Sequence[Axes], scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(
        ScalarMappable(scale.norm(), "viridis"), ax=list(panels), location="right", shrink=0.85, aspect=22, pad=0.03
    )
    bar.outline.set_visible(False)
    bar.set_label("training loss" + (", logarithmic" if scale.logarithmic else ""))
    if scale.logarithmic:
        marks = _decades(scale)
        bar.set_ticks(marks, labels=[f"{mark:g}" for mark in marks])
    bar.ax.minorticks_off()


def _decades(scale: Scale) -> list[float]:
    """Round marks between the lowest and the highest loss: powers of ten, or 1, 2, 5 of each if those are few; of many
    every second, third and so on, so that their labels stay apart."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for steps in ((1,), (1, 3), (1, 2, 5)):
        marks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        marks = [mark for mark in marks if scale.low <= mark <= scale.high]
        if len(marks) >= 3:
            break
    return marks[:: -(-len(marks) // MARKS)] if marks else marks


def draw_slopes(
    slopes: Mapping[str, Sequence[SurfaceMeta]],
    stem: Path,
    *,
    title: str = "",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Slopes against the square's size, by mechanism: the median over its runs, and all of them as a band."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(0.8 + 2.15 * len(PERCENTILES), 4.9), layout="constrained")
        axes = figure.subplots(len(WAYS), len(PERCENTILES), sharex=True, sharey="row", squeeze=False)
        for row, (way, words) in zip(axes, WAYS.items(), strict=True):
            for panel, percentile in zip(row, PERCENTILES, strict=True):
                for mechanism in sorted(slopes, key=display_order):
                    _slope_line(panel, mechanism, [getattr(one, way)[str(percentile)] for one in slopes[mechanism]],
                                slopes[mechanism][0].squares, theme)  # fmt: skip
                logarithmic(panel, "y")
            row[0].set_ylabel(f"slope {words}")
        for panel, percentile in zip(axes[0], PERCENTILES, strict=True):
            panel.set_title("median" if percentile == 50 else f"{percentile}th percentile")
        for panel in axes[-1]:
            panel.set_xlabel("half side of the square")
            panel.set_xticks([0, 0.2, 0.4, 0.6])
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        legend(figure, list(axes.ravel()))
        return save(figure, stem, formats)


def _slope_line(
    panel: Axes, mechanism: str, runs: Sequence[Sequence[float | None]], squares: Sequence[float], theme: Theme
) -> None:
    if any(len(run) != len(squares) for run in runs):
        raise UsageError(f"the runs of {mechanism} were measured on different squares; measure them alike")
    shape = mechanism_style(mechanism)
    values = np.array([[math.nan if value is None else value for value in run] for run in runs], dtype=float)
    shown = ~np.isnan(values).any(axis=0)
    places, values = np.asarray(squares)[shown], values[:, shown]
    panel.plot(
        places, np.median(values, axis=0), color=shape.on(theme), linestyle=shape.linestyle, marker=shape.marker,
        markersize=3.5, linewidth=1.5, label=mechanism,
    )  # fmt: skip
    if len(values) > 1:
        panel.fill_between(
            places, values.min(axis=0), values.max(axis=0), color=shape.on(theme), alpha=0.14, linewidth=0
        )


def draw_sharpness(
    measured: Mapping[str, Sequence[Sharpness]],
    stem: Path,
    *,
    title: str = "",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Gradient norm and largest Hessian eigenvalue by epoch, a line a run; and the gradient's share of its bound."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    epochs = sorted({epoch for runs in measured.values() for one in runs for epoch in one.epochs})
    shows_bound = any(one.certified for runs in measured.values() for one in runs)
    count = len(MEASURED) + shows_bound
    with drawing(theme):
        figure = Figure(figsize=(0.8 + 2.9 * count, 3.5), layout="constrained")
        axes = figure.subplots(1, count, sharex=True, squeeze=False)[0]
        for mechanism in sorted(measured, key=display_order):
            for number, one in enumerate(measured[mechanism]):
                label = mechanism if number == 0 else "_"
                for panel, name in zip(axes, MEASURED, strict=False):
                    _epoch_line(panel, mechanism, one.epochs, getattr(one, name), label, theme)
                if one.certified:
                    shares = [_ratio(*pair) for pair in zip(one.gradient_norm, one.certified, strict=True)]
                    _epoch_line(axes[-1], mechanism, one.epochs, shares, label, theme)
        titles = [*MEASURED.values(), *(["gradient / certified bound"] if shows_bound else [])]
        for panel, words in zip(axes, titles, strict=True):
            panel.set_title(words)
            panel.set_xlabel("epoch")
            logarithmic(panel, "y")
            panel.set_xscale("symlog", linthresh=1, linscale=0.5)
            panel.margins(x=0.04)  # so that no axis runs through the marks of the first epoch
            panel.set_xticks(_spaced(epochs))
            panel.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
            panel.xaxis.set_minor_locator(NullLocator())
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        legend(figure, list(axes))
        return save(figure, stem, formats)


def _epoch_line(
    panel: Axes, mechanism: str, epochs: Sequence[float], values: Sequence[float | None], label: str, theme: Theme
) -> None:
    shape = mechanism_style(mechanism)
    known = [(epoch, value) for epoch, value in zip(epochs, values, strict=True) if value is not None and value > 0]
    if known:
        panel.plot(
            *zip(*known, strict=True), color=shape.on(theme), linestyle=shape.linestyle, marker=shape.marker,
            markersize=4, linewidth=1.4, label=label,
        )  # fmt: skip


def _spaced(epochs: Sequence[float]) -> list[float]:
    """The kept epochs without those whose labels would touch the next; the last stays."""
    shown: list[float] = []
    for epoch in reversed(epochs):
        if not shown or _place(shown[-1]) - _place(epoch) >= APART * _place(epochs[-1]):
            shown.append(epoch)
    return shown[::-1]


def _place(epoch: float) -> float:
    """Where an epoch lies on the axis: evenly up to 1, logarithmically from there on."""
    return 0.5 * epoch if epoch <= 1 else 0.5 + math.log10(epoch)


def _ratio(measured: float | None, bound: float | None) -> float | None:
    return None if measured is None or not bound else measured / bound


def write_surface_figures(
    surfaces: Mapping[str, Surface], slopes: Mapping[str, Sequence[SurfaceMeta]], directory: Path, task: str
) -> list[Path]:
    """Surfaces by label and slopes by mechanism, of one task, in both themes."""
    directions = next(iter(surfaces.values())).meta.directions
    title = f"{task}: training loss around the trained models (+), {directions} directions, one scale"
    below = f"{task}: slopes of the surface inside growing squares"
    return both_themes(lambda end, theme: [
        *draw_surfaces(surfaces, directory / f"surface-{task}-{directions}{end}", title=title, theme=theme),
        *draw_slopes(slopes, directory / f"slopes-{task}-{directions}{end}", title=below, theme=theme),
    ])  # fmt: skip


def write_sharpness_figures(measured: Mapping[str, Sequence[Sharpness]], directory: Path, task: str) -> list[Path]:
    """Sharpness by mechanism, of one task, in both themes."""
    title = f"{task}: gradient and curvature of the training loss along training"
    return both_themes(
        lambda end, theme: draw_sharpness(measured, directory / f"sharpness-{task}{end}", title=title, theme=theme)
    )
