"""Even pairs: is the number of adjacent unequal tokens odd?  `001110 -> 0`, `0101001 -> 1`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream
from semfocus.tasks.base import LengthTask, within
from semfocus.tasks.registry import register_task


@register_task
@dataclass(frozen=True, kw_only=True)
class EvenPairs(LengthTask):
    """Fair bits; the class is the number of positions that differ from the next one, modulo 2.

    The changes telescope, so that the class is also [first token != last token].
    """

    name = "even_pairs"
    summary = "do the first and the last token differ (is the number of 01 and 10 pairs odd)?"
    symbols = ("0", "1")
    num_classes = 2
    published_baselines = {"majority": 0.5, "shortcut": 0.5}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        tokens = rng.integers(2, (len(lengths), self.seq_len))
        last = tokens[np.arange(len(lengths)), lengths - 1]
        return tokens, tokens[:, 0] ^ last

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        changes = (tokens[:, 1:] != tokens[:, :-1]) & within(lengths - 1, tokens.shape[1] - 1)
        return changes.sum(axis=1) % 2
