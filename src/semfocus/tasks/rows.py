"""Rows of a user's own data: position in the file, content, label and split.

A row's split depends on its content alone: adding or reordering rows moves none of the others, and equal rows share a
split.

    place = sha256(content) as a number in [0, 1)

    0        test_share        test_share + heldout_share        1
    |  test  |     heldout     |             train              |

Labels are numbered as classes:

    "spam", "ham", "ham"    ->  ham 0, spam 1      texts in the order of their characters
    10, 9, 9                ->  9 0, 10 1          whole numbers by value, also where the file writes them as texts
    "0.0", "1.0"            ->  0 0, 1 1           as a table writes whole numbers that were once beside a gap
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import BadRow, DataError, UsageError
from semfocus.tasks.batch import Split

Content = str | Sequence[str] | Sequence[int] | NDArray[np.int64]
Label = bool | int | str

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")  # as Python prints it: 007 stays a text
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?")
_ZERO_FRACTION = re.compile(r"(?<=[0-9])\.0*$")
_MOST_DIGITS = 1000  # of a number: Python refuses to convert longer texts, and nobody counts with them
_SHOWN = 5  # bad rows in a message
Typing = Literal["file", "compare", "argument"]  # where options stand: at the command line, in options={...}, in a call
_KINDS: dict[type, str] = {bool: "a truth value", int: "a whole number", str: "a text"}


class Item(NamedTuple):
    """One row as it was read; `number` says where: a line of a text file, a row of a table."""

    number: int
    content: Content
    label: Label


def typed(option: str, value: str | float) -> str:
    """An option of a task as it is typed, at the command line and in Python."""
    return f"--option {option}={value} (in Python {option}={value!r})"


@dataclass(frozen=True)
class Origin:
    """Where rows come from, for messages: `Origin("data.csv", "line")`."""

    name: str
    unit: str
    typing: Typing = "file"

    def typed(self, option: str, value: str | float) -> str:
        """An option of these rows as their user types it."""
        if self.typing == "compare":
            return f"options={{{option!r}: {value!r}}}"
        return f"{option}={value!r}" if self.typing == "argument" else typed(option, value)

    def at(self, number: int) -> str:
        """`data.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"

    def error(self, number: int, problem: str) -> BadRow:
        """An error that names the place of a row."""
        return BadRow(self.at(number), number, problem)

    def refuse(self, bad: Sequence[BadRow]) -> NoReturn:
        """Raise one error about these rows: how many they are, and the first of them."""
        if len(bad) == 1:
            raise bad[0]
        first = "; ".join(f"{self.unit} {row.number}: {row.problem}" for row in bad[:_SHOWN])
        shown = f" (the first {_SHOWN} are shown)" if len(bad) > _SHOWN else ""
        raise DataError(f"{self.name}: {len(bad)} bad {self.unit}s{shown}: {first}")


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


def checked_label(origin: Origin, number: int, value: Any) -> Label:
    """The label of one row, or an error that says why it cannot be one; space around a text is dropped."""
    if isinstance(value, str):
        value = value.strip()
    is_nan = value.lower() == "nan" if isinstance(value, str) else isinstance(value, float) and value != value
    if value is None or value == "" or is_nan:
        raise origin.error(number, "the label is missing; fill it in or remove the row")
    if isinstance(value, float):
        if not value.is_integer():
            raise _fraction(origin, number, value)
        return int(value)
    if type(value) not in _KINDS:
        raise origin.error(
            number, f"the label {_short(value)} ({type(value).__name__}) must be a whole number or a text"
        )
    return value


def number_classes(
    origin: Origin, items: Sequence[Item], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes in order, and each row's class; given `names`, labels are places in them."""
    if names is not None:
        return tuple(names), _places(origin, items, len(names))
    _check_one_kind(origin, items)
    labels = _typed(origin, items)
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise _one_class(origin, classes[0])
    ids = {label: i for i, label in enumerate(classes)}
    return tuple(_name(label) for label in classes), np.array([ids[label] for label in labels], dtype=np.int64)


def _check_one_kind(origin: Origin, items: Sequence[Item]) -> None:
    first = items[0]
    for item in items:
        if type(item.label) is not type(first.label):
            one, other = (
                f"{_KINDS[type(labelled.label)]} {_short(labelled.label)} at {origin.unit} {labelled.number}"
                for labelled in (first, item)
            )
            raise DataError(f"{origin.name} mixes types of labels: {one}, {other}; use one")


def _typed(origin: Origin, items: Sequence[Item]) -> list[Any]:
    """The labels, as whole numbers where all of them are texts of whole numbers: `2` or `2.0`."""
    labels = [item.label for item in items]
    texts = [label for label in labels if isinstance(label, str)]
    numbers = [text for text in texts if _FRACTION.fullmatch(text) or _WHOLE.fullmatch(text)]
    if not texts or len(numbers) < len(texts):
        return labels
    wholes = [_ZERO_FRACTION.sub("", text) for text in texts]
    bad = [
        _fraction(origin, item.number, item.label)
        for item, whole in zip(items, wholes, strict=True)
        if not _WHOLE.fullmatch(whole)
    ]
    if bad:
        origin.refuse(bad)
    return [int(whole) for whole in wholes] if max(map(len, wholes)) < _MOST_DIGITS else labels


def _fraction(origin: Origin, number: int, label: object) -> BadRow:
    return origin.error(number, f"the label {_short(label)} is a fraction; classes are whole numbers or words")


def _places(origin: Origin, items: Sequence[Item], count: int) -> NDArray[np.int64]:
    for item in items:
        if type(item.label) is not int or not 0 <= item.label < count:
            raise origin.error(
                item.number,
                f"the label {_short(item.label)} must be a whole number from 0 to {count - 1}, a place in class_names",
            )
    labels = np.array([item.label for item in items], dtype=np.int64)
    if (labels == labels[0]).all():
        raise _one_class(origin, items[0].label)
    return labels


def _one_class(origin: Origin, label: Label) -> DataError:
    other = f" (is this the right label column? {origin.typed('label_column', 'NAME')} names another)"
    return DataError(
        f"every row of {origin.name} has the label {_short(label)}; a task needs rows of at least two classes"
        f"{'' if origin.typing == 'argument' else other}"
    )


def _name(label: Label) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)


def _short(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
