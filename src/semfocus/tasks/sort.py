"""Sort: the given digits in increasing order.  `314=134`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.tasks.registry import register_task
from semfocus.tasks.transduction import DIGITS, Transduction


@register_task
@dataclass(frozen=True, kw_only=True)
class Sort(Transduction):
    """Digits, then the same digits from the smallest on: an answer depends on all of them, not on their places."""

    name = "sort"
    summary = "write a string of digits in increasing order"

    def answers(self, given: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        outside = np.arange(given.shape[1]) >= lengths[:, None]
        return np.sort(np.where(outside, len(DIGITS), given), axis=1).clip(max=len(DIGITS) - 1)

    def answer(self, given: list[int]) -> list[int]:
        return [digit for digit in range(len(DIGITS)) for _ in range(given.count(digit))]
