"""Draws the pictures of docs/concepts, each for a light and a dark ground: python docs/images/concepts.py

Scores, weights, bounds and steps are computed, by semfocus where it has a function for them. What is made up for the
drawing (six words and their scores, two losses of one variable) is said to be so beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semfocus import attend
from semfocus.report.figures.style import PALETTES, Palette, Theme, mechanism_style
from semfocus.theory import stability, weight_bound

HERE = Path(__file__).parent
WORDS = ("the", "dog", "chased", "a", "red", "ball")
SCORES = torch.tensor([0.3, 2.6, 1.9, 0.1, 0.5, 2.2])
KEPT = 3
MECHANISMS = ("full", "banded:5", "block_local:5", "topk:5")
LENGTH = 20
WIDE = 6.6  # inches: letters can still be read when a telephone shrinks them


def draw_keys(theme: Theme) -> Figure:
    """Scores of one query, and the weights of full and of top-3 attention."""
    palette, figure = blank(theme, 2.7)
    keep = torch.zeros(len(SCORES), dtype=torch.bool)
    keep[SCORES.topk(KEPT).indices] = True
    focused = torch.softmax(SCORES.masked_fill(~keep, -math.inf), dim=0)
    full, topk = (mechanism_style(name).on(theme) for name in ("full", "topk:5"))
    panels = (
        ("1. Scores", SCORES, [topk if kept else palette.quiet for kept in keep], "{:.1f}"),
        ("2. Full attention", torch.softmax(SCORES, dim=0), [full] * len(SCORES), "{:.0%}"),
        (f"3. Top-{KEPT} attention", focused, [topk] * len(SCORES), "{:.0%}"),
    )
    for place, (title, values, colours, form) in enumerate(panels):
        axes = dressed(figure.add_subplot(1, 3, place + 1), palette)
        bars = axes.barh(range(len(WORDS)), values.tolist(), color=colours, height=0.62)
        axes.bar_label(
            bars, [form.format(v) if v else "dropped" for v in values.tolist()], padding=4, color=palette.ink, size=10
        )
        axes.set_yticks(range(len(WORDS)), WORDS if place == 0 else [""] * len(WORDS))
        axes.set_title(title, loc="left", size=10.5, color=palette.ink)
        axes.set_xlim(0, 1.3 * float(values.max()))
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    return figure


def draw_masks(theme: Theme) -> Figure:
    """Which keys (across) each query (down) keeps, for the same queries and keys."""
    palette, figure = blank(theme, 2.1)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, LENGTH, 8)
    for place, name in enumerate(MECHANISMS):
        _, info = attend(q[None], k[None], v[None], name, return_info=True)
        kept = torch.zeros(LENGTH, LENGTH)
        for query, keys in enumerate(info.indices[0, 0]):
            kept[query, keys[keys >= 0]] = 1
        axes = figure.add_subplot(1, len(MECHANISMS), place + 1)
        colours = mpl.colors.ListedColormap([palette.ground, mechanism_style(name).on(theme)])
        axes.imshow(kept, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        edges = [place - 0.5 for place in range(1, LENGTH)]
        axes.hlines(edges, -0.5, LENGTH - 0.5, color=palette.line, linewidth=0.5)
        axes.vlines(edges, -0.5, LENGTH - 0.5, color=palette.line, linewidth=0.5)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(name, size=10.5, color=palette.ink)
        axes.set_xlabel("keys", color=palette.quiet, size=10)
        for spine in axes.spines.values():
            spine.set_color(palette.line)
        if place == 0:
            axes.set_ylabel("queries", color=palette.quiet, size=10)
    return figure


def draw_dispersion(theme: Theme) -> Figure:
    """The scores of one query on a line: how far apart are those that are kept?"""
    palette, figure = blank(theme, 2.4)
    axes = dressed(figure.add_subplot(), palette)
    ordered = SCORES.sort(descending=True).values.tolist()
    kept, dropped = ordered[:KEPT], ordered[KEPT:]
    full, topk = (mechanism_style(name).on(theme) for name in ("full", "topk:5"))
    axes.axhline(0, color=palette.line, linewidth=1, zorder=0)
    axes.scatter(kept, [0] * len(kept), s=90, color=topk, zorder=3)
    axes.scatter(dropped, [0] * len(dropped), s=90, color=palette.quiet, zorder=3)
    for word, score in zip(WORDS, SCORES.tolist(), strict=True):
        axes.annotate(word, (score, 0), (0, -19), textcoords="offset points", ha="center", color=palette.ink, size=10)
    span(axes, min(ordered), max(ordered), 0.95, full, f"dispersion over all keys: {max(ordered) - min(ordered):.1f}")
    span(axes, min(kept), max(kept), 0.42, topk, f"over the {KEPT} best: {max(kept) - min(kept):.1f}")
    span(axes, max(dropped), min(kept), 0.42, palette.quiet, f"separation: {min(kept) - max(dropped):.1f}")
    axes.set_ylim(-0.6, 1.45)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("score", color=palette.quiet, size=10)
    return figure


def span(axes: Axes, low: float, high: float, height: float, colour: str, text: str) -> None:
    """A double arrow with words above it."""
    axes.annotate(
        "", (low, height), (high, height), arrowprops={"arrowstyle": "<->", "color": colour, "linewidth": 1.4}
    )
    axes.text((low + high) / 2, height + 0.09, text, color=colour, ha="center", size=10)


def draw_steps(theme: Theme) -> Figure:
    """The same number of gradient steps of the same size on two losses, one of which changes its slope faster."""
    palette, figure = blank(theme, 2.7)
    full, topk = (mechanism_style(name).on(theme) for name in ("full", "topk:5"))
    for place, (title, ripple, colour) in enumerate(
        (
            ("its slope changes fast", 0.42, full),
            ("its slope changes slowly", 0.03, topk),
        )
    ):
        loss, slope = rippled(ripple)
        axes = dressed(figure.add_subplot(1, 2, place + 1), palette)
        line = torch.linspace(-2.6, 2.6, 400).tolist()
        axes.plot(line, [loss(x) for x in line], color=palette.quiet, linewidth=1.4)
        path = [-2.2]
        for _ in range(12):
            path.append(path[-1] - 0.35 * slope(path[-1]))
        axes.plot(path, [loss(x) for x in path], color=colour, marker="o", markersize=5, linewidth=1.1)
        axes.annotate("start", (path[0], loss(path[0])), (8, 5), textcoords="offset points", color=palette.ink, size=10)
        axes.set_title(title, loc="left", size=10.5, color=palette.ink)
        axes.set_xlabel("a weight of the model", color=palette.quiet, size=10)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_ylim(-0.6, 3.4)
        if place == 0:
            axes.set_ylabel("loss", color=palette.quiet, size=10)
    return figure


def rippled(ripple: float) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """A bowl with ripples of that height, and its slope."""
    return (
        lambda x: x * x / 2 + ripple * math.cos(7 * x),
        lambda x: x - 7 * ripple * math.sin(7 * x),
    )


def draw_stability(theme: Theme) -> Figure:
    """What is proved of the largest weight, and of how far the softmax moves, against dispersion."""
    palette, figure = blank(theme, 2.7)
    deltas = torch.linspace(0, 8, 161).tolist()
    lines: Sequence[tuple[str, int, str, str]] = (
        ("5 kept keys", 5, mechanism_style("topk:5").on(theme), "-"),
        ("all 40 keys", 40, mechanism_style("full").on(theme), "--"),
    )
    for place, (title, value) in enumerate(
        (
            ("largest weight, at most", lambda delta, keys: weight_bound(delta, keys, form="tight")),
            ("moves of weights / scores, at most", lambda delta, keys: stability(delta, keys)),
        )
    ):
        axes = dressed(figure.add_subplot(1, 2, place + 1), palette)
        for label, keys, colour, dash in lines:
            axes.plot(deltas, [float(value(delta, keys)) for delta in deltas], dash, color=colour, label=label)
        axes.set_title(title, loc="left", size=10.5, color=palette.ink)
        axes.set_xlabel("dispersion", color=palette.quiet, size=10)
        axes.set_ylim(0, 1.05 if place == 0 else 0.55)
        if place == 0:
            axes.legend(frameon=False, labelcolor=palette.ink, fontsize=10, loc="lower right")
    return figure


def blank(theme: Theme, high: float) -> tuple[Palette, Figure]:
    palette = PALETTES[theme]
    figure = Figure(figsize=(WIDE, high), layout="constrained")
    figure.patch.set_alpha(0)  # the page's own ground
    return palette, figure


def dressed(axes: Axes, palette: Palette) -> Axes:
    axes.patch.set_alpha(0)
    axes.tick_params(colors=palette.ink, labelsize=10, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(palette.line)
    return axes


def main() -> None:
    mpl.rcParams.update(
        {"svg.hashsalt": "semfocus", "font.family": "DejaVu Sans"}
    )  # letters as outlines: no font needed
    pictures = {
        "keys": draw_keys, "masks": draw_masks, "dispersion": draw_dispersion, "steps": draw_steps,
        "stability": draw_stability,
    }  # fmt: skip
    for name, draw in pictures.items():
        for theme, suffix in (("light", ""), ("dark", "-dark")):
            draw(theme).savefig(HERE / f"concept-{name}{suffix}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
