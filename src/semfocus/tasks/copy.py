"""Copy: the given string once more.  `314=314`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.tasks.registry import register_task
from semfocus.tasks.transduction import Transduction


@register_task
@dataclass(frozen=True, kw_only=True)
class Copy(Transduction):
    """Digits, then the same digits: each answer looks back by the length of the string."""

    name = "copy"
    summary = "repeat a string of digits"

    def answers(self, given: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return given

    def answer(self, given: list[int]) -> list[int]:
        return list(given)
