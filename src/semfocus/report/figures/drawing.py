"""What every figure shares: type, colours of a theme, and files that are there whole or not at all."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semfocus.report.figures.style import PALETTES, Theme
from semfocus.store.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
LEGEND_SIZE = 9  # points
LEGEND_LINE = 4.0 * LEGEND_SIZE  # of a line and the space after it
LEGEND_GAP = 1.8 * LEGEND_SIZE  # between columns
LEGEND_MARGIN = 8  # at either side
CROWD, MOST_NEAR = 24, 3  # points within which so many marks can have their names right beside them
COLUMNS_AWAY = (16, 28, 44, 64, 90, 120)  # points between a mark and the names of a column
COLUMN = 7  # names in it, above and below
ACROSS, UP = {0.0: "left", 0.5: "center", 1.0: "right"}, {0.0: "bottom", 0.5: "center", 1.0: "top"}
HINTED = 1.06  # letters that are moved to whole pixels take a little more room than their outlines
DPI = {"svg": 180, "pdf": 180, "png": 180, "webp": 144}  # the last inside a page, which has to stay small
_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}, "png": {}}  # same runs, same bytes


@contextmanager
def drawing(theme: Theme = "light") -> Iterator[None]:
    """Draw inside this block: sizes, colours and fonts as the house has them, whatever the user's own settings."""
    import matplotlib as mpl

    ground, ink, quiet, line = PALETTES[theme]
    style: dict[str, Any] = {
        "figure.facecolor": ground, "axes.facecolor": ground, "savefig.facecolor": ground,
        "text.color": ink, "axes.labelcolor": ink, "axes.titlecolor": ink, "axes.edgecolor": quiet,
        "xtick.color": quiet, "ytick.color": quiet, "xtick.labelcolor": quiet, "ytick.labelcolor": quiet,
        "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.titlepad": 8, "axes.labelsize": 9, "legend.fontsize": LEGEND_SIZE,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": line, "grid.linewidth": 0.6, "axes.axisbelow": True,
        "lines.linewidth": 1.7, "lines.dash_capstyle": "butt", "lines.scale_dashes": False,
        "xtick.major.size": 3, "ytick.major.size": 0, "xtick.major.width": 0.8,
        "text.parse_math": False,  # a task may be called $x$
        "svg.fonttype": "none", "svg.hashsalt": "semfocus", "pdf.fonttype": 42,
    }  # fmt: skip
    with mpl.rc_context({**mpl.rcParamsDefault, **style}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        warnings.filterwarnings("ignore", message="Attempting to set identical low and high")  # all values the same
        yield


def both_themes(draw: Callable[[str, Theme], list[Path]]) -> list[Path]:
    """Draw in light and in dark; `draw` takes the end of the file's name and the theme."""
    return [*draw("", "light"), *draw("-dark", "dark")]


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem`.svg and so on."""
    written = []
    for kind in formats:
        target = stem.with_name(f"{stem.name}.{kind}")  # with_suffix would cut a name that has a dot
        with replacing(target) as draft:
            figure.savefig(draft, format=kind, dpi=DPI[kind], metadata=_DATES.get(kind))
        written.append(target)
        figure.set_layout_engine("none")  # found once; the other formats keep it
    return written


def name_points(
    panel: Axes,
    points: Sequence[tuple[str, float, float]],
    theme: Theme,
    *,
    mark: float = 7,
    size: float = 8,
    rule: float | None = None,
) -> None:
    """Write the names of marks (name, x, y) beside them, over no other name or mark; one further off has a thin line.

    Call it last, for it measures where everything lies. `mark` and `size`: of marks and letters, in points; `rule`: the
    y of a horizontal line that no name should lie on.
    """
    from matplotlib.transforms import Bbox

    figure: Any = panel.figure
    figure.draw_without_rendering()  # finds the layout
    pixel = 72 / figure.dpi  # in points
    frame = Bbox(pixel * panel.bbox.get_points())
    found = [(name, (x, y), tuple(pixel * panel.transData.transform((x, y)))) for name, x, y in points]
    found = [one for one in found if all(map(math.isfinite, one[2]))]
    places = [place for _, _, place in found]
    marks = [Bbox.from_bounds(x - mark / 2 - 1, y - mark / 2 - 1, mark + 2, mark + 2) for x, y in places]
    if rule is not None:
        level = pixel * panel.get_yaxis_transform().transform((0, rule))[1]
        marks.append(Bbox.from_bounds(frame.x0, level - 0.5, frame.width, 1))
    names: list[Any] = []
    lines: list[Any] = []
    for name, point, place in sorted(found, key=lambda one: (-one[2][1], one[2][0], one[0])):
        text = panel.annotate(name, point, (0, 0), textcoords="offset points", fontsize=size)
        text.set_in_layout(False)  # a layout that made room for it would move what was measured
        outline = text.get_window_extent()
        text.remove()
        room = HINTED * pixel * outline.width + 2, pixel * outline.height + 1
        crowded = sum(math.dist(place, other) < CROWD for other in places) > MOST_NEAR
        spots = _spots(place, mark, room, near=not crowded)
        spot = _least((spot.conflicts(marks, names, lines, frame), spot) for spot in spots)
        names.append(spot.box)
        arrow = None
        if spot.line is not None:
            lines.append(spot.line)
            arrow = {"arrowstyle": "-", "color": PALETTES[theme].quiet, "linewidth": 0.6, "relpos": spot.corner}
            arrow |= {"shrinkA": 0, "shrinkB": mark / 2}
        panel.annotate(
            name, point, spot.offset, textcoords="offset points", fontsize=size, ha=ACROSS[spot.corner[0]],
            va=UP[spot.corner[1]], arrowprops=arrow,
        ).set_in_layout(False)  # fmt: skip


class _Spot(NamedTuple):
    """Where a name could go, in points."""

    offset: tuple[float, float]  # from its mark
    corner: tuple[float, float]  # of the name, that lies there: (0, 0) is its lower left one
    box: Any
    line: Any  # from the mark to the name, if that is far off

    def conflicts(
        self, marks: Sequence[Any], names: Sequence[Any], lines: Sequence[Any], frame: Any
    ) -> tuple[int, int]:
        """With names and marks, or the edge; and of lines. A line may pass over marks, for it comes from among them."""
        outside = not all(frame.contains(*corner) for corner in self.box.corners())
        crossed = sum(line.intersects_bbox(self.box) for line in lines)
        if self.line is not None:
            crossed += sum(self.line.intersects_bbox(name) for name in names)
            crossed += sum(self.line.intersects_path(line, filled=False) for line in lines)
        return self.box.count_overlaps([*marks, *names]) + outside, crossed


def _least(judged: Iterable[tuple[tuple[int, int], _Spot]]) -> _Spot:
    """The first without conflicts, else the first of those with fewest."""
    fewest, best = next(one := iter(judged))
    while any(fewest) and (other := next(one, None)) is not None:
        fewest, best = other if other[0] < fewest else (fewest, best)
    return best


def _spots(place: tuple[float, float], mark: float, room: tuple[float, float], near: bool) -> Iterator[_Spot]:
    """The best first: above, below, right and left of a mark, then in columns further and further off."""
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


def heading(panel: Axes, name: str) -> None:
    """A panel's title; a long one on several lines, a very long one cut."""
    panel.set_title("\n".join(textwrap.wrap(name, 30, max_lines=3, placeholder="…")) or name)


def caption(figure: Figure, text: str) -> None:
    """What the figure shows, above it, on as many lines as its width needs."""
    lines = textwrap.wrap(text, int(13.5 * figure.get_figwidth()))
    if lines:  # an empty title would take room as well
        figure.suptitle("\n".join(lines), fontsize=9, x=0.01, ha="left")


def legend(figure: Figure, axes: Sequence[Axes], columns: int | None = None) -> None:
    """One legend below all panels, each name once, with enough of the line to see its dash; the figure grows for it.

    `columns` at most, and no more than the longest name leaves room for; a name wider than the figure is folded.
    """
    named: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if not named:
        return
    room = 72 * figure.get_figwidth() - 2 * LEGEND_MARGIN
    widest = max(map(_text_width, named))
    most = columns or max(2, int(figure.get_figwidth() / 1.5))
    columns = max(1, min(most, len(named), int((room + LEGEND_GAP) / (widest + LEGEND_LINE + LEGEND_GAP))))
    labels = [_folded(label, room - LEGEND_LINE) for label in named]
    rows = -(-len(named) // columns) + sum(label.count("\n") for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(
        list(named.values()), labels, loc="outside lower center", frameon=False, ncols=columns,
        fontsize=LEGEND_SIZE, handlelength=3.2, columnspacing=1.8,
    )  # fmt: skip


def _text_width(text: str) -> float:
    """In points, as a legend sets it."""
    from matplotlib.textpath import TextPath

    return HINTED * TextPath((0, 0), text, size=LEGEND_SIZE).get_extents().width if text.strip() else 0.0


def _folded(text: str, room: float) -> str:
    """On as many lines as it takes, in points."""
    width = _text_width(text)
    if width <= room:
        return text
    return "\n".join(textwrap.wrap(text, max(8, int(0.95 * len(text) * room / width))))  # no line is of average letters


def percent(axis: Any) -> None:
    """Label shares of 1 as per cent."""
    axis.set_major_formatter(lambda value, place: f"{value:.0%}")
