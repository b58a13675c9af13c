"""Several seeds of one mechanism as one line: their median, with a band from the lowest to the highest.

for line in run_lines(runs):                     {"task", "mechanism", "seed", ...} each
    draw_line(panel, line, [points_of(run) for run in line.members], theme)
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semfocus.report.figures.style import MechanismStyle, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
Points = Mapping[float, float]  # x -> measured value
MARKERS = ("o", "D", "s", "^", "v", "P", "X", "h", "p", "*")


@dataclass(frozen=True)
class Line:
    """Runs, or entries of a table, that differ only in their seed."""

    label: str
    style: MechanismStyle
    members: tuple[Json, ...]


def run_label(run: Json, seeds: int = 1) -> str:
    """`parity, full, seed 3`, or `parity, full, 3 seeds`; task and seed are left out where the run has none."""
    names = [run["task"]] if "task" in run else []
    if seeds > 1:
        return ", ".join([*names, run["mechanism"], f"{seeds} seeds"])
    return ", ".join([*names, run["mechanism"], *([f"seed {run['seed']}"] if "seed" in run else [])])


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
    panel: Axes, places: Sequence[float], values: Sequence[float], style: MechanismStyle, theme: Theme, **options: Any
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
