"""A task over arrays or lists in memory.

Task.from_arrays(pixels, digits)                                   (n, L) integers, numpy or torch
Task.from_arrays(padded, labels, lengths=lengths)                  positions from a length on are padding
Task.from_arrays([[3, 1, 2], [0, 2], ...], ["yes", "no", ...])     rows of different lengths
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from semfocus.errors import DataError, UsageError, check_int, unknown
from semfocus.tasks.rows import Item, Origin, Shares, checked_label, content_bytes
from semfocus.tasks.table import Metrics, TableOptions, TableTask, tabulate
from semfocus.tasks.tokenisers import Ids

MOST_SYMBOLS = 2**20
_ABOUT = "semfocus"  # the key of a stored task's description
_LOADED = tuple(option.name for option in dataclasses.fields(TableOptions))  # options that a stored task takes


@dataclass(frozen=True, kw_only=True)
class ArrayOptions(TableOptions):
    """The options of `Task.from_arrays`, its arrays aside."""

    vocab_size: int
    num_classes: int


class Given(NamedTuple):
    """What a task was built from: rows (also those without tokens), their width, and the names of classes if given."""

    items: list[Item]
    width: int
    class_names: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class ArrayTask(TableTask):
    """Rows of token ids, without a tokeniser."""

    name = "arrays"
    summary = "rows of token ids in memory, through Task.from_arrays"

    given: Given = field(compare=False, repr=False)

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
        metrics: Metrics = "accuracy",
        num_symbols: int | None = None,
    ) -> ArrayTask:
        """A task over `tokens`: an (n, L) array or tensor of ids, or a list of rows of different lengths.

        vocab_size    the number of ids; without it, the largest id + 1
        class_names   names of the classes 0, 1, ...; without it, each distinct label (whole number or text) is one
        name          the name of the data in messages
        metrics       "balanced": balanced accuracy and macro F1 are measured too
        num_symbols   the old name of vocab_size
        """
        if num_symbols is not None:
            warnings.warn("num_symbols of Task.from_arrays is now vocab_size", DeprecationWarning, stacklevel=3)
            vocab_size = num_symbols if vocab_size is None else vocab_size
        options = TableOptions(heldout_share=heldout_share, test_share=test_share, metrics=metrics)
        origin = Origin(name, "row", "argument")
        rows = _token_rows(origin, tokens)
        width = max((len(row) for row in rows), default=0)
        if lengths is not None:
            rows = _cut(origin, rows, lengths)
        count = _count_symbols(origin, rows, vocab_size)
        items = _items(origin, rows, _plain(labels))
        return cls._of(origin, items, width, count, class_names, options)

    @classmethod
    def _of(
        cls,
        origin: Origin,
        items: list[Item],
        width: int,
        count: int,
        class_names: Sequence[str] | None,
        options: TableOptions,
    ) -> ArrayTask:
        rows = [np.asarray(item.content) for item in items]
        tokeniser = Ids(count)
        table, report = tabulate(
            origin,
            items,
            [row.astype(np.int32) for row in rows],
            [options.split_of(row) for row in rows],
            shares=options,
            tokeniser=tokeniser,
            width=width,
            class_names=class_names,
        )
        settings = ArrayOptions(**dataclasses.asdict(options), vocab_size=count, num_classes=len(table.class_names))
        names = None if class_names is None else tuple(class_names)
        return cls(
            title=origin.name,
            digest=_digest(items, width),
            settings=settings,
            table=table,
            tokeniser=tokeniser,
            report=report,
            given=Given(items, width, names),
        )

    def to_bytes(self) -> bytes:
        """The task as a safetensors file, which `get_task` reads."""
        labels = [item.label for item in self.given.items]
        distinct = list(dict.fromkeys(labels))
        codes = {label: i for i, label in enumerate(distinct)}
        rows = [np.asarray(item.content, dtype=np.int32) for item in self.given.items]
        tensors = {
            "ids": np.concatenate(rows),
            "lengths": np.array([len(row) for row in rows], dtype=np.int64),
            "labels": np.array([codes[label] for label in labels], dtype=np.int64),
        }
        about = {
            "title": self.title,
            "digest": self.digest,
            "width": self.given.width,
            "vocab_size": self.vocab_size,
            "labels": distinct,
            "class_names": self.given.class_names,
            "options": {field: self.options[field] for field in _LOADED},
        }
        return safetensors.numpy.save(tensors, {_ABOUT: json.dumps(about)})

    @classmethod
    def load(cls, path: Path, **options: Any) -> ArrayTask:
        """Read what `to_bytes` gave; the options may be those of `TableOptions`."""
        for option in options:
            if option not in _LOADED:
                raise unknown(f"option of {path}", option, _LOADED)
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                about = json.loads((file.metadata() or {})[_ABOUT])
                ids, lengths, labels = (file.get_tensor(name) for name in ("ids", "lengths", "labels"))
            rows = np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])
            items = [
                Item(i, row, about["labels"][code]) for i, (row, code) in enumerate(zip(rows, labels, strict=True))
            ]
            settings = TableOptions(**{**about["options"], **options})
            task = cls._of(
                Origin(about["title"], "row", "compare"),
                items,
                about["width"],
                about["vocab_size"],
                about["class_names"],
                settings,
            )
        except FileNotFoundError:
            raise DataError(f"{path} is not there; check the path (the current directory is {Path.cwd()})") from None
        except UsageError:
            raise
        except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{path} does not hold the arrays of a task: {error}") from None
        if task.digest != about["digest"]:
            raise DataError(f"{path} is damaged: its rows are not those that were written; store the arrays again")
        return task


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
