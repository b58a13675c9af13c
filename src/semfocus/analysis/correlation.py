"""Does one number per task predict another? Spearman's rank correlation for a few tasks.

    spearman(dispersion_ratio, speed_up)      by task name: {"parity": 0.8, ...}, {"parity": 1.1, ...}

The p-value compares |rho| with its values under all n! assignments (n <= 9; beyond, a fixed sample of them).
The interval is Fisher's z with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and Wright (2000).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semfocus.analysis.intervals import LEVEL, ROUNDING, Interval, sampled_p
from semfocus.analysis.pairing import Floats
from semfocus.errors import UsageError
from semfocus.randomness import Stream

EXACT_ITEMS = 9
FEWEST_ITEMS = 4  # the interval divides by n - 3


@dataclass(frozen=True)
class Correlation:
    """A rank correlation between two numbers measured on the same items."""

    rho: float | None  # None if there is not enough data; `why` gives the reason
    p: float | None  # two-sided
    interval: Interval | None
    items: int
    method: Literal["exact", "sampled", "none"]
    left_out: tuple[str, ...]  # items that have only one of the two numbers
    why: str = ""


def spearman(x: Mapping[str, float], y: Mapping[str, float]) -> Correlation:
    """Spearman's rho over the items that both have; ties get their mean rank."""
    names = sorted(set(x) & set(y))
    left_out = tuple(sorted(set(x) ^ set(y)))
    a, b = (_values(label, source, names) for label, source in (("x", x), ("y", y)))
    if len(names) < FEWEST_ITEMS:
        many = "1 item" if len(names) == 1 else f"{len(names)} items"
        why = f"not enough data: {many}, and a correlation needs at least {FEWEST_ITEMS}"
        return Correlation(None, None, None, len(names), "none", left_out, why)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        why = "not enough data: one of the two numbers is the same for all items"
        return Correlation(None, None, None, len(names), "none", left_out, why)
    first, second = _standard_ranks(a), _standard_ranks(b)
    rho = float(np.clip(first @ second, -1.0, 1.0))
    exact = len(names) <= EXACT_ITEMS
    p = _exact_p(first, second) if exact else _sampled_p(first, second)
    method = "exact" if exact else "sampled"
    return Correlation(rho, p, fisher_interval(rho, len(names)), len(names), method, left_out)


def mean_ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values get the mean of their ranks."""
    below = np.sum(values[None, :] < values[:, None], axis=1)
    equal = np.sum(values[None, :] == values[:, None], axis=1)
    return below + (equal + 1) / 2


def fisher_interval(rho: float, n: int) -> Interval:
    """The interval of a rank correlation of n items.

    A perfect correlation is first reduced by half of the smallest step of rho, which keeps z finite; the outer end of
    its interval stays at 1.
    """
    from scipy.special import ndtri

    most = 1 - 6 / (n * (n**2 - 1))
    inside = min(max(rho, -most), most)
    reach = float(ndtri((1 + LEVEL) / 2)) * math.sqrt((1 + inside**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(inside) + side * reach) for side in (-1, 1))
    return Interval(-1.0 if rho < -most else low, 1.0 if rho > most else high)


def _values(label: str, source: Mapping[str, float], names: list[str]) -> Floats:
    values = np.array([source[name] for name in names], dtype=np.float64)
    for name, value in zip(names, values, strict=True):
        if not math.isfinite(value):
            raise UsageError(f"{label} = {value} of {name} must be a finite number")
    return values


def _standard_ranks(values: Floats) -> Floats:
    """Ranks centred and scaled, so that the dot product of two of these is their correlation."""
    ranks = mean_ranks(values)
    centred = ranks - np.mean(ranks)
    return centred / np.linalg.norm(centred)


def _exact_p(first: Floats, second: Floats) -> float:
    correlations = second[_permutations(len(second))] @ first
    return float(np.mean(np.abs(correlations) >= abs(first @ second) - ROUNDING))


def _sampled_p(first: Floats, second: Floats) -> float:
    def draw(rng: Stream, n: int) -> Floats:
        orders = np.argsort(rng.words((n, len(second))), axis=1, kind="stable")  # (n, items)
        return second[orders] @ first

    return sampled_p("spearman", float(abs(first @ second)) - ROUNDING, draw)


def _permutations(n: int) -> NDArray[np.int64]:
    """All permutations of 0 .. n-1, shape (n!, n): each one of n-1 items with the last item inserted at every place."""
    orders = np.zeros((1, 1), dtype=np.int64)
    for item in range(1, n):
        grown = [np.insert(orders, place, item, axis=1) for place in range(item + 1)]
        orders = np.concatenate(grown)
    return orders
