"""Reverse: the given string from its end.  `314=413`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.tasks.registry import register_task
from semfocus.tasks.transduction import Transduction


@register_task
@dataclass(frozen=True, kw_only=True)
class Reverse(Transduction):
    """Digits, then the same digits backwards: each answer looks further back than the one before."""

    name = "reverse"
    summary = "write a string of digits backwards"

    def answers(self, given: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        source = lengths[:, None] - 1 - np.arange(given.shape[1])
        return np.take_along_axis(given, source.clip(0), axis=1)

    def answer(self, given: list[int]) -> list[int]:
        return given[::-1]
