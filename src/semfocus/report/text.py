"""Numbers as text, in the same words for the terminal, figures and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semfocus.analysis.comparison import Arm, Comparison
    from semfocus.analysis.correlation import Correlation
    from semfocus.analysis.speedup import Ratio


def duration(seconds: float) -> str:
    """`12 s`, `4 min 05 s`, `3 h 20 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def epochs_text(arm: Arm) -> tuple[str, str]:
    """The median over seeds, and the range over those that reached the threshold: `4` and `3-8`, or `never` and ""."""
    epochs = arm.times.epochs[arm.times.reached]
    if not len(epochs):
        return "never", ""
    median = f"{arm.times.median:g}" if arm.times.median is not None else f"> {arm.times.horizon:g}"
    first, last = epochs.min(), epochs.max()
    return median, f"{first:g}" if first == last else f"{first:g}-{last:g}"


def interval_text(arm: Arm) -> str:
    """The interval of a speed-up: `4.1 to 6.6`, `4.1 or more`; empty when there is none."""
    interval = None if arm.speed_up is None else arm.speed_up.interval
    if interval is None:
        return ""
    if math.isinf(interval.high):
        return f"{interval.low:.3g} or more"
    return f"at most {interval.high:.3g}" if interval.low <= 0 else f"{interval.low:.3g} to {interval.high:.3g}"


def ratio_text(ratio: Ratio) -> str:
    """A ratio on a page or in a figure: `5.2x`, `≥ 2.4x`."""
    return _signed(ratio, {">=": "≥ ", "<=": "≤ "})


def ratio_words(ratio: Ratio) -> str:
    """A ratio within a sentence: `5.2x`, `at least 2.4x`."""
    return _signed(ratio, {">=": "at least ", "<=": "at most "})


def _signed(ratio: Ratio, signs: dict[str, str]) -> str:
    return "undefined" if ratio.value is None else f"{signs.get(ratio.sign, '')}{ratio.value:.3g}x"


def baseline_text(comparison: Comparison) -> str:
    """`chance 50.0%, majority 50.0%`."""
    return ", ".join(f"{kind} {share:.1%}" for kind, share in comparison.baselines.items())


def correlation_text(correlation: Correlation, break_before_p: bool = False) -> str:
    """`Rank correlation -0.71 (95 %: -0.95 to 0.02), p = 0.06, 8 tasks`, or why there is none."""
    if correlation.rho is None or correlation.p is None or correlation.interval is None:
        return f"Rank correlation: {correlation.why or 'not enough data'}"
    low, high = correlation.interval.low, correlation.interval.high
    space = "\n" if break_before_p else " "
    size = f"Rank correlation {correlation.rho:.2f} (95 %: {low:.2f} to {high:.2f}),"
    return f"{size}{space}p = {correlation.p:.2g}, {correlation.items} tasks"


def row_label(row: Mapping[str, Any], seeds: int = 1) -> str:
    """What a row of Table 6 is about: `even_pairs, seed 3, full and top-k run, epoch 20`, or `..., 3 seeds, ...`."""
    if row["way"] == "published":
        return f"{row['task']}, the paper's numbers"
    place = "" if row["checkpoint"] == "last" else f", epoch {row['checkpoint']}"
    who = "full and top-k run" if row["way"] == "two models" else f"{row['mechanism']} alone"
    whose = f"seed {row['seed']}" if seeds == 1 else f"{seeds} seeds"
    return f"{row['task']}, {whose}, {who}{place}"
