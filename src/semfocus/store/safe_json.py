"""Strict JSON for untrusted files.

Values have string keys, finite numbers, integers of 64 bits and at most `MAX_DEPTH` levels, when written and when
read. Files are read only when they are regular (no link, no pipe) and of limited size. Anything else is a CorruptData
that names the file.

A row of a table may hold floats that are not finite. Its line holds null in their place, which every JSON reader
accepts, and one more field that names their values:

    {"step": 40, "loss": null, "not_finite": {"loss": "nan"}}
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, StorageError, UsageError

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_INT = 2**64  # beyond it no array, no file format and no person can use an integer
NOT_FINITE = "not_finite"
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any, what: str, indent: int | None = None) -> bytes:
    """Return `value` as JSON, on one line unless indented; `what` names it in errors."""
    problem = _problem(value)
    if problem is not None:
        raise UsageError(f"{what} cannot be kept as JSON: {problem}")
    data = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False).encode()
    if len(data) > MAX_BYTES:
        raise UsageError(f"{what} takes {len(data)} bytes as JSON; at most {MAX_BYTES} are read back")
    return data


def decode(data: bytes, what: str) -> Any:
    """Return the value that `data` encodes; `what` names it in errors."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise CorruptData(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise CorruptData(f"{what} is not valid JSON: {error}") from None
    problem = _problem(value)
    if problem is not None:
        raise CorruptData(f"{what} is refused: {problem}")
    return value


def read(path: Path, limit: int = MAX_BYTES) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes; None when there is no such file."""
    try:
        handle = open_plain(path)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(handle).st_size
        data = file.read(limit + 1) if size <= limit else b""
    if max(size, len(data)) > limit:
        raise CorruptData(f"{path} is larger than {limit} bytes")
    return data


def open_plain(path: Path) -> int:
    """Return a descriptor to read a regular file; links, pipes and devices are refused without reading them."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if os.path.islink(path):
            raise CorruptData(f"{path} is a symbolic link; a run directory holds plain files only") from None
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CorruptData(f"{path} is not a regular file")
    return handle


def encode_row(row: Mapping[str, Any], what: str) -> bytes:
    """Return a row as one line of JSON that records which of its floats are not finite."""
    return encode(finite_row(row, what), what)


def finite_row(row: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a row that has null in the place of floats that are not finite, and one more field with their values."""
    if NOT_FINITE in row:
        raise UsageError(f"{what}: the name {NOT_FINITE} is taken")
    not_finite = {name: str(float(v)) for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    finite = {name: None if name in not_finite else value for name, value in row.items()}
    return finite | {NOT_FINITE: not_finite} if not_finite else finite


def decode_row(data: bytes, what: str) -> dict[str, Any]:
    """Return the row that `encode_row` encoded."""
    row = decode(data, what)
    if not isinstance(row, dict):
        raise CorruptData(f"{what} is not a JSON object")
    return restored_row(row, what)


def restored_row(row: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the row of which `finite_row` was made."""
    row = dict(row)
    not_finite = row.pop(NOT_FINITE, {})
    if not isinstance(not_finite, dict):
        raise CorruptData(f"{what}: {NOT_FINITE} is not a JSON object")
    for name, value in not_finite.items():
        if row.get(name, 0) is not None or not isinstance(value, str) or value not in _FLOATS:
            raise CorruptData(f"{what}: {NOT_FINITE} does not fit its row")
        row[name] = _FLOATS[value]
    return row


def _problem(value: Any) -> str | None:
    """Return why `value` cannot be encoded and decoded unchanged; None when it can. Iterative: it may be deep."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return "a key that is not a text"
            waiting += [(part, depth) for part in item] + [(part, depth + 1) for part in item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, str):
            if not _encodable(item):
                return "a text with half a surrogate pair"
        elif isinstance(item, float):
            if not math.isfinite(item):
                return f"{item} is not finite"
        elif isinstance(item, int):
            if abs(item) > MAX_INT:
                return "an integer of more than 64 bits"
        elif item is not None:
            return f"a value of type {type(item).__name__}"
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key appears twice")
    return mapping
