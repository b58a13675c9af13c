"""What every figure shares: type, colours of a theme, and files that are there whole or not at all."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.report.style import PAPERS, Theme
from semfocus.store.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
LEGEND_SIZE = 9  # points
LEGEND_LINE = 4.0 * LEGEND_SIZE  # of a line and the space after it
LEGEND_GAP = 1.8 * LEGEND_SIZE  # between columns
LEGEND_MARGIN = 8  # at either side
HINTED = 1.06  # letters that are moved to whole pixels take a little more room than their outlines
DPI = {"svg": 180, "pdf": 180, "png": 180, "webp": 144}  # the last inside a page, which has to stay small
_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}, "png": {}}  # same runs, same bytes


@contextmanager
def drawing(theme: Theme = "light") -> Iterator[None]:
    """Draw inside this block: sizes, colours and fonts as the house has them, whatever the user's own settings."""
    import matplotlib as mpl

    ground, ink, quiet, line = PAPERS[theme]
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
