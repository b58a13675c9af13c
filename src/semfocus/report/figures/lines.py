"""Several seeds as one line: the curve of a metric over epochs, or measured points with a band.

    series(runs, "train_loss").middle                the median over seeds at each epoch, with quartiles
    for line in run_lines(runs):                     {"task", "mechanism", "seed", ...} each
        draw_line(panel, line, [points_of(run) for run in line.members], theme)

A curve is made of ended runs; one that stopped early keeps its last value. While no run has ended, the curve is made of
the runs in progress, as far as all of them have come.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semfocus.analysis.records import Record
from semfocus.report.figures.style import MechanismStyle, Theme, mechanism_style
from semfocus.report.text import run_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
Quantiles = tuple[float, float, float]  # lower end of the band, line, upper end
QUARTILES: Quantiles = (0.25, 0.5, 0.75)
Json = Mapping[str, Any]
Points = Mapping[float, float]  # x -> measured value
MARKERS = ("o", "D", "s", "^", "v", "P", "X", "h", "p", "*")


@dataclass(frozen=True, eq=False)
class Series:
    """Quantiles of one metric at each epoch; NaN where too many runs have no finite value."""

    epochs: Floats
    low: Floats
    middle: Floats
    high: Floats
    runs: int
    in_progress: bool


def shown_runs(runs: Sequence[Record]) -> tuple[list[Record], bool]:
    """The runs that a curve is made of, and whether they are still in progress."""
    ended = [run for run in runs if run.ended and run.metrics]
    return (ended, False) if ended else ([run for run in runs if run.metrics], True)


def series(runs: Sequence[Record], metric: str, shares: Quantiles = QUARTILES) -> Series | None:
    """The curve of several seeds; None when nothing was measured."""
    shown, in_progress = shown_runs([run for run in runs if run.final(metric) is not None])
    if not shown:
        return None
    columns = [columns_of(run, metric) for run in shown]
    epochs = np.unique(np.concatenate([own for own, _ in columns]))
    if in_progress:
        epochs = epochs[epochs <= min(own[-1] for own, _ in columns)]
    low, middle, high = quantiles(np.stack([held(own, values, epochs) for own, values in columns]), shares)
    return Series(epochs, low, middle, high, len(shown), in_progress)


def columns_of(run: Record, metric: str) -> tuple[Floats, Floats]:
    """Epochs and values of one run."""
    return run.column("epoch").astype(np.float64), run.column(metric).astype(np.float64)


def held(own: Floats, values: Floats, epochs: Floats) -> Floats:
    """Values at other epochs: the last one measured by then, or the first one before any was."""
    return values[np.maximum(np.searchsorted(own, epochs, side="right") - 1, 0)]


def quantiles(values: Floats, shares: Quantiles = QUARTILES) -> tuple[Floats, Floats, Floats]:
    """Quantiles over runs, the first axis; a value that is not finite counts as the largest.

    (runs, epochs) -> three of (epochs,), NaN where a quantile is not finite.
    """
    ordered = np.sort(np.where(np.isfinite(values), values, np.inf), axis=0)
    low, middle, high = (_quantile(ordered, share) for share in shares)
    return low, middle, high


def _quantile(ordered: Floats, share: float) -> Floats:
    place = share * (len(ordered) - 1)
    below, above = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
    known = np.isfinite(above)
    start, end = np.where(known, below, 0.0), np.where(known, above, 0.0)
    return np.where(known, start + (place % 1) * (end - start), np.nan)


@dataclass(frozen=True)
class Line:
    """Runs, or entries of a table, that differ only in their seed."""

    label: str
    style: MechanismStyle
    members: tuple[Json, ...]


def run_lines(runs: Iterable[Json]) -> list[Line]:
    """A line for each mechanism and task, in the order of their first run."""
    return group_lines(
        runs,
        same=lambda run: (run.get("task"), run["mechanism"]),
        label=run_label,
        style=lambda run: mechanism_style(run["mechanism"]),
    )


def group_lines(
    items: Iterable[Json],
    *,
    same: Callable[[Json], Any],
    label: Callable[[Json, int], str],
    style: Callable[[Json], MechanismStyle],
) -> list[Line]:
    """Group items with the same key, in the order of their first; no two lines have the same style.

    Items of one key and one seed differ in something else: the second of them is another line, `... (2)`.
    """
    groups: dict[tuple[Any, int], list[Json]] = {}
    repeats: Counter[Any] = Counter()
    for item in items:
        own = same(item), item.get("seed")
        groups.setdefault((same(item), repeats[own]), []).append(item)
        repeats[own] += 1
    lines: list[Line] = []
    for (_, before), members in groups.items():
        name = label(members[0], len(members)) + (f" ({before + 1})" if before else "")
        lines.append(Line(name, unlike(style(members[0]), [line.style for line in lines]), tuple(members)))
    return lines


def draw_line(
    panel: Axes,
    line: Line,
    points: Sequence[Points],
    theme: Theme,
    *,
    label: str | None = None,
    width: float | None = None,
    marker_size: float = 4,
) -> list[tuple[float, float]]:
    """Draw the median of all members at each x that one of them has, and a band where there are several members.

    Returns the x and the medians.
    """
    places = sorted({place for own in points for place in own})
    columns = [[own[place] for own in points if place in own] for place in places]
    middle, low, high = ([_finite(of(column)) for column in columns] for of in (statistics.median, min, max))
    draw_marked_line(panel, places, middle, line.style, theme, label=label, linewidth=width, markersize=marker_size)
    if len(points) > 1:
        panel.fill_between(places, low, high, color=line.style.on(theme), alpha=0.14, linewidth=0)
    return list(zip(places, middle, strict=True))


def draw_marked_line(
    panel: Axes, places: ArrayLike, values: ArrayLike, style: MechanismStyle, theme: Theme, **options: Any
) -> None:
    """Draw a line with a mark at each of its points; `options` as for matplotlib's `plot`."""
    look: dict[str, Any] = {"color": style.on(theme), "linestyle": style.linestyle, "marker": style.marker}
    panel.plot(places, values, **look | options)


def about_bands(lines: Iterable[Line]) -> str:
    """What a figure's caption says of its bands; empty where there are none."""
    several = any(len(line.members) > 1 for line in lines)
    return "Lines: the median over seeds; bands: all of them." if several else ""


def unlike(style: MechanismStyle, others: Sequence[MechanismStyle]) -> MechanismStyle:
    """The style with another marker, if one of the others is the same."""
    candidates = [style, *(style._replace(marker=marker) for marker in MARKERS)]
    return next((candidate for candidate in candidates if candidate not in others), style)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
