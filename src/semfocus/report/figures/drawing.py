"""What every figure shares: fonts and colours of a theme, titles, legends, axes, and atomic writes of the files."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from semfocus.report.figures.style import PALETTES, Theme
from semfocus.store.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
LEGEND_SIZE = 9  # points
LEGEND_LINE = 4.0 * LEGEND_SIZE  # a line sample and the space after it
LEGEND_GAP = 1.8 * LEGEND_SIZE  # between columns
LEGEND_MARGIN = 8  # at either side
WIDE_RANGE = 30.0  # largest / smallest value beyond which an axis is logarithmic
HINTED = 1.06  # hinted letters take a little more room than their outlines
DPI = {"svg": 180, "pdf": 180, "png": 180, "webp": 144}  # webp is for pages, which have to stay small
_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}, "png": {}}  # same runs, same bytes
_kept: ContextVar[list[Figure] | None] = ContextVar("kept figures", default=None)


@contextmanager
def drawing(theme: Theme = "light") -> Iterator[None]:
    """Set sizes, colours and fonts inside this block, whatever the user's own matplotlib settings."""
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
        "figure.constrained_layout.wspace": 0.06,  # the last tick of a panel and the first of the next stay apart
        "xtick.major.size": 3, "ytick.major.size": 0, "xtick.major.width": 0.8,
        "text.parse_math": False,  # a task may be called $x$
        "svg.fonttype": "none", "svg.hashsalt": "semfocus", "pdf.fonttype": 42,
    }  # fmt: skip
    with mpl.rc_context({**mpl.rcParamsDefault, **style}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script without glyphs in the font
        warnings.filterwarnings("ignore", message="Attempting to set identical low and high")  # all values the same
        yield


def both_themes(draw: Callable[[str, Theme], list[Path]]) -> list[Path]:
    """Draw in light and in dark; `draw` takes the end of the file's name and the theme."""
    return [*draw("", "light"), *draw("-dark", "dark")]


@contextmanager
def keeping_figures() -> Iterator[list[Figure]]:
    """Inside this block figures are laid out and added to the list it gives; no file is written."""
    figures: list[Figure] = []
    token = _kept.set(figures)
    try:
        yield figures
    finally:
        _kept.reset(token)


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem`.svg and so on; returns the paths."""
    kept = _kept.get()
    if kept is not None:
        figure.draw_without_rendering()
        kept.append(figure)
        return []
    written = []
    for kind in formats:
        target = stem.with_name(f"{stem.name}.{kind}")  # with_suffix would cut a name that has a dot
        with replacing(target) as draft:
            figure.savefig(draft, format=kind, dpi=DPI[kind], metadata=_DATES.get(kind))
        written.append(target)
        figure.set_layout_engine("none")  # the other formats keep the layout of the first
    return written


def heading(panel: Axes, name: str) -> None:
    """Set a panel's title: up to three lines, then cut."""
    panel.set_title("\n".join(textwrap.wrap(name, 30, max_lines=3, placeholder="…")) or name)


def caption(figure: Figure, text: str) -> None:
    """Say above the figure what it shows, on as many lines as its width needs."""
    lines = textwrap.wrap(text, int(13.5 * figure.get_figwidth()))
    if lines:  # an empty title would take room as well
        figure.suptitle("\n".join(lines), fontsize=9, x=0.01, ha="left")


def legend(figure: Figure, axes: Sequence[Axes], columns: int | None = None) -> None:
    """Draw one legend below all panels, each name once; the figure grows by the height it needs.

    It has `columns` columns at most, and no more than the longest name leaves room for. A name wider than the figure is
    wrapped.
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
    labels = [_wrapped(label, room - LEGEND_LINE) for label in named]
    rows = -(-len(named) // columns) + sum(label.count("\n") for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(
        list(named.values()), labels, loc="outside lower center", frameon=False, ncols=columns,
        fontsize=LEGEND_SIZE, handlelength=3.2, columnspacing=1.8,
    )  # fmt: skip


def _text_width(text: str) -> float:
    """The width of a legend's text in points."""
    from matplotlib.textpath import TextPath

    return HINTED * TextPath((0, 0), text, size=LEGEND_SIZE).get_extents().width if text.strip() else 0.0


def _wrapped(text: str, room: float) -> str:
    """The text wrapped to a width of `room` points."""
    width = _text_width(text)
    if width <= room:
        return text
    return "\n".join(
        textwrap.wrap(text, max(8, int(0.95 * len(text) * room / width)))
    )  # a line may have wider letters than average


def sequential_colour(place: float, theme: Theme) -> tuple[float, ...]:
    """The colour of an ordered value, 0 the smallest and 1 the largest: the larger, the further from the background."""
    import matplotlib as mpl

    first, last = (0.8, 0.0) if theme == "light" else (0.28, 1.0)
    return mpl.colormaps["viridis"](first + place * (last - first))[:3]


def percent(axis: Any) -> None:
    """Write shares of 1 as per cent; there is no share above 1, though an axis may end above it."""
    axis.set_major_formatter(lambda value, place: f"{value:.0%}" if value < 1 + 1e-9 else "")


def log_scale(panel: Axes, which: Literal["x", "y"]) -> bool:
    """Make an axis logarithmic; False, and no change, if nothing drawn has a positive value."""
    smallest = panel.dataLim.minposx if which == "x" else panel.dataLim.minposy
    if not math.isfinite(smallest):
        return False
    (panel.set_xscale if which == "x" else panel.set_yscale)("log")
    return True


def is_wide(interval: Sequence[float]) -> bool:
    """Whether values between these ends are better shown on a logarithmic axis."""
    low, high = (float(end) for end in interval)
    return low > 0 and math.isfinite(high) and high / low > WIDE_RANGE


def logarithmic(panel: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic with few plain tick labels. Call it last: the ticks depend on what is drawn."""
    from matplotlib.ticker import LogLocator, NullLocator

    if not log_scale(panel, which):
        return
    axis = panel.xaxis if which == "x" else panel.yaxis
    low, high = panel.get_xlim() if which == "x" else panel.get_ylim()
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.3 else (1, 3) if decades < 3 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(plain)


def plain(value: float, _place: float | None = None) -> str:
    """A tick label without trailing zeros: `0.5`, `2000`, `1.5 M`."""
    return f"{value / 1e6:g} M" if abs(value) >= 1e6 else f"{value:g}"


def plain_log_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5 times the powers of ten of a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axis.set_major_formatter(plain)
    axis.set_minor_formatter(NullFormatter())


def three_log_ticks(axis: Any, low: float, high: float) -> None:
    """Ticks at the ends of a short logarithmic axis and at their geometric mean."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator([low, math.sqrt(low * high), high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _place: f"{value:.2g}")
