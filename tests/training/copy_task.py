"""A task for `next_token`: a random string twice. The model must learn to copy the first one.

2 0 1 2 0 1    targets    - - 2 0 1 -      at the end of the first string it predicts the second one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream
from semfocus.tasks import NO_TARGET, LengthTask, next_tokens, register_task


@register_task
@dataclass(frozen=True, kw_only=True)
class Copy(LengthTask):
    """Sequences of even length; the first half is random, so that only the second half has targets."""

    name = "copy_string"
    summary = "a random string, then the same string again"
    objective = "next_token"
    symbols = ("a", "b", "c", "d")
    num_classes = 4
    shortest: ClassVar[int] = 2
    default_train_rows = 400
    default_heldout_rows = 100

    length: int = 24

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths[:] = lengths // 2 * 2
        half, position = lengths[:, None] // 2, np.arange(self.seq_len)
        first = rng.integers(self.vocab_size, (len(lengths), self.seq_len))
        tokens = np.take_along_axis(first, position % half, axis=1)
        return tokens, self.label_rows(tokens, lengths)

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        position = np.arange(tokens.shape[1])
        return np.where(position >= lengths[:, None] // 2 - 1, next_tokens(tokens, lengths), NO_TARGET)
