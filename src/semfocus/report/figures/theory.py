"""Figures of the theory: where the paper's conditions hold (its figures 21 and 22), and how loose each bound is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semfocus.report.figures.drawing import (
    FORMATS,
    both_themes,
    drawing,
    legend,
    logarithmic,
    save,
    sequential_colour,
)
from semfocus.report.figures.style import PALETTES, MechanismStyle, Theme, mechanism_style
from semfocus.theory.lipschitz import Region, region
from semfocus.theory.looseness import ATTENTION_FORMS, SOFTMAX_FORMS, AttentionRow, Looseness, SoftmaxRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DISPERSIONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SINK_RATIOS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
REFUTED = {"light": "#c0392b", "dark": "#ff7b6b"}
FORMS = {
    "paper": MechanismStyle("#a6611a", "#e0a35c", (5, 2), "s"),
    "simple": MechanismStyle("#7d808a", "#a3a7b0", (1.5, 1.5), "v"),
    "sharp": MechanismStyle("#3f78b5", "#7fb2ea", (6, 2, 1.5, 2), "^"),
    "certified": MechanismStyle("#0d8577", "#38c7b4", (), "o"),
}


def share_where(plane: Region, condition: str, reachable: bool = True) -> float:
    """The share of the plane, or of the triangle that one model can reach, in which W or X (`condition`) is below 1."""
    holds = getattr(plane, condition) < 1
    return (holds[plane.reachable] if reachable else holds).double().mean().item()


def draw_regions(
    condition: str,
    stem: Path,
    *,
    sink_ratios: Sequence[float] = SINK_RATIOS,
    dispersions: Sequence[float] = DISPERSIONS,
    formats: Sequence[str] = FORMATS,
    theme: Theme = "light",
) -> list[Path]:
    """Draw where W (figure 21, one panel) or X (figure 22, a panel for each sink ratio) is below 1, by dispersion."""
    from matplotlib.figure import Figure

    betas = (1.0,) if condition == "w" else tuple(sink_ratios)
    across = min(3, len(betas))
    down = -(-len(betas) // across)
    size = (5.4, 5.9) if len(betas) == 1 else (0.9 + 2.8 * across, 1.3 + 2.95 * down)
    with drawing(theme):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for beta, panel in zip(betas, axes.ravel(), strict=False):
            _region_panel(panel, condition, beta, dispersions, theme)
            panel.set_title("" if condition == "w" else f"β = {beta:g}", loc="left")
        for panel in axes.ravel()[len(betas) :]:
            panel.set_visible(False)
        for panel in axes[-1]:
            panel.set_xlabel("c₁ = δ heavy / δ full")
        for panel in axes[:, 0]:
            panel.set_ylabel("c₂ = Δ / δ full")
        figure.suptitle(
            f"{condition.upper()} < 1 lies to the left of each line. One model stays below the diagonal.",
            fontsize=9, x=0.01, ha="left",
        )  # fmt: skip
        legend(figure, list(axes.ravel()), columns=4)
        return save(figure, stem, formats)


def _region_panel(panel: Axes, condition: str, beta: float, dispersions: Sequence[float], theme: Theme) -> None:
    palette, nowhere = PALETTES[theme], []
    across = np.linspace(0, 1, 241)
    up = np.concatenate([np.geomspace(1e-5, 0.02, 80), np.linspace(0.02, 1, 240)[1:]])  # lines bend near 0
    colours = {
        delta: sequential_colour(i / max(1, len(dispersions) - 1), theme) for i, delta in enumerate(sorted(dispersions))
    }
    for delta, colour in colours.items():
        panel.plot([], [], color=colour, label=f"δ full {delta:g}")
    for delta, colour in reversed(colours.items()):  # the widest region first, the others on top of it
        values = getattr(region(delta, beta, c1=across, c2=up), condition).numpy()
        if not (values < 1).any():
            nowhere.append(delta)
            continue
        panel.contourf(across, up, values, levels=[-1e9, 1.0], colors=[_tint(colour, palette.ground)])
        panel.contour(across, up, values, levels=[1.0], colors=[colour], linewidths=1.7)
    panel.fill_between([0, 1], [1, 0], [1, 1], color=palette.ground, alpha=0.62, linewidth=0, zorder=2.5)
    panel.plot([0, 1], [1, 0], color=palette.quiet, linewidth=0.8, zorder=2.6)
    if nowhere:
        panel.set_title(f"nowhere for δ full ≤ {max(nowhere):g}", loc="right", fontsize=7.5, color=palette.quiet,
                        fontweight="normal")  # fmt: skip
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1)
    panel.set_aspect("equal")
    panel.grid(visible=False)


def _tint(colour: tuple[float, ...], ground: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(0.16 * own + 0.84 * far for own, far in zip(colour, to_rgb(ground), strict=True))


def draw_softmax_looseness(
    rows: Sequence[SoftmaxRow], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw the share of each bound on the softmax that a search attains; above 1 a bound is refuted."""
    from matplotlib.figure import Figure

    norms, deltas = (sorted({getattr(row, name) for row in rows}) for name in ("norm", "delta"))
    with drawing(theme):
        figure = Figure(figsize=(1.2 + 2.6 * len(deltas), 1.2 + 2.2 * len(norms)), layout="constrained")
        axes = figure.subplots(len(norms), len(deltas), sharex=True, sharey=True, squeeze=False)
        for across, norm in zip(axes, norms[::-1], strict=True):
            for panel, delta in zip(across, deltas, strict=True):
                _softmax_panel(panel, [row for row in rows if (row.norm, row.delta) == (norm, delta)], theme)
                panel.set_title(f"{norm}-norm, δ = {delta:g}")
            across[0].set_ylabel("attained / bound")
        for panel in axes[-1]:
            panel.set_xlabel("separation")
        figure.suptitle(
            f"How much of each bound on the softmax a search attains, k = {rows[0].k}: 1 is tight, above 1 is refuted",
            fontsize=9, x=0.01, ha="left",
        )  # fmt: skip
        legend(figure, list(axes.ravel()))
        return save(figure, stem, formats)


def _softmax_panel(panel: Axes, rows: Sequence[SoftmaxRow], theme: Theme) -> None:
    for form in SOFTMAX_FORMS:
        style = FORMS[form]
        shares = [row.shares[form] for row in rows]
        panel.plot(
            range(len(rows)), shares, marker=style.marker, color=style.on(theme), linestyle=style.linestyle,
            label=form, markersize=4.5, linewidth=1.3,
        )  # fmt: skip
    panel.set_ylim(min(0.03, *(share for row in rows for share in row.shares.values())), 2.2)
    logarithmic(panel, "y")
    _mark_refuted(panel.axhspan, panel.axhline, theme)
    panel.set_xticks(
        range(len(rows)), ["fixed\nmask" if row.separation is None else f"{row.separation:g}" for row in rows]
    )


def draw_attention_looseness(
    rows: Sequence[AttentionRow], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw the share of each bound on attention, in its weights and in its tokens, that a search attains."""
    names = [f"{row.mechanism}, in {row.of.upper()}, |W| = {row.gamma:g}" for row in rows]
    points = {form: [row.shares[form] for row in rows] for form in ATTENTION_FORMS}
    title = "How much of each bound on attention a search attains (four tokens): 1 is tight, above 1 is refuted"
    return _draw_dots(names, points, FORMS, title, stem, formats, theme)


def draw_model_looseness(
    shares: Mapping[str, Mapping[str, float]], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw gradients of trained models as shares of their certified constants, by mechanism and group of parameters."""
    names = list(next(iter(shares.values())))
    points = {mechanism: [own.get(name, float("nan")) for name in names] for mechanism, own in shares.items()}
    styles = {mechanism: mechanism_style(mechanism) for mechanism in shares}
    title = "Largest gradient of a trained model / certified constant, by group of parameters"
    shown = [name.removeprefix("blocks.") for name in names]
    return _draw_dots(shown, points, styles, title, stem, formats, theme)


def _draw_dots(
    names: Sequence[str],
    points: Mapping[str, Sequence[float]],
    styles: Mapping[str, MechanismStyle],
    title: str,
    stem: Path,
    formats: Sequence[str],
    theme: Theme,
) -> list[Path]:
    """Draw a row for each name and a mark for each series, on one logarithmic scale."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(6.6, 1.5 + 0.24 * len(names)), layout="constrained")
        panel = figure.subplots()
        for i, values in enumerate(zip(*points.values(), strict=True)):
            panel.plot([min(values), max(values)], [i, i], color=PALETTES[theme].line, linewidth=2.4, zorder=1)
        for series, values in points.items():
            panel.plot(
                values, range(len(names)), linestyle="none", marker=styles[series].marker,
                color=styles[series].on(theme), label=series, markersize=6, zorder=3,
            )  # fmt: skip
        panel.set_xscale("log")
        panel.set_xlim(right=2.2)
        logarithmic(panel, "x")
        _mark_refuted(panel.axvspan, panel.axvline, theme)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.tick_params(axis="y", labelcolor=PALETTES[theme].ink)
        panel.grid(visible=True, axis="x")
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("attained / bound")
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        legend(figure, [panel])
        return save(figure, stem, formats)


def _mark_refuted(span: Any, line: Any, theme: Theme) -> None:
    """Draw a line where a bound is tight, and a warning colour beyond it."""
    span(1, 10, color=REFUTED[theme], alpha=0.1, linewidth=0, zorder=0)
    line(1, color=PALETTES[theme].quiet, linewidth=0.9, zorder=1)


def write_region_figures(directory: Path) -> list[Path]:
    """The regions of W and of X, in both themes."""
    return both_themes(lambda end, theme: [
        *draw_regions("w", directory / f"regions-w{end}", theme=theme),
        *draw_regions("x", directory / f"regions-x{end}", theme=theme),
    ])  # fmt: skip


def write_looseness_figures(
    looseness: Looseness, models: Mapping[str, Mapping[str, float]], directory: Path
) -> list[Path]:
    """The looseness of the bounds, and of the certificates of trained models where there are any, in both themes."""

    def draw(end: str, theme: Theme) -> list[Path]:
        written = draw_softmax_looseness(looseness.softmax, directory / f"looseness-softmax{end}", theme=theme)
        written += draw_attention_looseness(looseness.attention, directory / f"looseness-attention{end}", theme=theme)
        if models:
            written += draw_model_looseness(models, directory / f"looseness-models{end}", theme=theme)
        return written

    return both_themes(draw)
