"""Multi-query associative recall: pairs of a key and its value, then keys again, each asking for its value.

    4 8 2 9 | 2 7 4 0        pairs 4 8 and 2 9; asked: 2 and, two later, 4
    - - - - | 9 - 8 -        the labels, at the asked keys only

MQAR of zoology (arXiv 2312.04927): keys from the lower half of the vocabulary, values from the upper one, each once a
row; where a key is asked again follows a power law, near the pairs most often. Between the asked keys stand random
tokens. Unlike zoology's, these are never keys of the same row (id 0 stands there instead), so that the labels follow
from the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_float, check_int
from semfocus.randomness import Stream
from semfocus.tasks.base import MAX_LENGTH, Task
from semfocus.tasks.batch import NO_TARGET, DrawRequest, Rows, within
from semfocus.tasks.registry import register_task

MOST_SYMBOLS = 2**20


@register_task
@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """`pairs` keys with values in rows of `length`; `power` 1 spreads the questions evenly, 0.01 puts most near.

    vocab   ids 1 .. vocab / 2 - 1 are keys, vocab / 2 .. vocab - 1 values
    fill    whether random tokens stand between the asked keys; otherwise id 0
    """

    name = "mqar"
    summary = "which value stood beside this key?"
    objective = "next_token"  # a label at some positions of a causal model
    default_train_rows: ClassVar[int | None] = 20_000
    shortest: ClassVar[int] = 32  # with the default number of pairs

    length: int = 64
    pairs: int = 8
    vocab: int = 8192
    power: float = 0.01
    fill: bool = True

    def __post_init__(self) -> None:
        pairs = check_int("pairs", self.pairs, at_least=1, at_most=MAX_LENGTH // 4)
        length = check_int("length", self.length, at_most=MAX_LENGTH)
        if length < 4 * pairs:
            raise UsageError(
                f"length = {length} is too short for pairs = {pairs}: each takes two tokens, and two more later; "
                f"choose length >= {4 * pairs} or pairs <= {max(1, length // 4)}"
            )
        vocab = check_int("vocab", self.vocab, at_most=MOST_SYMBOLS)
        if vocab // 2 - 1 < pairs:
            raise UsageError(f"vocab = {vocab} has too few keys for pairs = {pairs}; choose vocab >= {2 * pairs + 2}")
        object.__setattr__(self, "power", check_float("power", self.power, 1e-6, 10.0))
        if type(self.fill) is not bool:
            raise UsageError(f"fill = {self.fill!r} must be true or false")

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(str(i) for i in range(self.vocab))

    @property
    def vocab_size(self) -> int:
        return self.vocab

    @property
    def num_classes(self) -> int:
        return self.vocab

    @property
    def seq_len(self) -> int:
        return self.length

    @property
    def baselines(self) -> dict[str, float]:
        """Accuracies without recall: any token, any value, and any value of the row (`shortcut`)."""
        values = self.vocab - self.vocab // 2
        return {"chance": 1 / self.vocab, "majority": 1 / values, "shortcut": 1 / self.pairs}

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        low, high = request.lengths or (self.length, self.length)
        if low < 4 * self.pairs:
            raise UsageError(
                f"lengths = ({low}, {high}): {self.name} with pairs = {self.pairs} needs at least {4 * self.pairs} "
                "tokens a row"
            )
        lengths = low + request.choose(high - low + 1, rng)
        half, n, context = self.vocab // 2, request.n, 2 * self.pairs
        keys = 1 + self._distinct(n, half - 1, rng)
        values = half + self._distinct(n, self.vocab - half, rng)
        asked = context + 2 * self._gaps((lengths - context) // 2, rng)

        tokens = np.zeros((n, self.length), dtype=np.int64)
        if self.fill:
            tokens = rng.integers(self.vocab, tokens.shape)
            for key in keys.T:
                tokens[tokens == key[:, None]] = 0
        tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
        np.put_along_axis(tokens, asked, keys, axis=1)
        labels = np.full_like(tokens, NO_TARGET)
        np.put_along_axis(labels, asked, values, axis=1)
        tokens[~within(lengths, self.length)] = self.pad_id
        return Rows(tokens, labels, lengths)

    def _distinct(self, n: int, count: int, rng: Stream) -> NDArray[np.int64]:
        """(n, pairs) distinct numbers below `count`, in random order: the j-th is one of those left."""
        ranks = rng.integers(count - np.arange(self.pairs), (n, self.pairs))
        chosen = np.zeros((n, self.pairs), dtype=np.int64)
        for j in range(self.pairs):
            number = ranks[:, j]
            for taken in np.sort(chosen[:, :j], axis=1).T:
                number = number + (number >= taken)
            chosen[:, j] = number
        return chosen

    def _gaps(self, spaces: NDArray[np.int64], rng: Stream) -> NDArray[np.int64]:
        """(n, pairs) distinct places below `spaces` (n,), drawn one after the other with weights place^(power - 1).

        The smallest of exponential times with these rates are such a draw without replacement.
        """
        most = int(spaces.max(initial=0))
        times = -np.log1p(-rng.uniform((len(spaces), most))) / np.arange(1, most + 1) ** (self.power - 1)
        times[~within(spaces, most)] = np.inf
        return np.argsort(times, axis=1, kind="stable")[:, : self.pairs]

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.full_like(tokens, NO_TARGET)
        for row, length, label in zip(tokens.tolist(), lengths.tolist(), labels, strict=True):
            value_of: dict[int, int] = {}
            for i in range(0, 2 * self.pairs, 2):
                key, value = row[i : i + 2] if i + 1 < length else (0, 0)
                if not 1 <= key < self.vocab // 2 <= value or key in value_of:
                    raise UsageError(
                        f"a row of mqar begins with {self.pairs} pairs of a new key and a value, not {row[: i + 2]}"
                    )
                value_of[key] = value
            places = [i for i in range(2 * self.pairs, length) if row[i] in value_of]
            if sorted(row[i] for i in places) != sorted(value_of):
                raise UsageError(f"a row of mqar asks for each of its {self.pairs} keys once, not {row[:length]}")
            label[places] = [value_of[row[i]] for i in places]
        return labels
