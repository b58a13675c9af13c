"""Tasks that answer a string by a string of the same length: the base of copy, reverse and sort.

3 1 4 = 1 3 4        given, a separator, the answer
- - - 1 3 4 -        the labels, each the next token: nothing is asked of the given part
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_int
from semfocus.randomness import Stream
from semfocus.tasks.base import NO_TARGET, DrawRequest, Rows, Task, within

DIGITS = "0123456789"
SEPARATOR = 10


@dataclass(frozen=True, kw_only=True)
class Transduction(Task):
    """`length` given digits, a separator and the answer. `sample(lengths=...)` counts given digits, too."""

    objective = "next_token"
    symbols = (*DIGITS, "=")
    num_classes = 11
    shortest: ClassVar[int] = 1

    length: int = 40

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_int("length", self.length, at_least=1))

    @property
    def seq_len(self) -> int:
        return self.row_len(self.length)

    def row_len(self, length: int) -> int:
        return 2 * length + 1

    @property
    def _longest(self) -> tuple[int, str]:
        return self.length, "the number of given digits"

    @abstractmethod
    def answers(self, given: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, N) the answers to digits (n, N), of which the first `lengths` (n,) of a row are given."""

    @abstractmethod
    def answer(self, given: list[int]) -> list[int]:
        """The answer to one string: the rule, which shares no code with `answers`."""

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        low, high = request.lengths or (self.length, self.length)
        given_lengths = low + request.choose(high - low + 1, rng)
        given = rng.integers(len(DIGITS), (request.n, self.length))
        answers = self.answers(given, given_lengths)
        lengths = 2 * given_lengths + 1
        own, place = given_lengths[:, None], np.arange(self.seq_len)
        tokens = np.where(place < own, _at(given, place), _at(answers, place - own - 1))
        tokens = np.where(place == own, SEPARATOR, tokens)
        tokens[~within(lengths, self.seq_len)] = self.pad_id
        asked = (place >= own) & (place < 2 * own)
        labels = np.where(asked, np.roll(tokens, -1, axis=1), NO_TARGET)
        return Rows(tokens, labels, lengths)

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.full_like(tokens, NO_TARGET)
        for row, length, label in zip(tokens.tolist(), lengths.tolist(), labels, strict=True):
            half = length // 2
            if length % 2 == 0 or row[half] != SEPARATOR or SEPARATOR in row[:half]:
                raise UsageError(f"a row of {self.name} is digits, '=' and as many digits, not {row[:length]}")
            label[half : 2 * half] = self.answer(row[:half])
        return labels


def _at(table: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entries of a (n, N) table at places (L,) or (n, L); any within it where a place is outside."""
    place = np.broadcast_to(place.clip(0, table.shape[1] - 1), (table.shape[0], place.shape[-1]))
    return np.take_along_axis(table, place, axis=1)
