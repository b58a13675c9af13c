"""Flip-flop: a bit is written, ignored and read; reading gives what was written last.  `w1 i0 i1 r1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError
from semfocus.randomness import Stream
from semfocus.tasks.base import NO_TARGET, LengthTask, within
from semfocus.tasks.registry import register_task

WRITE, READ, IGNORE = 2, 3, 4


@register_task
@dataclass(frozen=True, kw_only=True)
class FlipFlop(LengthTask):
    """Pairs of an instruction and a bit: the first writes, the last reads, others ignore (80 %), write or read.

        w 1 i 0 w 0 i 1 r 0        only what follows r is asked: the bit of the last w

    The language of Liu et al. 2023 (arXiv 2306.00946): a memory of one bit that distractors must not touch. `length`
    counts tokens; a row of odd length is one shorter.
    """

    name = "flip_flop"
    summary = "read the bit that was written last"
    objective = "next_token"
    symbols = ("0", "1", "w", "r", "i")
    num_classes = 5
    shortest: ClassVar[int] = 4

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths[:] = lengths // 2 * 2
        n, pairs = len(lengths), self.seq_len // 2
        chance = rng.uniform((n, pairs))
        kinds = np.where(chance < 0.8, IGNORE, np.where(chance < 0.9, WRITE, READ))
        kinds[:, 0] = WRITE
        kinds[np.arange(n), lengths // 2 - 1] = READ
        bits = rng.integers(2, (n, pairs))
        written = np.maximum.accumulate(np.where(kinds == WRITE, np.arange(pairs), 0), axis=1)
        bits = np.where(kinds == READ, np.take_along_axis(bits, written, axis=1), bits)
        tokens = np.zeros((n, self.seq_len), dtype=np.int64)
        tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = kinds, bits
        labels = np.full_like(tokens, NO_TARGET)
        labels[:, 0 : 2 * pairs : 2] = np.where(kinds == READ, bits, NO_TARGET)
        return tokens, np.where(within(lengths, self.seq_len), labels, NO_TARGET)

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.full_like(tokens, NO_TARGET)
        for row, length, label in zip(tokens.tolist(), lengths.tolist(), labels, strict=True):
            memory = None
            for i in range(0, length - 1, 2):
                if row[i] not in (WRITE, READ, IGNORE) or row[i + 1] > 1:
                    raise UsageError(f"a row of flip_flop is pairs of w, r or i and a bit, not {row[:length]}")
                if row[i] == WRITE:
                    memory = row[i + 1]
                if row[i] == READ:
                    if memory is None:
                        raise UsageError("a row of flip_flop reads before anything is written")
                    label[i] = memory
        return labels
