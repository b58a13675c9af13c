"""Append-only JSON Lines files: `metrics.jsonl` and `timing.jsonl`.

A line is complete when its line end is written. A process killed while writing leaves an incomplete last line:
readers ignore it, and it is truncated before the next line is appended. Lines reach the page cache at once (a kill
loses none) and the disk with the next checkpoint or final status.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.store import atomic, safe_json

MAX_FILE_BYTES = 64 * 2**20


class Log:
    """One such file; with `ordered`, every row has a step and steps increase from line to line."""

    def __init__(self, path: Path, *, ordered: bool, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = path
        self.ordered = ordered
        self.max_bytes = max_bytes
        self.unsynced = False  # whether rows may still be in the page cache only
        self._size: int | None = None  # known once this object has written
        self._last_step = -1

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all complete lines, in order."""
        return self._scan()[0]

    def size(self) -> int:
        """Return the number of bytes of all complete lines, after truncating an incomplete last line."""
        if self._size is None:
            rows, size, incomplete = self._scan()
            if incomplete:
                atomic.truncate(self.path, size)
            self._size = size
            self._last_step = rows[-1]["step"] if self.ordered and rows else -1
        return self._size

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        what = f"a row of {self.path.name}"
        _check_flat(row, what, UsageError)
        line = safe_json.encode_row(row, what) + b"\n"
        size = self.size()
        if self.ordered and _step(row, what, UsageError) <= self._last_step:
            raise UsageError(f"{what} has step {row['step']} after step {self._last_step}; steps must rise")
        if size + len(line) > self.max_bytes:
            raise StorageError(f"{self.path} would pass {self.max_bytes} bytes; evaluate less often")
        atomic.append(self.path, line, at=size)
        self._size = size + len(line)
        self._last_step = row["step"] if self.ordered else -1
        self.unsynced = True

    def truncate(self, size: int) -> None:
        """Keep only the first `size` bytes, as a checkpoint recorded them."""
        data = safe_json.read(self.path, self.max_bytes) or b""
        if len(data) < size or (size and data[size - 1 : size] != b"\n"):
            raise CorruptData(f"{self.path} no longer holds the {size} bytes that the checkpoint relies on")
        if len(data) > size:
            atomic.truncate(self.path, size)
            self.unsynced = True
        self._size = None

    def _scan(self) -> tuple[list[dict[str, Any]], int, bool]:
        """Return the rows, their size in bytes, and whether an incomplete line follows."""
        data = safe_json.read(self.path, self.max_bytes) or b""
        size = data.rfind(b"\n") + 1
        rows: list[dict[str, Any]] = []
        last = -1
        for number, line in enumerate(data[:size].split(b"\n")[:-1], start=1):
            what = f"{self.path} line {number}"
            if len(line) > safe_json.MAX_BYTES:
                raise CorruptData(f"{what} is longer than {safe_json.MAX_BYTES} bytes")
            rows.append(safe_json.decode_row(line, what))
            _check_flat(rows[-1], what, CorruptData)
            if self.ordered:
                step = _step(rows[-1], what, CorruptData)
                if step <= last:
                    raise CorruptData(f"{what} has step {step} after step {last}")
                last = step
        return rows, size, len(data) > size


def _check_flat(row: Mapping[str, Any], what: str, error: type[Exception]) -> None:
    for name, value in row.items():
        if not (value is None or isinstance(value, (int, float, str))):
            kind = type(value).__name__
            raise error(f"{what}: {name!r} is a {kind}; a row holds numbers, texts, booleans and None")


def _step(row: Mapping[str, Any], what: str, error: type[Exception]) -> int:
    step = row.get("step")
    if type(step) is not int or step < 0:
        raise error(f"{what} has step = {step!r}; it must be a whole number from 0 on")
    return step
