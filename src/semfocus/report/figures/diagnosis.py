"""Figures of how models attend: heat maps of layers by heads, W and X of Table 6, dispersion along training, and the
stability of masks under noise. Plain documents in, figures out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semfocus.report.diagnosis_text import TABLE6_PERCENTILES, row_label
from semfocus.report.figures.drawing import (
    FORMATS,
    caption,
    drawing,
    legend,
    log_scale,
    percent,
    plain,
    plain_log_ticks,
    save,
    three_log_ticks,
)
from semfocus.report.figures.lines import Line, about_bands, draw_line, group_lines, run_lines
from semfocus.report.figures.style import PALETTES, MechanismStyle, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]


class HeatMap(NamedTuple):
    """One number of each head, as a map."""

    name: str
    percentile: str
    title: str
    logarithmic: bool = False
    share: bool = False  # of 1, written in per cent


MAPS = (
    HeatMap("top_share", "50", "Weight in the {k} heaviest keys, p50", share=True),
    HeatMap("k95", "95", "Keys for 95 % of the weight, p95"),
    HeatMap("entropy", "50", "Entropy of the weights (nats), p50"),
    HeatMap("separation", "50", "Separation of the {k} heaviest, p50", logarithmic=True),
    HeatMap("delta_full", "95", "Dispersion of all scores, p95"),
    HeatMap("sink_share", "50", "Largest share of one key, p50", share=True),
)
WRITTEN = 160  # cells up to which each shows its number
TICKS = 16  # at most, along an axis of heads or layers
PLACES: dict[str, float] = {percent: place for place, percent in enumerate(TABLE6_PERCENTILES)}  # on the axis
MARKER = 5.5  # points


def draw_heat_maps(
    document: Json, stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw a map for each of MAPS, layers down and heads across."""
    from matplotlib.figure import Figure

    layers = document["layers"]
    across, down = max(len(layer["heads"]) for layer in layers), len(layers)
    width, height = min(max(3.3, 0.9 + 0.42 * across), 8.0), min(max(1.7, 1.1 + 0.3 * down), 6.0)
    with drawing(theme):
        figure = Figure(figsize=(2 * width, 3 * height), layout="constrained")
        panels = figure.subplots(3, 2, squeeze=False).flatten()
        for panel, heat_map in zip(panels, MAPS, strict=True):
            grid = [[_head_value(head, heat_map) for head in layer["heads"]] for layer in layers]
            padded = [values + [math.nan] * (across - len(values)) for values in grid]
            panel.set_title(heat_map.title.format(k=document["k"]), fontsize=8.5)
            _draw_heat_map(panel, padded, heat_map, theme)
        return save(figure, stem, formats)


def draw_conditions(
    rows: Sequence[Json], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw W and X of Table 6 by percentile, seeds as one line; hollow marks: the bounds behind them are vacuous."""
    from matplotlib.figure import Figure

    lines = group_lines(rows, same=_all_but_seed, label=row_label, style=_row_style)
    several = " of at least one seed" if any(len(line.members) > 1 for line in lines) else ""
    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for panel, name in zip(panels, ("w", "x"), strict=True):
            for line in lines:
                _draw_conditions(panel, line, name, theme)
            panel.axhline(1, color=PALETTES[theme].quiet, linewidth=1)
            if log_scale(panel, "y"):
                plain_log_ticks(panel.yaxis)
            panel.set_xticks(range(len(TABLE6_PERCENTILES)), TABLE6_PERCENTILES)
            panel.set_xlabel("percentile; 100 is the theorem")
            panel.set_title(name.upper())
        text = f"Below 1 the paper's bound favours focus; hollow marks: the bounds{several} are vacuous."
        caption(figure, f"{text} {about_bands(lines)}")
        legend(figure, list(panels), columns=2)
        return save(figure, stem, formats)


def draw_dispersion_along_training(
    runs: Sequence[Json], stem: Path, *, at: str = "95", formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw dispersion of all keys, of the k heaviest, and separation by epoch.

    `runs` have "mechanism", "checkpoints" and, where they are known, "task" and "seed" (see `run_label`). Runs that
    differ only in their seed are one line, their median, with a band around it.
    """
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        panels = figure.subplots(1, 3)
        titles = {"delta_full": "All keys", "delta_heavy": "The k heaviest keys", "separation": "Separation"}
        lines = run_lines(runs)
        for panel, (name, title) in zip(panels, titles.items(), strict=True):
            for line in lines:
                points = [
                    {c["epoch"]: c[name][at] for c in run["checkpoints"].values() if c[name][at] is not None}
                    for run in line.members
                ]
                draw_line(panel, line, points, theme, label=line.label)
            panel.set_title(title)
            panel.set_xlabel("epoch")
            panel.set_xscale("symlog", linthresh=1)
            epochs = sorted({c["epoch"] for run in runs for c in run["checkpoints"].values()})
            panel.set_xticks(epochs[:: -(-len(epochs) // TICKS)])
            panel.xaxis.set_major_formatter(plain)
            if name == "separation":
                if log_scale(panel, "y"):
                    plain_log_ticks(panel.yaxis)
            else:
                panel.set_ylim(0, 1.05 * panel.get_ylim()[1])  # so that the highest mark is not cut
        panels[0].set_ylabel(f"percentile {at} (separation: {100 - int(at)})")
        caption(figure, about_bands(lines))
        legend(figure, list(panels))
        return save(figure, stem, formats)


def draw_mask_stability(
    runs: Sequence[Json], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw the share of kept keys that stay, by noise and by separation; `runs` as above, with "measured"."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        lines = run_lines(runs)
        for line in lines:
            measured = [run["measured"] for run in line.members]
            by_noise = [_known(zip(one["noise"], one["kept"], strict=True)) for one in measured]
            draw_line(left, line, by_noise, theme, label=line.label)
            groups, middle = [one["by_separation"] for one in measured], len(measured[0]["noise"]) // 2
            draw_line(right, line, [_known(enumerate(group["kept"][middle])) for group in groups], theme)
            right.set_title(f"By separation, noise {measured[0]['noise'][middle]:g}")
            starts = [0, *groups[0]["borders"]]
            right.set_xticks(range(len(starts)), [f"from\n{start:g}" for start in starts])
        log_scale(left, "x")
        left.xaxis.set_major_formatter(plain)
        left.set_title("Mean over queries")
        left.set_xlabel("noise / spread of the embeddings")
        left.set_ylabel("kept keys that stay")
        left.set_ylim(0, 1.03)
        percent(left.yaxis)
        caption(figure, about_bands(lines))
        legend(figure, [left])
        return save(figure, stem, formats)


def _head_value(head: Json, heat_map: HeatMap) -> float:
    """A stored number; infinite where it was infinite, NaN where nothing was measured."""
    value = head[heat_map.name][heat_map.percentile]
    if value is None:
        return math.inf if heat_map.percentile in head["infinite"].get(heat_map.name, ()) else math.nan
    return value


def _draw_heat_map(panel: Axes, grid: list[list[float]], heat_map: HeatMap, theme: Theme) -> None:
    from matplotlib.colors import LogNorm, Normalize

    logarithmic, share = heat_map.logarithmic, heat_map.share
    known = [value for row in grid for value in row if math.isfinite(value) and (value > 0 or not logarithmic)]
    low, high = (0.0, 1.0) if share else (min(known, default=1.0) if logarithmic else 0.0, max(known, default=1.0))
    norm = LogNorm(low, high) if logarithmic and high > low > 0 else Normalize(low, high if high > low else low + 1)
    shown = [[value if math.isfinite(value) else math.nan for value in row] for row in grid]
    image = panel.imshow(shown, cmap="viridis", norm=norm, aspect="auto")
    panel.grid(visible=False)
    panel.set_xlabel("head")
    panel.set_ylabel("layer")
    for axis, count in ((panel.xaxis, len(grid[0])), (panel.yaxis, len(grid))):
        axis.set_ticks(range(0, count, -(-count // TICKS)))
    bar = panel.figure.colorbar(image, ax=panel, pad=0.02)
    if share:
        percent(bar.ax.yaxis)
    elif isinstance(norm, LogNorm):
        three_log_ticks(bar.ax.yaxis, low, high)
    if len(grid) * len(grid[0]) <= WRITTEN:
        for i, row in enumerate(grid):
            for j, value in enumerate(row):
                dark = math.isfinite(value) and norm(value) < 0.55
                ink = "#ffffff" if dark else PALETTES["light" if math.isfinite(value) else theme].ink
                panel.text(j, i, _short(value, share), ha="center", va="center", fontsize=6.5, color=ink)


def _short(value: float, share: bool) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞"
    return f"{value:.0%}" if share else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _known(pairs: Iterable[tuple[float, float | None]]) -> dict[float, float]:
    return {place: value for place, value in pairs if value is not None}


def _row_style(row: Json) -> MechanismStyle:
    style = mechanism_style(row.get("mechanism", "full"))
    if row["way"] == "published":
        return style._replace(colour=PALETTES["light"].quiet, dark=PALETTES["dark"].quiet)
    return style._replace(dash=() if row["way"] == "two models" else (5, 2))


def _all_but_seed(row: Json) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("way", "task", "mechanism", "checkpoint"))


def _draw_conditions(panel: Axes, line: Line, name: str, theme: Theme) -> None:
    known = [{PLACES[p]: cell for p, cell in row["cells"].items() if p in PLACES} for row in line.members]
    points = [_known((place, _condition(cell, name)) for place, cell in own.items()) for own in known]
    vacuous = {place for own in known for place, cell in own.items() if cell["vacuous"]}
    for place, value in draw_line(panel, line, points, theme, label=line.label, width=1.3, marker_size=MARKER):
        if place in vacuous:
            panel.plot(
                place, value, line.style.marker, color=line.style.on(theme), markerfacecolor=PALETTES[theme].ground,
                markersize=MARKER,
            )  # fmt: skip


def _condition(cell: Json, name: str) -> float | None:
    """W or X, infinite where it was infinite; None where it is unknown or not positive (the axis is logarithmic)."""
    value = math.inf if name in cell["infinite"] else cell[name]
    return value if value is not None and value > 0 else None
