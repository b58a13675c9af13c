"""How the Lipschitz constant of attention grows with the number of tokens: of trained models, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from semfocus.measurements import Smoothness
from semfocus.report.figures.drawing import FORMATS, caption, drawing, legend, logarithmic, save
from semfocus.report.figures.style import PALETTES, STYLES, Theme, mechanism_style
from semfocus.theory.smoothness import frobenius_bound, lone_tokens, sqrt_n_bound

GAMMAS = (0.5, 2.0, 4.0)
LENGTHS = tuple(int(n) for n in np.unique(np.geomspace(2, 4000, 40).astype(int)))


def draw_growth(
    runs: Mapping[str, Sequence[Smoothness]],
    stem: Path,
    *,
    title: str,
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw the exact constants by mechanism, a thin line for each run and the geometric mean, beside both bounds."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(7.2, 3.9), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True)
        for mechanism, own in runs.items():
            style = mechanism_style(mechanism)
            colour, shared = style.on(theme), sorted(set.intersection(*(set(run.points) for run in own)))
            for run in own:
                panels[0].plot(run.lengths, run.constants, color=colour, linewidth=0.6, alpha=0.5)
            middle = {name: [_mean(own, n, name) for n in shared] for name in ("constant", "certified", "sqrt_n")}
            panels[0].plot(shared, middle["constant"], color=colour, marker=style.marker, markersize=5,
                           linestyle=style.linestyle, label=mechanism)  # fmt: skip
            for name, dash in (("constant", "-"), ("certified", "--"), ("sqrt_n", ":")):
                panels[1].plot(shared, middle[name], color=colour, linestyle=dash)
        for dash, label in (("-", "exact"), ("--", "certified here"), (":", "√n bound, arXiv 2312.14820")):
            panels[1].plot([], [], color=PALETTES[theme].quiet, linestyle=dash, label=label)
        for panel, name in zip(panels, ("exact local constant", "beside its bounds"), strict=True):
            panel.set_title(name)
            panel.set_xlabel("tokens")
            logarithmic(panel, "x")
            logarithmic(panel, "y")
        caption(figure, title)
        legend(figure, list(panels))
        return save(figure, stem, formats)


def draw_bounds(
    searched: Mapping[float, Mapping[int, float]],
    stem: Path,
    *,
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw both bounds, the lone tokens and the points of the search by gamma, a panel each (xi = 1, V = 1)."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(8.6, 3.5), layout="constrained")
        panels = figure.subplots(1, len(GAMMAS), sharey=True)
        for panel, gamma in zip(panels, GAMMAS, strict=True):
            lines = {
                "√n bound, arXiv 2312.14820": ([sqrt_n_bound(n, gamma=gamma) for n in LENGTHS], STYLES[0], ":"),
                "certified here": ([frobenius_bound(n, gamma=gamma) for n in LENGTHS], STYLES[4], "--"),
                "attained by lone tokens": ([lone_tokens(n, gamma=gamma).constant for n in LENGTHS], STYLES[1], "-"),
            }
            for label, (values, style, dash) in lines.items():
                panel.plot(LENGTHS, values, color=style.on(theme), linestyle=dash, label=label)
            found = searched.get(gamma, {})
            panel.plot(list(found), list(found.values()), "x", color=STYLES[2].on(theme), label="found by search")
            panel.set_title(f"|W| = {gamma:g}")
            panel.set_xlabel("tokens")
            logarithmic(panel, "x")
        for panel in panels:
            logarithmic(panel, "y")
        panels[0].set_ylabel("Lipschitz constant")
        caption(figure, "Full attention on tokens of norm 1 at most, Frobenius norm over tokens: two bounds, and what "
                        "is attained")  # fmt: skip
        legend(figure, list(panels))
        return save(figure, stem, formats)


def _mean(runs: Sequence[Smoothness], length: int, name: str) -> float:
    return float(np.exp(np.mean([np.log(getattr(run.points[length], name)) for run in runs])))
