"""A task over arrays or lists in memory.

Task.from_arrays(pixels, digits)                                   (n, L) integers, numpy or torch
Task.from_arrays(padded, labels, lengths=lengths)                  positions from a length on are padding
Task.from_arrays([[3, 1, 2], [0, 2], ...], ["yes", "no", ...])     rows of different lengths
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, check_int
from semfocus.tasks.rows import Item, Origin, Shares, checked_label, content_bytes
from semfocus.tasks.table import TableTask, tabulate
from semfocus.tasks.tokenisers import Ids

MOST_SYMBOLS = 2**20


@dataclass(frozen=True, kw_only=True)
class ArrayOptions(Shares):
    """The options of `Task.from_arrays`, its arrays aside."""

    vocab_size: int
    num_classes: int


@dataclass(frozen=True, kw_only=True)
class ArrayTask(TableTask):
    """Rows of token ids, without a tokeniser."""

    name = "arrays"
    summary = "rows of token ids in memory, through Task.from_arrays"

    @classmethod
    def build(
        cls,
        tokens: Any,
        labels: Any,
        lengths: Any = None,
        *,
        name: str = "arrays",
        vocab_size: int | None = None,
        class_names: Sequence[str] | None = None,
        heldout_share: float = Shares.heldout_share,
        test_share: float = Shares.test_share,
        num_symbols: int | None = None,
    ) -> ArrayTask:
        """A task over `tokens`: an (n, L) array or tensor of ids, or a list of rows of different lengths.

        vocab_size    the number of ids; without it, the largest id + 1
        class_names   names of the classes 0, 1, ...; without it, each distinct label (whole number or text) is one
        name          the name of the data in messages
        num_symbols   the old name of vocab_size
        """
        if num_symbols is not None:
            warnings.warn("num_symbols of Task.from_arrays is now vocab_size", DeprecationWarning, stacklevel=3)
            vocab_size = num_symbols if vocab_size is None else vocab_size
        shares = Shares(heldout_share=heldout_share, test_share=test_share)
        origin = Origin(name, "row")
        rows = _token_rows(origin, tokens)
        width = max((len(row) for row in rows), default=0)
        if lengths is not None:
            rows = _cut(origin, rows, lengths)
        count = _count_symbols(origin, rows, vocab_size)
        items = _items(origin, rows, _plain(labels))
        tokeniser = Ids(count)
        table, report = tabulate(
            origin,
            items,
            [row.astype(np.int32) for row in rows],
            [shares.split_of(row) for row in rows],
            shares=shares,
            tokeniser=tokeniser,
            width=width,
            class_names=class_names,
        )
        settings = ArrayOptions(
            heldout_share=shares.heldout_share,
            test_share=shares.test_share,
            vocab_size=count,
            num_classes=len(table.class_names),
        )
        digest = _digest(items, width)
        return cls(title=name, digest=digest, settings=settings, table=table, tokeniser=tokeniser, report=report)


def _plain(values: Any) -> Any:
    """A torch tensor as a numpy array; anything else unchanged."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _token_rows(origin: Origin, tokens: Any) -> list[NDArray[np.int64]]:
    tokens = _plain(tokens)
    if isinstance(tokens, np.ndarray) and tokens.ndim != 2:
        raise DataError(f"tokens of {origin.name} must have the shape (n, L), not {tokens.shape}")
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, (Sequence, np.ndarray)):
        raise DataError(
            f"tokens of {origin.name} must be an array (n, L) or a list of rows, not {type(tokens).__name__}"
        )
    if not len(tokens):
        raise DataError(f"{origin.name} has no rows")
    return [_token_row(origin, i, _plain(row)) for i, row in enumerate(tokens)]


def _token_row(origin: Origin, number: int, row: Any) -> NDArray[np.int64]:
    try:
        ids = np.asarray(row)
    except (ValueError, OverflowError):
        ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        advice = "; convert them with .astype(int)" if ids.dtype.kind in "fb" else ""
        raise origin.error(number, f"tokens must be a flat row of whole numbers, not {str(row)[:60]}{advice}")
    illegal = np.flatnonzero((ids < 0) | (ids >= MOST_SYMBOLS))
    if illegal.size:
        i = illegal[0]
        raise origin.error(
            number,
            f"the id {ids[i]} at position {i} must be from 0 to {MOST_SYMBOLS - 1}; number the symbols 0, 1, 2, ...",
        )
    return ids.astype(np.int64)


def _cut(origin: Origin, rows: list[NDArray[np.int64]], lengths: Any) -> list[NDArray[np.int64]]:
    ends = np.asarray(_plain(lengths))
    if ends.shape != (len(rows),) or ends.dtype.kind not in "iu":
        raise DataError(f"lengths of {origin.name} must be {len(rows)} whole numbers, not {ends.dtype} {ends.shape}")
    for number, (row, end) in enumerate(zip(rows, ends.tolist(), strict=True)):
        if not 0 <= end <= len(row):
            raise origin.error(number, f"the length {end} must be from 0 to {len(row)}, the tokens given")
    return [row[:end] for row, end in zip(rows, ends.tolist(), strict=True)]


def _count_symbols(origin: Origin, rows: list[NDArray[np.int64]], given: int | None) -> int:
    largest = max((int(row.max()) for row in rows if row.size), default=-1)
    if given is None:
        return largest + 1
    count = check_int("vocab_size", given, at_least=1, at_most=MOST_SYMBOLS)
    if largest >= count:
        number = next(i for i, row in enumerate(rows) if row.size and row.max() == largest)
        raise origin.error(number, f"the id {largest} is not below vocab_size = {count}; raise vocab_size")
    return count


def _items(origin: Origin, rows: list[NDArray[np.int64]], labels: Any) -> list[Item]:
    is_list = isinstance(labels, Sequence) and not isinstance(labels, (str, bytes))
    if not is_list and not (isinstance(labels, np.ndarray) and labels.ndim == 1):
        raise DataError(f"labels of {origin.name} must be one label a row, in a list or an array of one dimension")
    values = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    if len(values) != len(rows):
        raise DataError(f"{origin.name} has {len(rows)} rows of tokens but {len(values)} labels; give one label a row")
    # Labels taken one by one from an array are numpy scalars.
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    return [
        Item(i, row, checked_label(origin, i, value)) for i, (row, value) in enumerate(zip(rows, plain, strict=True))
    ]


def _digest(items: list[Item], width: int) -> str:
    """The hash of all rows and labels; it depends neither on their types nor on their padding."""
    total = hashlib.sha256(f"{width}\n".encode())
    for item in items:
        total.update(content_bytes(item.content) + b"\t" + repr(item.label).encode() + b"\n")
    return total.hexdigest()
