"""2-back: at every position, the token two before it.  `3 1 4 1  ->  - - 3 1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream
from semfocus.tasks.base import NO_TARGET, LengthTask, within
from semfocus.tasks.registry import register_task

BACK = 2


@register_task
@dataclass(frozen=True, kw_only=True)
class TwoBack(LengthTask):
    """Random digits; the label of a position is the digit two positions earlier, none at the first two."""

    name = "two_back"
    summary = "which digit stood two positions earlier?"
    objective = "next_token"  # a label at every position of a causal model
    symbols = tuple("0123456789")
    num_classes = 10
    shortest: ClassVar[int] = BACK + 1

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        tokens = rng.integers(self.vocab_size, (len(lengths), self.seq_len))
        labels = np.full_like(tokens, NO_TARGET)
        labels[:, BACK:] = tokens[:, :-BACK]
        return tokens, np.where(within(lengths, self.seq_len), labels, NO_TARGET)

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.full_like(tokens, NO_TARGET)
        for row, length, label in zip(tokens.tolist(), lengths.tolist(), labels, strict=True):
            for i in range(BACK, length):
                label[i] = row[i - BACK]
        return labels
