"""The panels that an experiment declares, drawn: each kind of panel from the fields and metrics that it names.

    draw_panels(experiment.panels, results, Path("figures/figure_1"))

curves    metrics one above the other along `along`, a column for each value of `each`, a line for each of `lines`
sweep     one value a run, as median and band over seeds, against the field `along`; columns and lines as above
map       one value a run: a row for each of `each`, a column for each of `lines`, the median over seeds as colour
scatter   a point for each of `lines`: the median of `along` and the median of the metric
surface   loss surfaces of one seed side by side, a figure for each of `each`
table     medians over seeds as text, with all percentiles that were measured
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.errors import UsageError
from semfocus.report.figures.curves import Column, Curve, about_seeds, draw_grid, median_epoch
from semfocus.report.figures.declared_map import draw_map
from semfocus.report.figures.declared_summaries import draw_scatter, draw_surface, draw_table
from semfocus.report.figures.drawing import (
    FORMATS,
    caption,
    drawing,
    heading,
    is_wide,
    legend,
    logarithmic,
    percent,
    plain,
    save,
    sequential_colour,
)
from semfocus.report.figures.language_values import PARAMETERS, is_ratio
from semfocus.report.figures.lines import draw_marked_line, quantiles
from semfocus.report.figures.panel_values import (
    MECHANISM,
    PERCENTILE,
    Panel,
    Results,
    Runs,
    Sheet,
    check_alike,
    is_share,
    key_text,
    metric_text,
    number,
)
from semfocus.report.figures.places import Places, sizes_of
from semfocus.report.figures.style import PALETTES, MechanismStyle, Theme
from semfocus.training.objective import known_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS = 4  # columns of one figure
LOSSES = ("train_loss", "heldout_loss")
MARKS = 12  # on a line of many points, about
SHORT = 4  # characters of a label that needs no slant
Points = dict[float, list[float]]  # x -> a value for each seed; NaN for one that never converged


@dataclass(frozen=True, eq=False)
class PointLine:
    """One line of a panel."""

    label: str
    style: MechanismStyle
    points: Points
    reference: Sequence[float] = ()  # a value for each seed of full attention, where the x axis has no place for it


@dataclass(frozen=True, eq=False)
class PointColumn:
    """The panels of one value of `each`: for each metric its lines."""

    title: str
    runs: Runs
    rows: Sequence[Sequence[PointLine]]


def draw_panels(
    panels: Sequence[Panel],
    results: Results,
    stem: Path,
    *,
    shown: Callable[[int], Collection[str]] | None = None,
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw every panel that the runs have values for, as `stem`-1.svg and so on; returns the files.

    `shown` gives the ids of the runs that the panel at a place shows; without it each shows all runs of the results.
    """
    written: list[Path] = []
    for place, panel in enumerate(panels):
        if panel.kind not in KINDS:
            raise UsageError(f"panel {panel.title!r}: kind {panel.kind!r} is not one of {', '.join(KINDS)}")
        ids = None if shown is None else set(shown(place))
        records = [record for record in results.records if ids is None or record.id in ids]
        runs = Runs(records, results.groups, results.measurements)
        target = stem.with_name(f"{stem.name}-{place + 1}") if len(panels) > 1 else stem
        written += KINDS[panel.kind](Sheet(panel, runs, results.root, target, formats, theme))
    return written


def _draw_curves(sheet: Sheet) -> list[Path]:
    panel = sheet.panel
    if panel.along != "epoch" or not known_columns().keys() >= {*panel.metrics}:
        return _draw_points(sheet, Places(title=metric_text(panel.along)), _measured_points)
    columns = []
    for title, runs in sheet.columns():
        runs = runs.only([record for record in runs.records if record.metrics])
        horizon = float(max((record.horizon for record in runs.records), default=1))
        curves = []
        for label, style, own in sheet.lines(runs):
            check_alike(panel.title, label, own.records)
            curves.append(Curve(label, style, own.records, median_epoch(own.records, horizon)))
        if curves:
            learned = runs.records[0].objective.learned
            columns.append(Column(title, curves, horizon, runs.baselines, learned))
    written = []
    for stem, part in sheet.parts(columns, ACROSS):
        written += draw_grid(part, panel.metrics, stem, title=panel.title, quantiles=panel.quantiles,
                             formats=sheet.formats, theme=sheet.theme)  # fmt: skip
    return written


def _measured_points(sheet: Sheet, metric: str, runs: Runs, label: str) -> Points:
    """The points of a measured curve: two lists of the same length in each run's measurement."""
    check_alike(sheet.panel.title, label, runs.records)
    points: Points = {}
    for record in runs.records:
        places, values = runs.measured(record, sheet.panel.along), runs.measured(record, metric)
        if isinstance(places, list) and isinstance(values, list):
            for place, value in zip(map(number, places), map(number, values), strict=False):
                if place is not None and value is not None:
                    points.setdefault(place, []).append(value)
    return points


def _draw_sweep(sheet: Sheet) -> list[Path]:
    swept = [key[0] for key in sheet.runs.split([sheet.panel.along])]
    places = Places.of(sheet.panel.along, swept)
    sized = sheet.panel.along == MECHANISM and bool(sizes_of(map(str, swept)))
    shown = [value for value in swept if not sized or value != BASE]

    def points(sheet: Sheet, metric: str, runs: Runs, label: str) -> Points:
        swept_points: Points = {}
        for (value,), own in runs.split([sheet.panel.along]).items():
            check_alike(sheet.panel.title, f"{label}, {key_text([sheet.panel.along], (value,))}", own.records)
            values = own.values(metric) if value in shown else []
            if values:
                swept_points[float(shown.index(value)) if places.names else float(value)] = values
        return swept_points

    return _draw_points(sheet, places, points, reference=sized)


def _draw_points(
    sheet: Sheet,
    places: Places,
    points_of: Callable[[Sheet, str, Runs, str], Points],
    *,
    reference: bool = False,
) -> list[Path]:
    """Draw a grid of panels, metrics down and columns across; `reference` draws full attention as a level line."""
    columns = []
    for title, runs in sheet.columns():
        lines = sheet.lines(runs)
        full = runs.only([record for record in runs.records if reference and record.mechanism == BASE])
        rows = [
            [PointLine(label, style, points_of(sheet, metric, own, label), full.values(metric))
             for label, style, own in lines]
            for metric in sheet.panel.metrics
        ]  # fmt: skip
        if any(line.points for row in rows for line in row):
            columns.append(PointColumn(title, runs, rows))
    written = []
    for stem, part in sheet.parts(columns, ACROSS):
        written += _draw_point_grid(sheet, part, places, stem)
    return written


def _draw_point_grid(sheet: Sheet, columns: Sequence[PointColumn], places: Places, stem: Path) -> list[Path]:
    from matplotlib.figure import Figure

    panel = sheet.panel
    sequential = bool(places.names) and all(len(row) == 1 for column in columns for row in column.rows)
    never = False
    with drawing(sheet.theme):
        size = (max(4.2, 0.9 + 2.75 * len(columns)), 1.0 + 2.2 * len(panel.metrics))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(panel.metrics), len(columns), sharex="col", sharey="row", squeeze=False)
        for column, down in zip(columns, axes.T, strict=True):
            for axis, lines in zip(down, column.rows, strict=True):
                for line in lines:
                    never |= _draw_point_line(axis, line, sheet, column.runs.horizon, places if sequential else None)
            heading(down[0], column.title)
            down[-1].set_xlabel(places.title)
        for across, metric in zip(axes, panel.metrics, strict=True):
            across[0].set_ylabel("\n".join(textwrap.wrap(metric_text(metric), 32)))
            for axis in across:  # when all are drawn: they share an axis, and to set its end stops it from growing
                _label_axes(axis, metric, sheet.theme, places)
        lines = [line for column in columns for row in column.rows for line in row]
        seeds = [max(map(len, line.points.values())) for line in lines if line.points]
        text = about_seeds(seeds, panel.quantiles, panel.title)
        text += f"; percentile {PERCENTILE}" if any(map(sheet.runs.percentiles, panel.metrics)) else ""
        text += "; dotted: full attention" if any(map(_has_reference, columns)) else ""
        caption(figure, text + ("; hollow: the median seed never converged" if never else ""))
        if not sequential:
            legend(figure, list(axes.flat))
        return save(figure, stem, sheet.formats)


def _draw_point_line(axis: Axes, line: PointLine, sheet: Sheet, horizon: float, sequence: Places | None) -> bool:
    """Draw median and band; True where a median seed never converged and a hollow mark stands at the horizon.

    With a `sequence` of places each mark has the colour of its place.
    """
    theme, places = sheet.theme, sorted(line.points)
    if not places and not line.reference:  # it would have an entry of its own in the legend
        return False
    bands = [quantiles(np.array(line.points[place])[:, None], sheet.panel.quantiles) for place in places]
    low, middle, high = ([float(band[i][0]) for band in bands] for i in range(3))
    colour, style = line.style.on(theme), line.style
    if sequence is not None:
        colour, style = PALETTES[theme].quiet, line.style._replace(dash=(), marker="")
    every = max(1, len(places) // MARKS)
    draw_marked_line(axis, places, middle, style, theme, label=line.label, color=colour, markersize=4, markevery=every)
    if any(len(values) > 1 for values in line.points.values()):
        axis.fill_between(places, low, high, color=colour, alpha=0.14, linewidth=0)
    for i, (place, value) in enumerate(zip(places, middle, strict=True)):
        own, marker = colour, "o"
        if sequence is not None and sequence.styles:
            own, marker = sequence.styles[int(place)].on(theme), sequence.styles[int(place)].marker
        elif sequence is not None:
            own = sequential_colour(i / max(1, len(places) - 1), theme)
        if math.isnan(value):
            axis.plot(place, horizon, marker, markerfacecolor=PALETTES[theme].ground, color=own, markersize=7)
        elif sequence is not None:
            axis.plot(place, value, marker, color=own, markersize=7, zorder=3)
    if line.reference:
        _draw_reference(axis, line.reference, sheet)
    return any(map(math.isnan, middle))


def _has_reference(column: PointColumn) -> bool:
    return any(line.reference for row in column.rows for line in row)


def _draw_reference(axis: Axes, values: Sequence[float], sheet: Sheet) -> None:
    """Draw the median seed of full attention as a level line, or say that it never converged."""
    palette = PALETTES[sheet.theme]
    level = float(quantiles(np.array(values)[:, None], sheet.panel.quantiles)[1][0])
    if not math.isnan(level):
        axis.axhline(level, color=palette.ink, linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=1)
        return
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 7.5}
    axis.annotate("full: never", (1, 0), (-2, 3), color=palette.quiet, ha="right", va="bottom", **place)


def _label_axes(axis: Axes, metric: str, theme: Theme, places: Places) -> None:
    if places.names:
        slanted = max(map(len, places.names)) > SHORT
        axis.set_xticks(
            range(len(places.names)), places.names, rotation=45 if slanted else 0, ha="right" if slanted else "center"
        )
        axis.set_xlim(-0.5, len(places.names) - 0.5)
    elif is_wide(axis.dataLim.intervalx) or places.title == metric_text(PARAMETERS):
        logarithmic(axis, "x")
    else:
        axis.xaxis.set_major_formatter(plain)
    if is_share(metric):
        percent(axis.yaxis)
        axis.set_ylim(top=1.02)
    elif is_wide(axis.dataLim.intervaly) or metric == "speed_up":
        logarithmic(axis, "y")
    elif not is_ratio(metric) and metric not in LOSSES:  # of these, small differences count
        axis.set_ylim(bottom=0)
    if metric == "speed_up" or is_ratio(metric):
        axis.axhline(1, color=PALETTES[theme].quiet, linewidth=0.9)


KINDS: dict[str, Callable[[Sheet], list[Path]]] = {
    "curves": _draw_curves,
    "sweep": _draw_sweep,
    "map": draw_map,
    "scatter": draw_scatter,
    "surface": draw_surface,
    "table": draw_table,
}
