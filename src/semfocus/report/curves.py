"""Learning curves as the paper draws them: median and quartiles over seeds, training loss above, accuracy below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.report.style import look
from semfocus.store.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("train_loss", "training loss"),
    ("train_accuracy", "training accuracy"),
    ("heldout_accuracy", "held-out accuracy"),
)


def draw_curves(comparison: Comparison, records: Sequence[Record], stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png; a run that stopped early is continued at its last value."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "semfocus", "axes.spines.top": False}
    with mpl.rc_context(style | {"axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 7.6), layout="constrained")
        axes = figure.subplots(len(PANELS), 1, sharex=True)
        for panel, (name, title) in zip(axes, PANELS, strict=True):
            _draw_panel(panel, comparison, records, name)
            panel.set_ylabel(title)
        axes[1].axhline(THRESHOLD, color="0.6", linewidth=0.8, zorder=0)
        _mark_baselines(axes[2], comparison)
        axes[-1].set_xlabel("epoch")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        figure.suptitle(f"{comparison.task}: median and quartiles over {comparison.seeds} seeds; marks: 95 % reached")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3)
        written = []
        for suffix in (".svg", ".png"):
            with replacing(stem.with_suffix(suffix)) as draft:
                figure.savefig(draft, format=suffix[1:], dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
            written.append(stem.with_suffix(suffix))
    return written


def _draw_panel(panel: Axes, comparison: Comparison, records: Sequence[Record], name: str) -> None:
    for arm in comparison.arms:
        runs = [record for record in records if record.mechanism == arm.mechanism and record.metrics]
        if not runs:
            continue
        epochs, values = _aligned(runs, name)
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        shape = look(arm.mechanism)
        panel.plot(epochs, middle, color=shape.colour, linestyle=shape.dash, linewidth=1.6, label=arm.mechanism)
        panel.fill_between(epochs, low, high, color=shape.colour, alpha=0.15, linewidth=0)
        if name == "train_accuracy" and arm.times.median is not None:
            panel.plot(arm.times.median, THRESHOLD, shape.marker, color=shape.colour, markersize=6, clip_on=False)


def _mark_baselines(panel: Axes, comparison: Comparison) -> None:
    """A line at each accuracy that needs no learning, with all its names."""
    levels: dict[float, list[str]] = {}
    for kind, level in comparison.baselines.items():
        levels.setdefault(round(level, 3), []).append(kind)
    for level, kinds in levels.items():
        panel.axhline(level, color="0.75", linewidth=0.8, zorder=0)
        place = (0, level)
        panel.annotate(
            ", ".join(kinds), place, xycoords=("axes fraction", "data"), fontsize=7, color="0.4", va="bottom"
        )


def _aligned(runs: Sequence[Record], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs that any run has, and each run's values there: its own, or the last before."""
    epochs = np.array(sorted({row["epoch"] for run in runs for row in run.metrics}), dtype=float)
    rows = []
    for run in runs:
        own = np.array([row["epoch"] for row in run.metrics], dtype=float)
        values = np.array([row[name] for row in run.metrics], dtype=float)
        rows.append(values[np.maximum(np.searchsorted(own, epochs, side="right") - 1, 0)])
    return epochs, np.stack(rows)
