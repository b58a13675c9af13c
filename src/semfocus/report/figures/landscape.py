"""Slopes of loss surfaces in growing squares (the paper's figure 27); gradient and curvature along training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semfocus.analysis.groups import mechanism_order
from semfocus.errors import UsageError
from semfocus.measurements import Sharpness, Surface, SurfaceMeta
from semfocus.measurements.kinds import PERCENTILES
from semfocus.report.figures.drawing import FORMATS, both_themes, drawing, legend, logarithmic, plain, save
from semfocus.report.figures.lines import draw_marked_line
from semfocus.report.figures.style import Theme, mechanism_style
from semfocus.report.figures.surfaces import draw_surfaces

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Slopes = Mapping[str, Sequence[SurfaceMeta]]  # by mechanism
Sharpnesses = Mapping[str, Sequence[Sharpness]]  # by mechanism
APART = 0.07  # of the axis, between the labels of two epochs
UNITS = {"per_step": "per grid unit", "per_distance": "per parameter distance"}
MEASURED = {"gradient_norm": "gradient norm", "hessian_top": "largest Hessian eigenvalue"}


def draw_slopes(
    slopes: Slopes, stem: Path, *, title: str = "", formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw slopes against the size of the square: a line for the median over a mechanism's runs, a band for all."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(0.8 + 2.15 * len(PERCENTILES), 4.9), layout="constrained")
        axes = figure.subplots(len(UNITS), len(PERCENTILES), sharex=True, sharey="row", squeeze=False)
        for row, (unit, text) in zip(axes, UNITS.items(), strict=True):
            for panel, percentile in zip(row, PERCENTILES, strict=True):
                for mechanism in sorted(slopes, key=mechanism_order):
                    _slope_line(panel, mechanism, [getattr(one, unit)[str(percentile)] for one in slopes[mechanism]],
                                slopes[mechanism][0].squares, theme)  # fmt: skip
                logarithmic(panel, "y")
            row[0].set_ylabel(f"slope {text}")
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
    style = mechanism_style(mechanism)
    values = np.array([[math.nan if value is None else value for value in run] for run in runs], dtype=float)
    shown = ~np.isnan(values).any(axis=0)
    places, values = np.asarray(squares)[shown], values[:, shown]
    middle = np.median(values, axis=0)
    draw_marked_line(panel, places, middle, style, theme, markersize=3.5, linewidth=1.5, label=mechanism)
    if len(values) > 1:
        panel.fill_between(
            places, values.min(axis=0), values.max(axis=0), color=style.on(theme), alpha=0.14, linewidth=0
        )


def draw_sharpness(
    measured: Sharpnesses, stem: Path, *, title: str = "", formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw gradient norm, largest Hessian eigenvalue and gradient / certified bound by epoch, a line for each run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    epochs = sorted({epoch for runs in measured.values() for one in runs for epoch in one.epochs})
    shows_bound = any(one.certified for runs in measured.values() for one in runs)
    count = len(MEASURED) + shows_bound
    with drawing(theme):
        figure = Figure(figsize=(0.8 + 2.9 * count, 3.5), layout="constrained")
        axes = figure.subplots(1, count, sharex=True, squeeze=False)[0]
        for mechanism in sorted(measured, key=mechanism_order):
            for number, one in enumerate(measured[mechanism]):
                label = mechanism if number == 0 else "_"
                for panel, name in zip(axes, MEASURED, strict=False):
                    _epoch_line(panel, mechanism, one.epochs, getattr(one, name), label, theme)
                if one.certified:
                    shares = [_ratio(*pair) for pair in zip(one.gradient_norm, one.certified, strict=True)]
                    _epoch_line(axes[-1], mechanism, one.epochs, shares, label, theme)
        titles = [*MEASURED.values(), *(["gradient / certified bound"] if shows_bound else [])]
        for panel, text in zip(axes, titles, strict=True):
            panel.set_title(text)
            panel.set_xlabel("epoch")
            logarithmic(panel, "y")
            panel.set_xscale("symlog", linthresh=1, linscale=0.5)
            panel.margins(x=0.04)  # no axis runs through the marks of the first epoch
            panel.set_xticks(_spaced(epochs))
            panel.xaxis.set_major_formatter(plain)
            panel.xaxis.set_minor_locator(NullLocator())
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        legend(figure, list(axes))
        return save(figure, stem, formats)


def _epoch_line(
    panel: Axes, mechanism: str, epochs: Sequence[float], values: Sequence[float | None], label: str, theme: Theme
) -> None:
    known = [(epoch, value) for epoch, value in zip(epochs, values, strict=True) if value is not None and value > 0]
    if known:
        places, heights = zip(*known, strict=True)
        draw_marked_line(
            panel, places, heights, mechanism_style(mechanism), theme, markersize=4, linewidth=1.4, label=label
        )


def _spaced(epochs: Sequence[float]) -> list[float]:
    """The epochs without those whose labels would touch the next one; the last stays."""
    shown: list[float] = []
    for epoch in reversed(epochs):
        if not shown or _place(shown[-1]) - _place(epoch) >= APART * _place(epochs[-1]):
            shown.append(epoch)
    return shown[::-1]


def _place(epoch: float) -> float:
    """The position of an epoch on the axis: linear up to 1, logarithmic beyond."""
    return 0.5 * epoch if epoch <= 1 else 0.5 + math.log10(epoch)


def _ratio(measured: float | None, bound: float | None) -> float | None:
    return None if measured is None or not bound else measured / bound


def write_surface_figures(surfaces: Mapping[str, Surface], slopes: Slopes, directory: Path, task: str) -> list[Path]:
    """Surfaces by label and slopes by mechanism, of one task, in both themes."""
    directions = next(iter(surfaces.values())).meta.directions
    title = f"{task}: training loss around the trained models (+), {directions} directions, one scale"
    below = f"{task}: slopes of the surface inside growing squares"
    return both_themes(lambda end, theme: [
        *draw_surfaces(surfaces, directory / f"surface-{task}-{directions}{end}", title=title, theme=theme),
        *draw_slopes(slopes, directory / f"slopes-{task}-{directions}{end}", title=below, theme=theme),
    ])  # fmt: skip


def write_sharpness_figures(measured: Sharpnesses, directory: Path, task: str) -> list[Path]:
    """Sharpness by mechanism, of one task, in both themes."""
    title = f"{task}: gradient and curvature of the training loss along training"
    return both_themes(
        lambda end, theme: draw_sharpness(measured, directory / f"sharpness-{task}{end}", title=title, theme=theme)
    )
