"""Cycle navigation: where does a walk on a ring of five end?  `20100 -> 3`, `2220 -> 2`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream
from semfocus.tasks.base import LengthTask, within
from semfocus.tasks.registry import register_task

RING = 5


@register_task
@dataclass(frozen=True, kw_only=True)
class CycleNavigation(LengthTask):
    """Uniform steps left (0), stay (1), right (2) from position 0; the class is the final position."""

    name = "cycle_navigation"
    summary = "where does a walk of steps left, stay, right on a ring of five end?"
    symbols = ("0", "1", "2")
    num_classes = RING
    published_baselines = {"majority": 0.2, "shortcut": 0.2}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        tokens = rng.integers(3, (len(lengths), self.seq_len))
        steps = np.where(within(lengths, self.seq_len), tokens - 1, 0)
        return tokens, steps.sum(axis=1) % RING

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        inside = within(lengths, tokens.shape[1])
        right, left = (((tokens == step) & inside).sum(axis=1) for step in (2, 0))
        return (right - left) % RING
