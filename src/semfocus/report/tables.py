"""A comparison as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.comparison import Arm, Comparison

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
