"""How models attend, drawn: heat maps of layers by heads, W and X of Table 6, dispersion along training, the
stability of masks under noise, and dispersion against speed-up. Plain documents in, figures out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.report.figures.drawing import FORMATS, caption, drawing, legend, name_points, percent, save
from semfocus.report.figures.lines import Line, about_bands, draw_line, lines, run_lines
from semfocus.report.figures.scales import log_scale
from semfocus.report.figures.style import PALETTES, MechanismStyle, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from semfocus.analysis.correlation import Correlation

Json = Mapping[str, Any]
# What is mapped: name and percentile, title, whether the scale is logarithmic, and whether it is a share of 1.
MAPS = (
    ("top_share", "50", "Weight in the {k} heaviest keys, p50", False, True),
    ("k95", "95", "Keys for 95 % of the weight, p95", False, False),
    ("entropy", "50", "Entropy of the weights (nats), p50", False, False),
    ("separation", "50", "Separation of the {k} heaviest, p50", True, False),
    ("delta_full", "95", "Dispersion of all scores, p95", False, False),
    ("sink_share", "50", "Largest share of one key, p50", False, True),
)
WRITTEN = 160  # cells up to which each has its number written in it
TICKS = 16  # at most, along an axis of heads or layers
COLUMNS = ("75", "90", "95", "100")
PLACES: dict[str, float] = {"75": 0, "90": 1, "95": 2, "100": 3}
MARKER = 5.5  # points


def draw_heat_maps(
    document: Json, stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """One map for each number that matters, layers down and heads across."""
    from matplotlib.figure import Figure

    layers = document["layers"]
    across, down = max(len(layer["heads"]) for layer in layers), len(layers)
    width, height = min(max(3.3, 0.9 + 0.42 * across), 8.0), min(max(1.7, 1.1 + 0.3 * down), 6.0)
    with drawing(theme):
        figure = Figure(figsize=(2 * width, 3 * height), layout="constrained")
        panels = figure.subplots(3, 2, squeeze=False).flatten()
        for panel, (name, at, title, logarithmic, share) in zip(panels, MAPS, strict=True):
            grid = [[_cell(head, name, at) for head in layer["heads"]] for layer in layers]
            padded = [row + [math.nan] * (across - len(row)) for row in grid]
            panel.set_title(title.format(k=document["k"]), fontsize=8.5)
            _map(panel, padded, logarithmic, share, theme)
        return save(figure, stem, formats)


def draw_conditions(
    rows: Sequence[Json], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """W and X of Table 6 by percentile, seeds as one line; hollow marks: the bounds behind them are vacuous."""
    from matplotlib.figure import Figure

    found = lines(rows, _all_but_seed, lambda row: row.get("seed"), row_label, _row_look)
    several = " of at least one seed" if any(len(line.members) > 1 for line in found) else ""
    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for panel, name in zip(panels, ("w", "x"), strict=True):
            for line in found:
                _conditions(panel, line, name, theme)
            panel.axhline(1, color=PALETTES[theme].quiet, linewidth=1)
            if log_scale(panel, "y"):
                _plain_numbers(panel.yaxis)
            panel.set_xticks(range(len(COLUMNS)), COLUMNS)
            panel.set_xlabel("percentile; 100 is the theorem")
            panel.set_title(name.upper())
        words = f"Below 1 the paper's bound favours focus; hollow marks: the bounds{several} are vacuous."
        caption(figure, f"{words} {about_bands(found)}")
        legend(figure, list(panels), columns=2)
        return save(figure, stem, formats)


def draw_dispersion_along_training(
    runs: Sequence[Json], stem: Path, *, at: str = "95", formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """`runs`: {"mechanism", "label", "checkpoints"} each; dispersion of all keys and of the k heaviest by epoch.

    Runs that differ in their seed alone are one line, their median, with a band around it.
    """
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        panels = figure.subplots(1, 3)
        titles = {"delta_full": "All keys", "delta_heavy": "The k heaviest keys", "separation": "Separation"}
        found = run_lines(runs)
        for panel, (name, title) in zip(panels, titles.items(), strict=True):
            for line in found:
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
            panel.xaxis.set_major_formatter(_plain)
            if name == "separation":
                if log_scale(panel, "y"):
                    _plain_numbers(panel.yaxis)
            else:
                panel.set_ylim(0, 1.05 * panel.get_ylim()[1])  # room for the highest mark
        panels[0].set_ylabel(f"percentile {at} (separation: {100 - int(at)})")
        caption(figure, about_bands(found))
        legend(figure, list(panels))
        return save(figure, stem, formats)


def draw_mask_stability(
    runs: Sequence[Json], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """`runs`: {"mechanism", "label", "measured"}: the share of kept keys that stay, by noise and by separation.

    Runs that differ in their seed alone are one line, their median, with a band around it.
    """
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        found = run_lines(runs)
        for line in found:
            measured = [run["measured"] for run in line.members]
            by_noise = [_known(zip(one["noise"], one["kept"], strict=True)) for one in measured]
            draw_line(left, line, by_noise, theme, label=line.label)
            groups, middle = [one["by_separation"] for one in measured], len(measured[0]["noise"]) // 2
            draw_line(right, line, [_known(enumerate(group["kept"][middle])) for group in groups], theme)
            right.set_title(f"By separation, noise {measured[0]['noise'][middle]:g}")
            starts = [0, *groups[0]["borders"]]
            right.set_xticks(range(len(starts)), [f"from\n{start:g}" for start in starts])
        log_scale(left, "x")
        left.xaxis.set_major_formatter(_plain)
        left.set_title("Mean over queries")
        left.set_xlabel("noise / spread of the embeddings")
        left.set_ylabel("kept keys that stay")
        left.set_ylim(0, 1.03)
        percent(left.yaxis)
        caption(figure, about_bands(found))
        legend(figure, [left])
        return save(figure, stem, formats)


def draw_against_speed(
    points: Sequence[tuple[str, float, float]],
    correlation: Correlation,
    stem: Path,
    *,
    when: str = "start",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """`points`: task, ratio of dispersions, speed-up; with Spearman's correlation over them."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(5.2, 4.0), layout="constrained")
        panel = figure.subplots()
        shape = mechanism_style("topk:5")
        for _, ratio, speed in points:
            panel.plot(ratio, speed, shape.marker, color=shape.on(theme), markersize=7)
        panel.axhline(1, color=PALETTES[theme].quiet, linewidth=0.9)
        if log_scale(panel, "y"):
            _plain_numbers(panel.yaxis)
        panel.margins(x=0.2, y=0.15)
        panel.set_xlabel(f"dispersion of the k heaviest / of all keys, {when} of training")
        panel.set_ylabel("times fewer epochs than full attention")
        figure.suptitle(correlation_text(correlation), fontsize=9, x=0.01, ha="left")
        name_points(panel, points, theme, rule=1)
        return save(figure, stem, formats)


def correlation_text(found: Correlation) -> str:
    """`Rank correlation -0.71 (95 %: -0.95 to 0.02), p = 0.06, 8 tasks`, or why there is none."""
    if found.rho is None or found.p is None or found.interval is None:
        return f"Rank correlation: {found.why or 'not enough data'}"
    low, high = found.interval.low, found.interval.high
    return f"Rank correlation {found.rho:.2f} (95 %: {low:.2f} to {high:.2f}), p = {found.p:.2g}, {found.items} tasks"


def _cell(head: Json, name: str, at: str) -> float:
    """A number, infinite where it was so, NaN where nothing was seen."""
    value = head[name][at]
    if value is None:
        return math.inf if at in head["infinite"].get(name, ()) else math.nan
    return value


def _map(panel: Axes, grid: list[list[float]], logarithmic: bool, share: bool, theme: Theme) -> None:
    from matplotlib.colors import LogNorm, Normalize

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
        _few_numbers(bar.ax.yaxis, low, high)
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


def _row_look(row: Json) -> MechanismStyle:
    shape = mechanism_style(row.get("mechanism", "full"))
    if row["way"] == "published":
        return shape._replace(colour=PALETTES["light"].quiet, dark=PALETTES["dark"].quiet)
    return shape._replace(dash=() if row["way"] == "two models" else (5, 2))


def _all_but_seed(row: Json) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("way", "task", "mechanism", "checkpoint"))


def _conditions(panel: Axes, line: Line, name: str, theme: Theme) -> None:
    known = [{PLACES[p]: cell for p, cell in row["cells"].items() if p in PLACES} for row in line.members]
    points = [_known((place, _condition(cell, name)) for place, cell in own.items()) for own in known]
    vacuous = {place for own in known for place, cell in own.items() if cell["vacuous"]}
    for place, value in draw_line(panel, line, points, theme, label=line.label, width=1.3, marker_size=MARKER):
        if place in vacuous:
            panel.plot(
                place, value, line.look.marker, color=line.look.on(theme), markerfacecolor=PALETTES[theme].ground,
                markersize=MARKER,
            )  # fmt: skip


def _condition(cell: Json, name: str) -> float | None:
    """Infinite where it was so; None where it is not known, or has no place on a logarithmic axis."""
    value = math.inf if name in cell["infinite"] else cell[name]
    return value if value is not None and value > 0 else None


def _plain(value: float, _place: int | None = None) -> str:
    return f"{value:g}"


def _plain_numbers(axis: Any) -> None:
    """1, 2 and 5 times the powers of ten on a logarithmic axis, written out."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axis.set_major_formatter(_plain)
    axis.set_minor_formatter(NullFormatter())


def _few_numbers(axis: Any, low: float, high: float) -> None:
    """On a short logarithmic axis: its ends and what lies between them in ratio, to two digits."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator([low, math.sqrt(low * high), high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _place: f"{value:.2g}")


def row_label(row: Json, seeds: int = 1) -> str:
    """What a row of Table 6 is about: `even_pairs, seed 3, full and top-k run, epoch 20`; of several seeds how many."""
    if row["way"] == "published":
        return f"{row['task']}, the paper's numbers"
    place = "" if row["checkpoint"] == "last" else f", epoch {row['checkpoint']}"
    who = "full and top-k run" if row["way"] == "two models" else f"{row['mechanism']} alone"
    whose = f"seed {row['seed']}" if seeds == 1 else f"{seeds} seeds"
    return f"{row['task']}, {whose}, {who}{place}"
