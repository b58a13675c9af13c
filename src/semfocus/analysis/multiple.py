"""Several comparisons at once: Holm's adjustment, and the number of seeds it needs.

holm({"topk:5": 0.002, "banded:5": 0.03, "block:5": 0.4})      0.006, 0.06, 0.4
pairs_needed(5), pairs_needed(14)                              8, 10
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from semfocus.errors import UsageError

ALPHA = 0.05
"""The level of all tests, after Holm."""

Key = TypeVar("Key", bound=Hashable)


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """Adjusted p-values: rejecting those <= alpha keeps the chance of any false rejection at alpha.

    The smallest of m is multiplied by m, the next by m - 1 and so on, never falling below the one before.
    A comparison without a p-value (None) stays None and still counts in m, so that missing data cannot make the
    others significant.
    """
    for key, p in p_values.items():
        if p is not None and not 0 <= p <= 1:
            raise UsageError(f"p = {p} of {key!r} must lie between 0 and 1")
    adjusted: dict[Key, float | None] = dict.fromkeys(p_values)
    known = sorted((p, i, key) for i, (key, p) in enumerate(p_values.items()) if p is not None)
    floor = 0.0
    for rank, (p, _, key) in enumerate(known):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p))
        adjusted[key] = floor
    return adjusted


def pairs_needed(comparisons: int, alpha: float = ALPHA) -> int:
    """The fewest paired seeds for which the exact test can be significant after Holm over this many comparisons.

    The smallest p of n pairs is 2^(1-n), and Holm multiplies the smallest by the number of comparisons.
    """
    if comparisons < 1:
        raise UsageError(f"comparisons = {comparisons} must be at least 1")
    if not 0 < alpha < 1:
        raise UsageError(f"alpha = {alpha} must lie between 0 and 1")
    pairs = 2
    while math.ldexp(comparisons, 1 - pairs) > alpha:
        pairs += 1
    return pairs


def not_enough(pairs: int, comparisons: int, alpha: float = ALPHA) -> str:
    """The reason why this many paired seeds cannot decide; empty if they can."""
    needed = pairs_needed(comparisons, alpha)
    if pairs >= needed:
        return ""
    return (
        f"not enough data: with {pairs} paired seed{'' if pairs == 1 else 's'} the smallest p after Holm over "
        f"{comparisons} comparison{'' if comparisons == 1 else 's'} is "
        f"{min(1.0, math.ldexp(comparisons, 1 - max(pairs, 1))):.2g} > {alpha:g}; at least {needed} seeds are needed"
    )
