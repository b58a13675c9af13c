"""The attention of one example: a panel for each layer and head, queries downwards, keys to the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semfocus.report.figures.drawing import both_themes, caption, drawing, save
from semfocus.report.figures.style import Theme

MOST_NAMED = 64  # tokens whose text fits beside a panel
INCHES = (1.6, 5.0)  # the least and most that a panel is wide


def write_attention_figure(
    weights: NDArray[np.float32], tokens: Sequence[str], title: str, directory: Path, stem: str
) -> list[Path]:
    """Draw weights (blocks, heads, queries, keys) in both themes; keys that are not kept stay empty."""
    return both_themes(lambda end, theme: draw_attention(weights, tokens, title, directory / f"{stem}{end}", theme))


def draw_attention(
    weights: NDArray[np.float32], tokens: Sequence[str], title: str, stem: Path, theme: Theme = "light"
) -> list[Path]:
    """One figure in one theme."""
    import matplotlib.pyplot as plt

    blocks, heads, length, _ = weights.shape
    side = float(np.clip(0.11 * length, *INCHES))
    with drawing(theme):
        figure, panels = plt.subplots(
            blocks, heads, figsize=(side * heads + 1.2, side * blocks + 0.8), squeeze=False, layout="constrained"
        )
        for block, row in enumerate(panels):
            for head, panel in enumerate(row):
                own = weights[block, head]
                shown = np.ma.masked_where(own == 0, own)
                largest = float(own.max()) if own.size else 1.0
                image = panel.imshow(shown, cmap="viridis", vmin=0.0, vmax=largest or 1.0, interpolation="nearest")
                panel.set_title(f"layer {block + 1}, head {head + 1}", fontsize=7)
                panel.grid(False)
                figure.colorbar(image, ax=panel, shrink=0.7).ax.tick_params(labelsize=5)
                named = range(length) if length <= MOST_NAMED else []
                for axis in (panel.xaxis, panel.yaxis):
                    axis.set_ticks(list(named), [_plain(tokens[i]) for i in named], fontsize=5)
                panel.tick_params(length=0)
        figure.supxlabel("key", fontsize=7)
        figure.supylabel("query", fontsize=7)
        caption(figure, title)
        written = save(figure, stem)
        plt.close(figure)
    return written


def _plain(text: str) -> str:
    """A token as it is: matplotlib would read $ as the beginning of mathematics."""
    return text.replace("$", r"\$")
