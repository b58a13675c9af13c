"""Draws docs/images/architecture.svg from the table of docs/architecture.md: python docs/images/architecture.py"""

from __future__ import annotations

import itertools
import re
import textwrap
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

HERE = Path(__file__).parent
COLUMNS, WIDE, HIGH = 4, 3.0, 1.05  # boxes in a row; inches from one to the next
COLOURS = {
    "cli": "#e8e4da", "recipes.py": "#e8e4da", "config": "#e8e4da", "experiments": "#fbe3c0", "execution": "#f9d0b8",
    "training": "#d6e6f4", "tasks": "#e3e0f3", "model": "#d6e6f4", "attention": "#f6cfd6", "store": "#dcead2",
    "analysis": "#cfe8e2", "report": "#f3e3ef",
}  # fmt: skip


def stops() -> list[tuple[str, str]]:
    """(module, what happens there) in order."""
    text = (HERE.parent / "architecture.md").read_text()
    return re.findall(r"^\| \d+ \| `([^`]+)` \| ([^|]+) \|", text, flags=re.MULTILINE)


def draw(out: Path) -> None:
    path = stops()
    rows = -(-len(path) // COLUMNS)
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "semfocus", "font.family": "sans-serif"})
    figure = Figure(figsize=(COLUMNS * WIDE, rows * HIGH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, COLUMNS * WIDE)
    axes.set_ylim(rows * HIGH, 0)
    axes.axis("off")
    centres = []
    for place, (module, what) in enumerate(path):
        row, column = divmod(place, COLUMNS)
        column = column if row % 2 == 0 else COLUMNS - 1 - column  # to and fro, so that no arrow crosses a box
        x, y = (column + 0.5) * WIDE, (row + 0.5) * HIGH
        centres.append((x, y))
        box = FancyBboxPatch(
            (x - 1.32, y - 0.37), 2.64, 0.74, boxstyle="round,pad=0,rounding_size=0.09",
            facecolor=COLOURS[module.split("/")[0]], edgecolor="#5a5a5a", linewidth=0.8,
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(x, y - 0.19, module, ha="center", va="center", fontsize=10, fontweight="bold", color="#222222")
        axes.text(x, y + 0.12, short(what), ha="center", va="center", fontsize=7.5, color="#444444")
    for (x, y), (to_x, to_y) in itertools.pairwise(centres):
        down = to_y > y
        start, end = ((x, y + 0.37), (to_x, to_y - 0.37)) if down else (
            (x + 1.32 * (1 if to_x > x else -1), y), (to_x - 1.32 * (1 if to_x > x else -1), to_y)
        )  # fmt: skip
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#5a5a5a", "shrinkA": 0, "shrinkB": 0})
    figure.savefig(out, metadata={"Date": None})


def short(what: str) -> str:
    """What happens there on two lines, without markup."""
    plain = re.split(r";", what.replace("`", ""))[0].strip()
    return "\n".join(textwrap.wrap(plain, 46, max_lines=2, placeholder=" ..."))


if __name__ == "__main__":
    draw(HERE / "architecture.svg")
