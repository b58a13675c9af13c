"""Scatter plots with a name beside each point: what was measured on a task's models against how soon they learn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semfocus.analysis.masks_vs_speedup import OUTCOMES, MaskPoint, drawn_masks, masks_against
from semfocus.report.figures.drawing import (
    FORMATS,
    HINTED,
    caption,
    drawing,
    log_scale,
    logarithmic,
    plain_log_ticks,
    save,
)
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style
from semfocus.report.text import correlation_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from semfocus.analysis.correlation import Correlation

LABELS = {"epochs": "epochs to 95 % training accuracy", "speed-up": "times fewer epochs than full attention"}
CROWD, MOST_NEAR = 24, 3  # a point with more than MOST_NEAR points within CROWD points gets a name further away
COLUMNS_AWAY = (16, 28, 44, 64, 90, 120)  # points between a mark and the names of a column
COLUMN = 7  # names in a column above the mark, and as many below
HORIZONTAL, VERTICAL = {0.0: "left", 0.5: "center", 1.0: "right"}, {0.0: "bottom", 0.5: "center", 1.0: "top"}


def draw_dispersion_vs_speedup(
    points: Sequence[tuple[str, float, float]],
    correlation: Correlation,
    stem: Path,
    *,
    when: str = "start",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw `points` (task, ratio of dispersions, speed-up) with Spearman's correlation over them."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(5.2, 4.0), layout="constrained")
        panel = figure.subplots()
        style = mechanism_style("topk:5")
        for _, ratio, speed in points:
            panel.plot(ratio, speed, style.marker, color=style.on(theme), markersize=7)
        panel.axhline(1, color=PALETTES[theme].quiet, linewidth=0.9)
        if log_scale(panel, "y"):
            plain_log_ticks(panel.yaxis)
        panel.margins(x=0.2, y=0.15)
        panel.set_xlabel(f"dispersion of the k heaviest / of all keys, {when} of training")
        panel.set_ylabel(LABELS["speed-up"])
        figure.suptitle(correlation_text(correlation), fontsize=9, x=0.01, ha="left")
        name_points(panel, points, theme, rule=1)
        return save(figure, stem, formats)


def draw_masks_vs_speedup(
    points: Sequence[MaskPoint],
    stem: Path,
    *,
    mechanism: str = "topk:5",
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw the stability of masks against epochs (left) and speed-up (right).

    A hollow mark is a bound: runs that never reach the threshold count all the epochs they had.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    style, palette = mechanism_style(mechanism), PALETTES[theme]
    bounds = {
        "epochs": {point.task for point in points if not point.all_reached},
        "speed-up": {point.task for point in points if point.speed_up.ratio.sign != "="},
    }
    with drawing(theme):
        figure = Figure(figsize=(8.6, 4.3), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True)
        for panel, outcome in zip(panels, OUTCOMES, strict=True):
            for task, kept, value in drawn_masks(points, outcome):
                face = palette.ground if task in bounds[outcome] else style.on(theme)
                panel.plot(kept, value, style.marker, color=style.on(theme), markerfacecolor=face, markersize=7)
            panel.margins(x=0.25, y=0.2)
            logarithmic(panel, "y")
            panel.set_ylabel(LABELS[outcome])
            panel.set_xlabel("kept keys that stay under noise")
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(lambda value, place: f"{100 * value:.4g}%")
            title = correlation_text(masks_against(points, outcome), break_before_p=True).splitlines()
            lines = [part for line in title for part in textwrap.wrap(line, 52)]
            panel.set_title("\n".join(lines), fontsize=8, fontweight="normal")
        panels[1].axhline(1, color=palette.quiet, linewidth=0.9)
        hollow = " Hollow: a bound, for some runs never got there." if any(bounds.values()) else ""
        caption(figure, f"Stability of the masks of {mechanism}, and how soon it learns: a point a task.{hollow}")
        for panel, outcome in zip(panels, OUTCOMES, strict=True):
            name_points(panel, drawn_masks(points, outcome), theme, rule=1 if outcome == "speed-up" else None)
        return save(figure, stem, formats)


def name_points(
    panel: Axes,
    points: Sequence[tuple[str, float, float]],
    theme: Theme,
    *,
    mark: float = 7,
    size: float = 8,
    rule: float | None = None,
) -> None:
    """Write the names of points (name, x, y) beside their marks; a thin line leads to a name further away.

    Call it last: it measures the layout. `mark` and `size` are the sizes of marks and letters in points; `rule` is the
    y of a horizontal line that no name should lie on.
    """
    from matplotlib.transforms import Bbox

    figure: Any = panel.figure
    figure.draw_without_rendering()  # computes the layout
    pixel = 72 / figure.dpi  # in points
    frame = Bbox(pixel * panel.bbox.get_points())
    placed = [(name, (x, y), tuple(pixel * panel.transData.transform((x, y)))) for name, x, y in points]
    placed = [one for one in placed if all(map(math.isfinite, one[2]))]
    places = [place for _, _, place in placed]
    marks = [Bbox.from_bounds(x - mark / 2 - 1, y - mark / 2 - 1, mark + 2, mark + 2) for x, y in places]
    if rule is not None:
        level = pixel * panel.get_yaxis_transform().transform((0, rule))[1]
        marks.append(Bbox.from_bounds(frame.x0, level - 0.5, frame.width, 1))
    names: list[Any] = []
    lines: list[Any] = []
    for name, point, place in sorted(placed, key=lambda one: (-one[2][1], one[2][0], one[0])):
        text = panel.annotate(name, point, (0, 0), textcoords="offset points", fontsize=size)
        text.set_in_layout(False)  # making room for it would move what was measured
        outline = text.get_window_extent()
        text.remove()
        room = HINTED * pixel * outline.width + 2, pixel * outline.height + 1
        crowded = sum(math.dist(place, other) < CROWD for other in places) > MOST_NEAR
        spots = _candidates(place, mark, room, near=not crowded)
        spot = _fewest_conflicts((spot.conflicts(marks, names, lines, frame), spot) for spot in spots)
        names.append(spot.box)
        arrow = None
        if spot.line is not None:
            lines.append(spot.line)
            arrow = {"arrowstyle": "-", "color": PALETTES[theme].quiet, "linewidth": 0.6, "relpos": spot.corner}
            arrow |= {"shrinkA": 0, "shrinkB": mark / 2}
        panel.annotate(
            name, point, spot.offset, textcoords="offset points", fontsize=size, ha=HORIZONTAL[spot.corner[0]],
            va=VERTICAL[spot.corner[1]], arrowprops=arrow,
        ).set_in_layout(False)  # fmt: skip


class _Spot(NamedTuple):
    """A candidate place for a name, in points."""

    offset: tuple[float, float]  # from its mark
    corner: tuple[float, float]  # of the name that lies at the offset: (0, 0) is the lower left
    box: Any
    line: Any  # from the mark to the name; None for a name beside its mark

    def conflicts(
        self, marks: Sequence[Any], names: Sequence[Any], lines: Sequence[Any], frame: Any
    ) -> tuple[int, int]:
        """Overlaps with names, marks and the edge; then crossings of lines. A line may pass over marks."""
        outside = not all(frame.contains(*corner) for corner in self.box.corners())
        crossed = sum(line.intersects_bbox(self.box) for line in lines)
        if self.line is not None:
            crossed += sum(self.line.intersects_bbox(name) for name in names)
            crossed += sum(self.line.intersects_path(line, filled=False) for line in lines)
        return self.box.count_overlaps([*marks, *names]) + outside, crossed


def _fewest_conflicts(judged: Iterable[tuple[tuple[int, int], _Spot]]) -> _Spot:
    """The first spot without conflicts, else the first with the fewest."""
    fewest, best = next(one := iter(judged))
    while any(fewest) and (other := next(one, None)) is not None:
        fewest, best = other if other[0] < fewest else (fewest, best)
    return best


def _candidates(place: tuple[float, float], mark: float, room: tuple[float, float], near: bool) -> Iterator[_Spot]:
    """Candidates, best first: above, below, right and left of a mark, then in columns ever further away."""
    from matplotlib.path import Path as Line
    from matplotlib.transforms import Bbox

    def spot(offset: tuple[float, float], corner: tuple[float, float], is_far: bool) -> _Spot:
        end = place[0] + offset[0], place[1] + offset[1]
        box = Bbox.from_bounds(end[0] - corner[0] * room[0], end[1] - corner[1] * room[1], *room)
        length = math.hypot(*offset)
        start = place[0] + offset[0] * mark / 2 / length, place[1] + offset[1] * mark / 2 / length
        return _Spot(offset, corner, box, Line([start, end]) if is_far else None)

    beside = mark / 2 + 2
    if near:
        yield spot((0, beside), (0.5, 0.0), False)
        yield spot((0, -beside), (0.5, 1.0), False)
        yield spot((beside, 0), (0.0, 0.5), False)
        yield spot((-beside, 0), (1.0, 0.5), False)
    steps = sorted(range(-COLUMN, COLUMN + 1), key=lambda step: (abs(step), -step))
    for away in COLUMNS_AWAY:
        for step in steps:
            up = step * (room[1] + 1)
            yield spot((away, up), (0.0, 0.5), True)
            yield spot((-away, up), (1.0, 0.5), True)
