"""Single panels: learning curves, the share of seeds still waiting, accuracies that need no learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.records import THRESHOLD
from semfocus.report.figures.drawing import percent
from semfocus.report.figures.series import series
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from semfocus.analysis.records import Record


def draw_metric(
    panel: Axes, comparison: Comparison, records: Sequence[Record], metric: str, theme: Theme = "light"
) -> None:
    """Median and quartile band of each mechanism; the epoch at which half of its seeds had converged is marked."""
    for arm in comparison.arms:
        curve = series([record for record in records if record.mechanism == arm.mechanism], metric)
        if curve is None:
            continue
        shape = mechanism_style(arm.mechanism)
        colour = shape.on(theme)
        panel.plot(curve.epochs, curve.middle, color=colour, linestyle=shape.linestyle, label=arm.mechanism)
        panel.fill_between(curve.epochs, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
        if arm.times.median is not None:
            place = int(abs(curve.epochs - arm.times.median).argmin())
            panel.plot(
                arm.times.median, curve.middle[place], shape.marker, color=colour, markersize=6,
                markeredgecolor=PALETTES[theme].ground, clip_on=False, zorder=4,
            )  # fmt: skip
    panel.set_xlim(0, comparison.horizon)
    panel.locator_params(axis="x", integer=True)
    if metric.endswith("loss"):
        panel.set_ylim(bottom=0)
    else:
        percent(panel.yaxis)
        panel.set_ylim(top=1.0)
        panel.margins(y=0.12)


def draw_waiting(panel: Axes, comparison: Comparison, theme: Theme = "light") -> None:
    """Kaplan-Meier: the share of seeds below the threshold, epoch by epoch; a tick where some were never there."""
    for arm in comparison.arms:
        if not len(arm.times):
            continue
        shape = mechanism_style(arm.mechanism)
        curve = arm.times.curve()
        epochs, waiting = [*curve.epochs, arm.times.horizon], [*curve.waiting, curve.waiting[-1]]
        colour = shape.on(theme)
        panel.step(
            epochs, waiting, where="post", color=colour, linestyle=shape.linestyle, label=arm.mechanism, clip_on=False
        )
        if curve.waiting[-1] > 0:
            panel.plot(arm.times.horizon, curve.waiting[-1], "|", color=colour, markersize=9, clip_on=False)
    panel.set_xlim(0, comparison.horizon)
    panel.set_ylim(0, 1)
    percent(panel.yaxis)


def draw_threshold(panel: Axes, theme: Theme = "light") -> None:
    """The line at which a run counts as converged."""
    panel.axhline(THRESHOLD, color=PALETTES[theme].quiet, linewidth=0.9, zorder=1)
    _note(panel, THRESHOLD, f"{THRESHOLD:.0%}", theme)


def draw_baselines(panel: Axes, comparison: Comparison, theme: Theme = "light") -> None:
    """A line at each accuracy that needs no learning, with all its names."""
    levels: dict[float, list[str]] = {}
    for kind, level in comparison.baselines.items():
        levels.setdefault(round(level, 3), []).append(kind)
    for level, kinds in levels.items():
        panel.axhline(level, color=PALETTES[theme].quiet, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        _note(panel, level, ", ".join(kinds), theme, below=True)
    if levels:
        panel.set_ylim(bottom=min(panel.get_ylim()[0], max(0.0, min(levels) - 0.09)))


def _note(panel: Axes, level: float, text: str, theme: Theme, below: bool = False) -> None:
    """Small words at the right end of a line."""
    panel.annotate(
        text, (1, level), xycoords=("axes fraction", "data"), xytext=(-2, -4 if below else 2),
        textcoords="offset points", fontsize=7, color=PALETTES[theme].quiet, ha="right",
        va="top" if below else "bottom",
    )  # fmt: skip
