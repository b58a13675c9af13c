"""Who trains what, on which machine: a note that each driver of a cluster keeps beside the runs while it works.

    with open_board(root, "ray") as board:           cluster/<id>/board.json and its lock
        board.write({"rows": [...], "done": 3, "total": 12})
    for shown in read_boards(root): ...              by `semfocus status` and the page

A driver that has ended leaves its folder only where logs of failed workers are in it. Nothing depends on these notes:
progress lives in the run directories. As with runs, anybody may have written what is read.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, StorageError
from semfocus.store import atomic, locks, safe_json
from semfocus.store.directory import LOCK
from semfocus.store.runs import CLUSTER

BOARD = "board.json"
BOARD_SECONDS = 2.0  # between two notes of a driver that lives
MAX_ROWS = 200  # that are written down; a table of more is not read
MAX_LOG_BYTES = 2**20  # of one worker
_ID = re.compile(r"[0-9a-f]{16}")
_TEXTS = ("attempt", "node", "device", "what", "state")
_NUMBERS = ("runs", "step", "total_steps", "rate", "left")


class Board:
    """The folder of one driver."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine = folder, engine
        self.since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.has_logs = False

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the note."""
        document = {"engine": self.engine, "since": self.since, **content}
        atomic.replace_all({self.folder / BOARD: safe_json.encode(document, "the board")})

    def keep_log(self, attempt: str, text: str) -> Path:
        """Keep what a worker has printed."""
        self.has_logs = True
        path = self.folder / f"{attempt}.log"
        atomic.write_text(path, text[-MAX_LOG_BYTES:])
        return path


@dataclass(frozen=True)
class Shown:
    """A board as a reader sees it."""

    folder: Path
    holder: locks.Holder | None  # the driver; None when it has ended
    engine: str
    since: str
    done: int
    total: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


@contextmanager
def open_board(root: Path, engine: str) -> Iterator[Board]:
    """The board of this process."""
    folder = root / CLUSTER / os.urandom(8).hex()
    atomic.make_directories(folder)
    board = Board(folder, engine)
    with locks.hold(folder / LOCK):
        board.write({"rows": [], "done": 0, "total": 0})
        try:
            yield board
        finally:
            if board.has_logs:
                with suppress(StorageError):
                    board.write({"rows": [], "done": 0, "total": 0})
            else:
                shutil.rmtree(folder, ignore_errors=True)


def read_boards(root: Path) -> list[Shown]:
    """The boards of a store, those of living drivers first. One that cannot be read is left out."""
    shown = []
    with suppress(OSError):
        for name in sorted(os.listdir(root / CLUSTER)):
            if _ID.fullmatch(name):
                with suppress(CorruptData, StorageError, OSError):
                    shown.append(_read(root / CLUSTER / name))
    return sorted(shown, key=lambda board: (board.holder is None, board.since))


def _read(folder: Path) -> Shown:
    data = safe_json.read(folder / BOARD)
    document = None if data is None else safe_json.decode(data, str(folder / BOARD))
    if not isinstance(document, dict):
        raise CorruptData(f"{folder / BOARD} is not a board")
    rows = document.get("rows")
    logs = [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".log")]
    return Shown(
        folder,
        locks.holder(folder / LOCK),
        _text(document.get("engine")),
        _text(document.get("since")),
        int(_number(document.get("done"))),
        int(_number(document.get("total"))),
        [_row(row) for row in rows[:MAX_ROWS] if isinstance(row, dict)] if isinstance(rows, list) else [],
        [path for path in logs if path.is_file() and not path.is_symlink()],
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _text(row.get(name)) for name in _TEXTS} | {name: _number(row.get(name)) for name in _NUMBERS}


def _text(value: Any) -> str:
    return "".join(c for c in value[:200] if c.isprintable()) if isinstance(value, str) else ""


def _number(value: Any) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.maxsize
    return value if usable else 0


def read_tail(path: Path, lines: int = 15) -> list[str]:
    """The last lines of a log, without what a terminal would take for a command."""
    data = safe_json.read(path, 2 * MAX_LOG_BYTES) or b""
    texts = data.decode(errors="replace").splitlines()[-lines:]
    return ["".join(c for c in text[:500] if c.isprintable()) for text in texts]
