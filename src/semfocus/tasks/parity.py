"""Parity check: is the number of ones odd?  `01111 -> 0`, `1010100 -> 1`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream
from semfocus.tasks.base import LengthTask, within
from semfocus.tasks.registry import register_task


@register_task
@dataclass(frozen=True, kw_only=True)
class Parity(LengthTask):
    """Fair bits; the class is the number of ones modulo 2."""

    name = "parity"
    summary = "is the number of ones odd?"
    symbols = ("0", "1")
    num_classes = 2
    published_baselines = {"majority": 0.5, "shortcut": 0.5}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        tokens = rng.integers(2, (len(lengths), self.seq_len))
        labels = np.bitwise_xor.reduce(tokens * within(lengths, self.seq_len), axis=1)
        return tokens, labels

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        ones = (tokens == 1) & within(lengths, tokens.shape[1])
        return ones.sum(axis=1) % 2
