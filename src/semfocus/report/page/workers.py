"""Who trains what while a cluster works: the drivers of a store and their machines, for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semfocus.report.page.markup import shown
from semfocus.report.text import worker_cells
from semfocus.store.board import read_boards


def workers(root: Path) -> list[dict[str, Any]]:
    """Each driver that is at work; nothing once all have ended."""
    return [
        {
            "text": shown(f"{board.engine}, driven by {board.holder}: {board.done} of {board.total} runs done"),
            "rows": [[shown(cell) for cell in worker_cells(row)] for row in board.rows],
        }
        for board in read_boards(root)
        if board.holder is not None
    ]
