"""A comparison as a table for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.comparison import Arm, Comparison
from semfocus.analysis.speedup import Ratio

if TYPE_CHECKING:
    from rich.table import Table


def comparison_table(found: Comparison) -> Table:
    """One line a mechanism: epochs to 95 % training accuracy, speed-up over full attention, held-out accuracy."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mechanism", no_wrap=True)
    for title in ("epochs to 95 %", "range", "seeds there", "speed-up", "held out, final", "best"):
        table.add_column(title, justify="right", no_wrap=True)
    for arm in found.arms:
        median, spread = epochs_text(arm)
        speed = "" if arm.speed_up is None else arm.speed_up.ratio.text
        seeds = f"{arm.reached} of {len(arm.times.seeds)}"
        table.add_row(arm.mechanism, median, spread, seeds, speed, _share(arm.final_heldout), _share(arm.best_heldout))
    return table


def epochs_text(arm: Arm) -> tuple[str, str]:
    """The median over seeds, and the range over those that got there: `4`, `3-8`; `never` and nothing if none did."""
    there = arm.times.epochs[arm.times.reached]
    if not len(there):
        return "never", ""
    median = f"{arm.times.median:g}" if arm.times.median is not None else f"> {arm.times.horizon:g}"
    return median, f"{there.min():g}" if there.min() == there.max() else f"{there.min():g}-{there.max():g}"


def baseline_text(found: Comparison) -> str:
    """`chance 50.0%, majority 50.0%`."""
    return ", ".join(f"{kind} {share:.1%}" for kind, share in found.baselines.items())


def _share(accuracies: Accuracies) -> str:
    return f"{accuracies.median:.1%}" if len(accuracies) else ""


def interval_text(arm: Arm) -> str:
    """The interval of a speed-up: `4.1 to 6.6`, `4.1 or more`; nothing when there is none."""
    found = None if arm.speed_up is None else arm.speed_up.interval
    if found is None:
        return ""
    if math.isinf(found.high):
        return f"{found.low:.3g} or more"
    return f"at most {found.high:.3g}" if found.low <= 0 else f"{found.low:.3g} to {found.high:.3g}"


def signed(ratio: Ratio) -> str:
    """As a page or a figure writes it: `5.2x`, `≥ 2.4x`."""
    return ratio.text.replace(">=", "≥").replace("<=", "≤")
