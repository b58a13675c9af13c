"""Rows of a user's own data: where each one stands, what it holds, and which split it belongs to.

A row's split depends on the row's content alone, so that adding or reordering rows moves none of the others,
and equal rows always share a split:

    place = sha256(content) as a number in [0, 1)

    0        test_share        test_share + heldout_share        1
    |  test  |     heldout     |             train              |
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, UsageError
from semfocus.tasks.base import Split

Content = str | Sequence[str] | Sequence[int] | NDArray[np.int64]
Label = bool | int | str


class Item(NamedTuple):
    """One row as it was read; `number` says where: a line of a text file, a row of a table."""

    number: int
    content: Content
    label: Label


@dataclass(frozen=True)
class Origin:
    """Where rows come from, for messages: `Origin("data.csv", "line")`."""

    name: str
    unit: str

    def at(self, number: int) -> str:
        """`data.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"

    def error(self, number: int, problem: str) -> DataError:
        """An error that names the place of a row."""
        return DataError(f"{self.at(number)}: {problem}")


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The shares of rows that are kept from training."""

    heldout_share: float = 0.2
    test_share: float = 0.1

    def __post_init__(self) -> None:
        heldout = _share("heldout_share", self.heldout_share)
        test = _share("test_share", self.test_share)
        if heldout == 0:
            raise UsageError("heldout_share = 0 leaves nothing to judge by; choose 0 < heldout_share < 1")
        if heldout + test >= 1:
            raise UsageError(
                f"heldout_share = {heldout} and test_share = {test} leave nothing to train on; "
                f"their sum must be below 1"
            )
        object.__setattr__(self, "heldout_share", heldout)
        object.__setattr__(self, "test_share", test)

    def split_of(self, content: Content) -> Split:
        """The split that a row of this content belongs to."""
        digest = hashlib.sha256(content_bytes(content)).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        # Test comes first: another heldout_share leaves the test rows where they are.
        if place < self.test_share:
            return "test"
        return "heldout" if place < self.test_share + self.heldout_share else "train"


def content_bytes(content: Content) -> bytes:
    """A row's content as bytes, the same whether its tokens came from a list, an array or a file."""
    if isinstance(content, str):
        return content.encode()
    tokens = content.tolist() if isinstance(content, np.ndarray) else list(content)
    return json.dumps(tokens, separators=(",", ":"), ensure_ascii=False).encode()


def _share(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value < 1:
        raise UsageError(f"{name} = {value!r} must be a number from 0 to below 1")
    return float(value)
