"""Missing duplicate: a string stands twice with one hole; which bit is missing?  `0110_110 -> 0`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError
from semfocus.randomness import Stream
from semfocus.tasks.base import LengthTask, within
from semfocus.tasks.registry import register_task

HOLE = 2


@register_task
@dataclass(frozen=True, kw_only=True)
class MissingDuplicate(LengthTask):
    """h = L // 2 fair bits, written twice, one of the 2h positions replaced by a hole: the class is its bit.

        0 1 1 0 _ 1 1 0        the hole at 4 hides what stands at 0: class 0

    A row of odd length ends with one `pad_id` ('#'). The only row of length 1 is `1`, of class 1.
    """

    name = "missing_duplicate"
    summary = "a bit string stands twice with one hole: which bit is missing?"
    symbols = ("0", "1", "_")
    num_classes = 2
    published_baselines = {"majority": 0.5, "shortcut": 0.5}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        n, half = len(lengths), lengths // 2
        bits = rng.integers(2, (n, max(self.seq_len // 2, 1)))
        position = np.arange(self.seq_len)
        source = np.where(position < half[:, None], position, position - half[:, None])
        tokens = np.take_along_axis(bits, source.clip(0, bits.shape[1] - 1), axis=1)
        tokens[position >= 2 * half[:, None]] = self.pad_id
        tokens[lengths == 1, 0] = 1
        hole = rng.integers(2 * half, n)
        labels = tokens[np.arange(n), hole]
        long = lengths > 1
        tokens[long, hole[long]] = HOLE
        return tokens, labels

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        inside = within(lengths, tokens.shape[1])
        holes = (tokens == HOLE) & inside
        wrong = np.flatnonzero((holes.sum(axis=1) != 1) & (lengths > 1))
        if wrong.size:
            raise UsageError(
                f"row {wrong[0]} has {holes[wrong[0]].sum()} holes ('_', id 2); missing_duplicate rows have one"
            )
        half = np.maximum(lengths // 2, 1)
        twin = (np.argmax(holes, axis=1) + half) % (2 * half)
        answer = tokens[np.arange(len(tokens)), np.minimum(twin, tokens.shape[1] - 1)]
        labels = np.where(lengths == 1, tokens[:, 0], answer)
        strange = np.flatnonzero(labels > 1)
        if strange.size:
            raise UsageError(f"row {strange[0]} has no bit where the twin of its hole should be")
        return labels

    def _filler(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        is_last = np.arange(tokens.shape[1]) == lengths[:, None] - 1
        return is_last & (lengths % 2 == 1)[:, None] & (tokens == self.pad_id)

    def _content_lengths(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        bare = super()._content_lengths(tokens)
        # One '#' that completes a row of odd width is content, not padding.
        return np.where((bare == tokens.shape[1] - 1) & (bare % 2 == 0), bare + 1, bare)
