"""Intervals, p-values, and decisions against margins that are fixed here, before any run.

    jackknife_t(estimate, leave_one_out)                     a 95 % interval from n leave-one-out estimates
    equivalence(Interval(0.9, 1.2), SPEEDUP_MARGIN)          "equivalent"
    one_sided_p(mean, interval, n, -0.02)                    p of "the true value is above -0.02"
    tost_p(mean, interval, n, Margin(-0.02, 0.02))           p of "the true value is inside the margin"

"No benefit", "as well as" and "near chance" are claims of equivalence or non-inferiority: the whole interval has to
lie inside the margin. A difference that is not significant shows nothing of the kind.

The intervals are estimate +- Student's t (n - 1 degrees of freedom) times a standard error, on the logarithm for
ratios. `one_sided_p` and `tost_p` invert them: the level at which the end of the interval touches the bound, so that
Holm's adjustment applies to such claims too. All p-values are two-sided, as the intervals are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from semfocus.analysis.pairing import Floats
from semfocus.errors import UsageError
from semfocus.randomness import Stream, stream

LEVEL = 0.95
FEWEST_PAIRS = 3  # fewer give no usable estimate of the spread
DRAWS = 99_999  # rearrangements of a sampled test
ROUNDING = 1e-9  # statistics closer than this, relative to their scale, are equal
_CHUNK = 10_000  # rearrangements drawn at a time, to bound memory

Equivalence = Literal["equivalent", "different", "undecided"]
NonInferiority = Literal["yes", "no", "undecided"]


class Margin(NamedTuple):
    """The values that count as practically the same as no effect, both ends included."""

    low: float
    high: float


SPEEDUP_MARGIN = Margin(0.8, 1.25)
"""Two mechanisms whose speed-up lies in here are called equally fast."""
ACCURACY_MARGIN = Margin(-0.02, 0.02)
"""Two accuracies that differ by no more are called equal."""


@dataclass(frozen=True)
class Interval:
    """A two-sided 95 % confidence interval."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise UsageError(f"interval = ({self.low}, {self.high}) must have low <= high")


def equivalence(interval: Interval | None, margin: Margin) -> Equivalence:
    """ "equivalent" if the interval lies inside the margin, "different" if it lies wholly outside."""
    if interval is None:
        return "undecided"
    if margin.low <= interval.low and interval.high <= margin.high:
        return "equivalent"
    if interval.high < margin.low or margin.high < interval.low:
        return "different"
    return "undecided"


def non_inferiority(interval: Interval | None, margin: Margin) -> NonInferiority:
    """ "yes" if the interval lies above the margin's lower end, "no" if it lies below; larger is better."""
    if interval is None:
        return "undecided"
    if interval.low >= margin.low:
        return "yes"
    return "no" if interval.high < margin.low else "undecided"


def jackknife_t(estimate: float, leave_one_out: Floats) -> Interval | None:
    """Estimate +- Student's t (n - 1 degrees of freedom) times the jackknife standard error; None below three values.

        se^2 = (n - 1) / n * sum over i of (estimate without i - their mean)^2

    For a mean this is the ordinary t interval.
    """
    n = len(leave_one_out)
    if n < FEWEST_PAIRS:
        return None
    from scipy.special import stdtrit  # takes 0.3 s to import, and only intervals need it

    error = np.sqrt((n - 1) / n * np.sum((leave_one_out - np.mean(leave_one_out)) ** 2))
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2) * error)
    return Interval(estimate - reach, estimate + reach)


def leave_one_out_means(values: Floats) -> Floats:
    """The mean of all values but the first, all but the second, and so on."""
    return (np.sum(values) - values) / (len(values) - 1)


def mean_interval(values: Floats) -> Interval | None:
    """Student's t interval of a mean; None below three values."""
    if len(values) < FEWEST_PAIRS:
        return None
    return jackknife_t(float(np.mean(values)), leave_one_out_means(values))


def log_interval(interval: Interval) -> Interval:
    """The interval of a ratio on the logarithmic scale; an end at 0 becomes -inf."""
    low = math.log(interval.low) if interval.low > 0 else -math.inf
    return Interval(low, math.log(interval.high) if interval.high < math.inf else math.inf)


def too_few(pairs: int) -> str:
    """The reason why there is no interval; empty if there is one."""
    if pairs >= FEWEST_PAIRS:
        return ""
    runs = f"{pairs} paired seed{'' if pairs == 1 else 's'}"
    return f"not enough data: {runs}, and an interval needs at least {FEWEST_PAIRS}"


def one_sided_p(estimate: float, interval: Interval, n: int, bound: float, *, below: bool = False) -> float:
    """The p-value of the claim that the true value lies above `bound`, or with `below` below it.

    If all n seeds agree to the last digit, the interval is a point and p is 2^(1-n), the smallest p of an exact test of
    n pairs: no spread in the sample does not prove that there is none.
    """
    from scipy.special import stdtr, stdtrit

    finite = [abs(end - estimate) for end in (interval.low, interval.high) if math.isfinite(end)]
    error = max(finite) / float(stdtrit(n - 1, (1 + LEVEL) / 2))
    distance = bound - estimate if below else estimate - bound
    if error <= ROUNDING * max(1.0, abs(estimate)):
        return math.ldexp(1.0, 1 - n) if distance >= 0 else 1.0
    return min(1.0, 2 * float(stdtr(n - 1, -distance / error)))


def tost_p(estimate: float, interval: Interval, n: int, margin: Margin) -> float:
    """The p-value of the claim that the true value lies inside `margin`: both one-sided claims have to hold."""
    above = one_sided_p(estimate, interval, n, margin.low)
    return max(above, one_sided_p(estimate, interval, n, margin.high, below=True))


def sampled_p(purpose: str, at_least: float, draw: Callable[[Stream, int], Floats]) -> float:
    """The share of random rearrangements whose absolute statistic is `at_least` this large.

    For tests with too many rearrangements to enumerate. `draw(rng, n)` returns the statistics of n random
    rearrangements. The observed one counts as one of them, so that the test keeps its level. The same call always
    gives the same p.
    """
    rng = stream(0, f"analysis/{purpose}")
    extreme = 1
    for start in range(0, DRAWS, _CHUNK):
        extreme += int(np.sum(np.abs(draw(rng, min(_CHUNK, DRAWS - start))) >= at_least))
    return extreme / (1 + DRAWS)
