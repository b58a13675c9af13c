"""Declared panels that show summaries of runs: scatter plots, loss surfaces and tables."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.analysis.dispersion_vs_speedup import When, dispersion_against_speed, dispersion_points, drawn_points
from semfocus.errors import SemfocusError
from semfocus.measurements import Surface, read_surface
from semfocus.report.figures.drawing import caption, drawing, is_wide, logarithmic, save
from semfocus.report.figures.panel_values import MECHANISM, Sheet, check_alike, key_text, metric_text
from semfocus.report.figures.scatter import draw_dispersion_vs_speedup, name_points
from semfocus.report.figures.style import PALETTES, STYLES, mechanism_style
from semfocus.report.figures.surfaces import draw_surfaces
from semfocus.store import RunDirectory

ACROSS = 4  # surfaces side by side


def draw_scatter(sheet: Sheet) -> list[Path]:
    """Draw a point for each of `lines`: the median of `along` and of the metric; a figure for each metric."""
    from matplotlib.figure import Figure

    panel = sheet.panel
    if panel.along.startswith("dispersion.") and panel.metrics == ("speed_up",):
        return _draw_dispersion_ratios(sheet)
    written = []
    keys = list(sheet.runs.split(panel.lines))
    varied = [i for i in range(len(panel.lines)) if len({key[i] for key in keys}) > 1] or [0][: len(panel.lines)]
    for stem, metric in sheet.parts(list(panel.metrics), 1):
        points = []
        for key, runs in sheet.runs.split(panel.lines).items():
            x = runs.values(panel.along)
            y = [math.inf if math.isnan(value) else value for value in runs.values(metric[0])]
            if x and y and math.isfinite(statistics.median(y)):  # not where the median seed never converged
                name = key_text([panel.lines[i] for i in varied], tuple(key[i] for i in varied))
                points.append((name, statistics.median(x), statistics.median(y), key))
        if not points:
            continue
        with drawing(sheet.theme):
            figure = Figure(figsize=(5.6, 4.3), layout="constrained")
            axis = figure.subplots()
            for _, x, y, key in points:
                style = (
                    mechanism_style(str(key[panel.lines.index(MECHANISM)])) if MECHANISM in panel.lines else STYLES[1]
                )
                axis.plot(x, y, style.marker, color=style.on(sheet.theme), markersize=7)
            axis.margins(x=0.25, y=0.2)
            if is_wide(axis.dataLim.intervalx):
                logarithmic(axis, "x")
            if metric[0] == "speed_up":
                logarithmic(axis, "y")
                axis.axhline(1, color=PALETTES[sheet.theme].quiet, linewidth=0.9)
            axis.set_xlabel(metric_text(panel.along))
            axis.set_ylabel(metric_text(metric[0]))
            caption(figure, panel.title)
            name_points(axis, [point[:3] for point in points], sheet.theme, rule=1 if metric[0] == "speed_up" else None)
            written += save(figure, stem, sheet.formats)
    return written


def _draw_dispersion_ratios(sheet: Sheet) -> list[Path]:
    """Draw the ratio of dispersions, which needs both runs of a pair, as `semfocus theory speed` does."""
    when: When = "start" if sheet.panel.along.split(".")[2] == "0" else "end"
    mechanisms = [name for (name,) in sheet.runs.split([MECHANISM]) if name != BASE]
    written = []
    for stem, (mechanism,) in sheet.parts(mechanisms, 1):
        points = dispersion_points(sheet.runs.records, sheet.runs.measurements, mechanism)
        drawn = drawn_points(points, when)
        if drawn:
            correlation = dispersion_against_speed(points, when)
            written += draw_dispersion_vs_speedup(
                drawn, correlation, stem, when=when, formats=sheet.formats, theme=sheet.theme
            )
    return written


def draw_surface(sheet: Sheet) -> list[Path]:
    """Draw the loss surfaces of the seed that most lines have, a figure for each of `each`."""
    directions = sheet.panel.metrics[0].removeprefix("surface").strip("-") or "random"
    figures = []
    for title, runs in sheet.columns():
        lines = [(label, {record.seed: record for record in own.records}) for label, _, own in sheet.lines(runs)]
        seeds = sorted({seed for _, own in lines for seed in own})
        surfaces: dict[str, Surface] = {}
        for seed in sorted(seeds, key=lambda seed: -sum(seed in own for _, own in lines)):
            stored = [(label, _surface(sheet.root / own[seed].id, directions)) for label, own in lines if seed in own]
            surfaces = {label: surface for label, surface in stored[:ACROSS] if surface is not None}
            if surfaces:
                break
        if surfaces:
            figures.append((f"{title}, seed {seed}" if title else f"seed {seed}", surfaces))
    written = []
    for stem, part in sheet.parts(figures, 1):
        title, surfaces = part[0]
        text = f"{sheet.panel.title}: {title}"
        written += draw_surfaces(surfaces, stem, title=text, formats=sheet.formats, theme=sheet.theme)
    return written


def _surface(path: Path, directions: str) -> Surface | None:
    """A stored surface that can be drawn; None if it is missing or damaged."""
    try:
        surface = read_surface(RunDirectory(path), directions)
    except SemfocusError:
        return None
    return surface if surface is not None and np.isfinite(surface.losses).any() else None


def draw_table(sheet: Sheet) -> list[Path]:
    """Draw the medians over seeds as a table: a row for each column and line, with all measured percentiles."""
    from matplotlib.figure import Figure

    heads, rows = _table(sheet)
    if not rows:
        return []
    widest = max(len(row[0]) for row in rows)
    with drawing(sheet.theme):
        size = (0.075 * widest + 0.75 * len(heads) + 0.6, 0.6 + 0.24 * (len(rows) + 2))
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.subplots()
        axis.axis("off")
        labels = [row[0] for row in rows]
        table = axis.table(
            [row[1:] for row in rows], rowLabels=labels, colLabels=heads, loc="center", edges="horizontal"
        )
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        for (row, _), cell in table.get_celld().items():
            cell.set_height(cell.get_height() * (2.0 if row == 0 else 1.2))  # heads have two lines
            cell.set_edgecolor(PALETTES[sheet.theme].line)
            cell.get_text().set_color(PALETTES[sheet.theme].ink)
        caption(figure, f"{sheet.panel.title}: median over seeds")
        return save(figure, sheet.stem, sheet.formats)


def _table(sheet: Sheet) -> tuple[list[str], list[list[str]]]:
    """The heads, and for each row its label and cells; rows without any number are left out."""
    panel = sheet.panel
    lines = [(title, label, own) for title, runs in sheet.columns() for label, _, own in sheet.lines(runs)]
    fields: list[tuple[str, str]] = []  # head and field
    for metric in panel.metrics:
        percents = list(dict.fromkeys(p for _, _, own in lines for p in own.percentiles(metric)))
        name = metric_text(metric).rpartition(", ")[2]
        fields += [(f"{name}\np{p}", f"{metric}.{p}") for p in percents] or [(name, metric)]
    rows = []
    for title, label, own in lines:
        check_alike(panel.title, label, own.records)
        values = [own.values(field) for _, field in fields]
        if any(values):
            cells = [f"{statistics.median(known):.3g}" if known else "" for known in values]
            rows.append([", ".join(filter(None, (title, label))), *cells])
    return [head for head, _ in fields], rows
