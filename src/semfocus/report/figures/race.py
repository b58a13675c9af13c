"""Language models: held-out loss by tokens, a line for each mechanism, and the level that full attention ends at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.analysis.groups import Group
from semfocus.analysis.head_start import tokens_of
from semfocus.analysis.records import Record
from semfocus.analysis.tokens import tokens_text
from semfocus.report.figures.curves import about_seeds
from semfocus.report.figures.drawing import FORMATS, caption, drawing, legend, save
from semfocus.report.figures.lines import Floats, quantiles, shown_runs
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_FROM = 0.1  # of the tokens: losses before that would leave no room for the differences
ABOVE = 0.06  # of the range shown, that stays free at either end


def draw_race(
    group: Group, stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light", title: str = ""
) -> list[Path]:
    """Draw median and quartiles of each mechanism; the steep beginning leaves the panel at its top."""
    from matplotlib.figure import Figure

    curves = {name: curve for name in group.mechanisms if (curve := race_curve(group.runs(name))) is not None}
    if not curves:
        return []
    with drawing(theme):
        figure = Figure(figsize=(6.2, 4.0), layout="constrained")
        panel = figure.subplots()
        for name, (tokens, low, middle, high) in curves.items():
            style = mechanism_style(name)
            panel.plot(tokens, middle, color=style.on(theme), linestyle=style.linestyle, label=name)
            panel.fill_between(tokens, low, high, color=style.on(theme), alpha=0.16, linewidth=0)
        panel.set_xlabel("tokens read")
        panel.set_ylabel("held-out loss (nats a token)")
        panel.xaxis.set_major_formatter(lambda value, place: tokens_text(value))
        panel.locator_params(axis="x", nbins=6)
        _set_limits(panel, curves)
        if BASE in curves:
            panel.axhline(
                float(curves[BASE][2][-1]), color=PALETTES[theme].quiet, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1
            )
        seeds = {len(group.runs(name)) for name in group.mechanisms}
        caption(figure, f"{about_seeds(seeds, title=title)}; dotted: where full attention ends")
        legend(figure, [panel])
        return save(figure, stem, formats)


def race_curve(runs: Sequence[Record]) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Tokens, and the lower quartile, median and upper quartile of held-out losses; None where nothing was measured."""
    shown, _ = shown_runs(runs)
    if not shown:
        return None
    own = [(tokens_of(run), run.column("heldout_loss")) for run in shown]
    last = min(tokens[-1] for tokens, _ in own)
    tokens = own[0][0][own[0][0] <= last]
    losses = np.array([np.interp(tokens, places, values) for places, values in own])
    low, middle, high = quantiles(losses)
    return tokens, low, middle, high


def _set_limits(panel: Axes, curves: dict[str, tuple[Floats, Floats, Floats, Floats]]) -> None:
    end = max(tokens[-1] for tokens, *_ in curves.values())
    panel.set_xlim(0, end)
    parts = [line[tokens >= SHOWN_FROM * end] for tokens, *lines in curves.values() for line in lines]
    shown = np.concatenate(parts)
    shown = shown[np.isfinite(shown)]
    if len(shown):
        room = ABOVE * (shown.max() - shown.min() or 1.0)
        panel.set_ylim(shown.min() - room, shown.max() + room)
