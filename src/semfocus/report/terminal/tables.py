"""Tables for the terminal: a comparison, and the tables of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.comparison import Comparison
from semfocus.report.tables import TextTable, layer_table
from semfocus.report.text import epochs_text

if TYPE_CHECKING:
    from rich.table import Table


def comparison_table(comparison: Comparison) -> Table:
    """A line a mechanism: epochs to what counts as learned, speed-up over full attention, held-out accuracy."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mechanism", no_wrap=True)
    for title in (
        f"epochs to {comparison.learned.level()}",
        "range",
        "seeds there",
        "speed-up",
        "held out, final",
        "best",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for arm in comparison.arms:
        median, spread = epochs_text(arm)
        speed = "" if arm.speed_up is None else arm.speed_up.ratio.text
        seeds = f"{arm.reached} of {len(arm.times.seeds)}"
        table.add_row(arm.mechanism, median, spread, seeds, speed, _share(arm.final_heldout), _share(arm.best_heldout))
    return table


def rich_table(source: TextTable) -> Table:
    """A table that wraps between words where the terminal is narrow, so that no number is cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=source.title, title_justify="left")
    for head, *cells in zip(source.heads, *source.rows, strict=True):
        longest = max((len(word) for text in (head, *cells) for word in text.split()), default=0)
        table.add_column(head, justify="right" if head and head != source.heads[0] else "left", min_width=longest)
    for cells in source.rows:
        table.add_row(*cells)
    return table


def model_text(document: Mapping[str, Any]) -> str:
    """A diagnosis of a model: a line a layer, then the findings."""
    table = layer_table(document)
    rows = [table.heads, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.heads))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join([f"{document['model']}, k = {document['k']}", "", *lines, "", *document["findings"]])


def _share(accuracies: Accuracies) -> str:
    return f"{accuracies.median:.1%}" if len(accuracies) else ""
