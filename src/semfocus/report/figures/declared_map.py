"""Declared panels of the kind map: a table of coloured cells, the median over seeds in each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.report.figures.drawing import caption, drawing, plain, save
from semfocus.report.figures.panel_values import (
    MECHANISM,
    NORMALISER,
    Key,
    Runs,
    Sheet,
    check_alike,
    is_share,
    key_text,
    metric_text,
)
from semfocus.report.figures.style import PALETTES, Theme
from semfocus.report.text import counted

DARK, LIGHT = "#1b1b1f", "#ffffff"
SPREAD = 20.0  # largest / smallest value beyond which colours are logarithmic


def draw_map(sheet: Sheet) -> list[Path]:
    """Draw one figure for each metric: rows by `each`, columns by `lines`; an empty cell has no run with a value.

    A run that never converged counts as later than all others: where half of the seeds never did, the cell says how
    many did.
    """
    columns = list(sheet.runs.split(sheet.panel.lines))
    rows = sheet.columns()
    written = []
    for stem, (metric,) in sheet.parts(list(sheet.panel.metrics), 1):
        cells = [[_cell(sheet, runs.split(sheet.panel.lines).get(key), metric) for key in columns] for _, runs in rows]
        if any(cell is not None for row in cells for cell in row):
            names = [_way(sheet.panel.lines, key) for key in columns]
            written += _draw(sheet, stem, metric, [title for title, _ in rows], names, cells)
    return written


class _Cell(NamedTuple):
    """The median over seeds, inf where half of them never converged; and what stands in the cell."""

    median: float
    text: str


def _cell(sheet: Sheet, runs: Runs | None, metric: str) -> _Cell | None:
    if runs is None:
        return None
    check_alike(sheet.panel.title, metric, runs.records)
    values = [math.inf if math.isnan(value) else value for value in runs.values(metric)]
    if not values:
        return None
    middle, known = statistics.median(values), sum(map(math.isfinite, values))
    if not math.isfinite(middle):
        return _Cell(middle, f"{known} of {len(values)}" if known else "never")
    return _Cell(middle, f"{middle:.0%}" if is_share(metric) else plain(float(f"{middle:.3g}")))


def _way(fields: Sequence[str], key: Key) -> str:
    """`topk:5`, `entmax:1.5`, `topk:5, sigmoid`: what is usual is not said."""
    parts = dict(zip(fields, key, strict=True))
    mechanism, normaliser = parts.get(MECHANISM), parts.get(NORMALISER, "softmax")
    if mechanism is None:
        return key_text(fields, key)
    if normaliser == "softmax":
        return str(mechanism)
    return str(normaliser) if mechanism == BASE else f"{mechanism}, {normaliser}"


def _draw(
    sheet: Sheet, stem: Path, metric: str, rows: Sequence[str], names: Sequence[str], cells: list[list[_Cell | None]]
) -> list[Path]:
    from matplotlib.figure import Figure

    table = np.array([[math.nan if cell is None else cell.median for cell in row] for row in cells])
    known = table[np.isfinite(table)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if is_share(metric):
        low, high = 0.0, 1.0
    logarithmic = not is_share(metric) and low > 0 and high / low > SPREAD
    with drawing(sheet.theme):
        widest = max(map(len, rows), default=0)
        size = (0.085 * widest + 0.62 * len(names) + 1.6, 0.30 * len(rows) + 1.7)
        figure = Figure(figsize=size, layout="constrained")
        panel = figure.subplots()
        shades = _shades(table, low, high, logarithmic)
        panel.imshow(_colours(shades, sheet.theme), aspect="auto", interpolation="nearest")
        for i, row in enumerate(cells):
            for j, cell in enumerate(row):
                if cell is not None:
                    ink = _ink(shades[i, j]) if math.isfinite(cell.median) else PALETTES[sheet.theme].ink
                    panel.text(j, i, cell.text, ha="center", va="center", fontsize=7, color=ink)
        panel.set_xticks(range(len(names)), names, rotation=40, ha="right")
        panel.set_yticks(range(len(rows)), rows)
        panel.tick_params(length=0, labelcolor=PALETTES[sheet.theme].ink)
        panel.grid(visible=False)
        for spine in panel.spines.values():
            spine.set_visible(False)
        caption(figure, f"{metric_text(metric)}: median over {counted(sheet.runs.seeds, 'seed')}")
        return save(figure, stem, sheet.formats)


def _shades(table: np.ndarray, low: float, high: float, logarithmic: bool) -> np.ndarray:
    """Each value between the smallest (0) and the largest (1)."""
    if high <= low:
        return np.where(np.isfinite(table), 0.5, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.log(table / low) / math.log(high / low) if logarithmic else (table - low) / (high - low)
    return np.where(np.isfinite(table), np.clip(scaled, 0, 1), np.nan)


def _colours(shades: np.ndarray, theme: Theme) -> np.ndarray:
    import matplotlib as mpl
    from matplotlib.colors import to_rgb

    colours = mpl.colormaps["viridis"](np.nan_to_num(shades))[..., :3]
    colours[np.isnan(shades)] = to_rgb(PALETTES[theme].line)
    return colours


def _ink(shade: float) -> str:
    """Dark text on the bright end of the scale."""
    return DARK if shade > 0.6 else LIGHT
