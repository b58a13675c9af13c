"""Append-only JSON Lines files: `metrics.jsonl` and `timing.jsonl`.

    mark = log.mark()                       size and SHA-256 sum, as a checkpoint and the last status record them
    mark.check(data, "metrics.jsonl")       CorruptData where the file no longer begins with what was marked

A line is complete when its line end is written. A process killed while writing leaves an incomplete last line:
readers ignore it, and it is truncated before the next line is appended. Lines reach the page cache at once (a kill
loses none) and the disk with the next checkpoint or final status.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.store import atomic, safe_json

MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Mark:
    """The beginning of a log as it was saved: its size, and its SHA-256 sum where the format records one."""

    bytes: int
    sha256: str | None = None

    @staticmethod
    def parse(value: Any) -> Mark:
        """Read what `to_json` gives, or the plain number of bytes of formats 1 and 2; CorruptData otherwise."""
        size, digest = (value.get("bytes"), value.get("sha256")) if isinstance(value, dict) else (value, None)
        has_digest = isinstance(digest, str) and len(digest) == 64
        if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES or (isinstance(value, dict) and not has_digest):
            raise CorruptData(f"{str(value)[:60]!r} does not say how much of a log was saved")
        return Mark(size, digest)

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "sha256": self.sha256}

    def check(self, data: bytes, what: str) -> None:
        """Raise CorruptData where `data`, which `what` names, does not begin with what was marked."""
        size = self.bytes
        if len(data) < size or (size and data[size - 1 : size] != b"\n"):
            raise CorruptData(f"{what} no longer holds the {size} bytes that were saved")
        if self.sha256 is not None and hashlib.sha256(memoryview(data)[:size]).hexdigest() != self.sha256:
            raise CorruptData(
                f"{what} no longer holds what was saved: its first {size} bytes have another SHA-256 sum. "
                "It was edited or damaged"
            )


class Log:
    """One such file; with `ordered`, every row has a step and steps increase from line to line."""

    def __init__(self, path: Path, *, ordered: bool, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = path
        self.ordered = ordered
        self.max_bytes = max_bytes
        self.unsynced = False  # whether rows may still be in the page cache only
        self._size: int | None = None  # known once this object has written
        self._digest = hashlib.sha256()  # of that many bytes
        self._last_step = -1

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all complete lines, in order."""
        return self.parse(self._read())

    def size(self) -> int:
        """Return the number of bytes of all complete lines, after truncating an incomplete last line."""
        if self._size is None:
            data = self._read()
            size = data.rfind(b"\n") + 1
            rows = self.parse(data)
            if len(data) > size:
                atomic.truncate(self.path, size)
            self._size, self._digest = size, hashlib.sha256(data[:size])
            self._last_step = rows[-1]["step"] if self.ordered and rows else -1
        return self._size

    def mark(self) -> Mark:
        """Return the size and the checksum of all complete lines."""
        return Mark(self.size(), self._digest.hexdigest())

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
        self._digest.update(line)
        self._last_step = row["step"] if self.ordered else -1
        self.unsynced = True

    def check(self, mark: Mark) -> bytes:
        """Return the content; CorruptData where it does not begin with what was marked."""
        data = self._read()
        mark.check(data, str(self.path))
        return data

    def truncate(self, mark: Mark) -> None:
        """Keep only what a checkpoint has marked, after verifying it."""
        data = self.check(mark)
        if len(data) > mark.bytes:
            atomic.truncate(self.path, mark.bytes)
            self.unsynced = True
        self._size = None

    def parse(self, data: bytes) -> list[dict[str, Any]]:
        """Return the rows of all complete lines of `data`, which was read from this file."""
        rows: list[dict[str, Any]] = []
        last = -1
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
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
        return rows

    def _read(self) -> bytes:
        return safe_json.read(self.path, self.max_bytes) or b""


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
