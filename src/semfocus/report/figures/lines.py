"""Several seeds of one mechanism as one line: their median, and as a band all that lies between them.

for line in run_lines(runs):                     {"mechanism", "label", ...} each, "parity, full, seed 3" and so on
    draw_line(panel, line, [points_of(run) for run in line.members], theme)
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semfocus.report.figures.style import MechanismStyle, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
Points = Mapping[float, float]  # a place on the axis, and what was measured there
MARKERS = ("o", "D", "s", "^", "v", "P", "X", "h", "p", "*")
_SEED = re.compile(r", seed \d+$")


@dataclass(frozen=True)
class Line:
    """What is drawn as one: runs, or rows of a table, that differ in nothing but their seed."""

    label: str
    look: MechanismStyle
    members: tuple[Json, ...]


def run_lines(runs: Iterable[Json]) -> list[Line]:
    """A line for each mechanism and task; `parity, full, 3 seeds` where there are several."""

    def label(first: Json, seeds: int) -> str:
        return first["label"] if seeds == 1 else f"{_SEED.sub('', first['label'])}, {seeds} seeds"

    def same(run: Json) -> tuple[str, str]:
        return run["mechanism"], _SEED.sub("", run["label"])

    return lines(runs, same, lambda run: run["label"], label, lambda run: mechanism_style(run["mechanism"]))


def lines(
    items: Iterable[Json],
    same: Callable[[Json], Any],
    seed: Callable[[Json], Any],
    label: Callable[[Json, int], str],
    shape: Callable[[Json], MechanismStyle],
) -> list[Line]:
    """Items with the same key together, in the order of their first; no two lines look alike.

    A seed that comes twice is of runs that differ in something else: the second is another line, `... (2)`.
    """
    groups: dict[tuple[Any, int], list[Json]] = {}
    seen: Counter[Any] = Counter()
    for item in items:
        own = same(item), seed(item)
        groups.setdefault((same(item), seen[own]), []).append(item)
        seen[own] += 1
    found: list[Line] = []
    for (_, before), members in groups.items():
        name = label(members[0], len(members)) + (f" ({before + 1})" if before else "")
        found.append(Line(name, _unlike(shape(members[0]), [line.look for line in found]), tuple(members)))
    return found


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
    """The median of all members at each place that one of them has, and where there are several a band.

    Gives the places and the medians.
    """
    places = sorted({place for own in points for place in own})
    columns = [[own[place] for own in points if place in own] for place in places]
    middle, low, high = ([_finite(of(column)) for column in columns] for of in (statistics.median, min, max))
    shape, colour = line.look, line.look.on(theme)
    panel.plot(
        places, middle, color=colour, linestyle=shape.linestyle, linewidth=width, marker=shape.marker,
        markersize=marker_size, label=label,
    )  # fmt: skip
    if len(points) > 1:
        panel.fill_between(places, low, high, color=colour, alpha=0.14, linewidth=0)
    return list(zip(places, middle, strict=True))


def about_bands(found: Iterable[Line]) -> str:
    """What a figure says of its bands; nothing where it has none."""
    several = any(len(line.members) > 1 for line in found)
    return "Lines: the median over seeds; bands: all of them." if several else ""


def _unlike(own: MechanismStyle, others: Sequence[MechanismStyle]) -> MechanismStyle:
    """The same with another marker, if one of the others looks like it."""
    free = [own, *(own._replace(marker=marker) for marker in MARKERS)]
    return next((shape for shape in free if shape not in others), own)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
