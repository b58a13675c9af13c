"""Intervals, and what they decide against margins that are fixed here, before any run.

    jackknife_t(estimate, leave_one_out)                 a 95 % interval from n values with one seed left out
    equivalence(Interval(0.9, 1.2), SPEEDUP_MARGIN)      "equivalent"

"No benefit", "as well as" and "near chance" are claims of equivalence or non-inferiority: the whole interval
has to lie inside the margin. That a difference is not significant shows nothing of the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from semfocus.analysis.pairing import Floats
from semfocus.errors import UsageError

LEVEL = 0.95
FEWEST_PAIRS = 3  # with fewer, a spread estimated from them says nothing

Equivalence = Literal["equivalent", "different", "undecided"]
NonInferiority = Literal["yes", "no", "undecided"]


class Margin(NamedTuple):
    """The values that count as practically the same as no effect, both ends included."""

    low: float
    high: float


SPEEDUP_MARGIN = Margin(0.8, 1.25)
ACCURACY_MARGIN = Margin(-0.02, 0.02)


@dataclass(frozen=True)
class Interval:
    """A two-sided 95 % confidence interval."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise UsageError(f"interval = ({self.low}, {self.high}) must have low <= high")


def equivalence(interval: Interval | None, margin: Margin) -> Equivalence:
    """ "equivalent" when the interval lies inside the margin, "different" when it lies wholly outside."""
    if interval is None:
        return "undecided"
    if margin.low <= interval.low and interval.high <= margin.high:
        return "equivalent"
    if interval.high < margin.low or margin.high < interval.low:
        return "different"
    return "undecided"


def non_inferiority(interval: Interval | None, margin: Margin) -> NonInferiority:
    """ "yes" when the interval lies above the margin's lower end, "no" when it lies below; larger is better."""
    if interval is None:
        return "undecided"
    if interval.low >= margin.low:
        return "yes"
    return "no" if interval.high < margin.low else "undecided"


def jackknife_t(estimate: float, leave_one_out: Floats) -> Interval | None:
    """Estimate +- Student's t (n - 1 degrees) times the jackknife standard error; None below three values.

        se^2 = (n - 1) / n * sum over i of (estimate without i - their mean)^2

    For a mean this is the ordinary t interval.
    """
    n = len(leave_one_out)
    if n < FEWEST_PAIRS:
        return None
    from scipy.special import stdtrit  # 0.3 s, and only an interval needs it

    error = np.sqrt((n - 1) / n * np.sum((leave_one_out - np.mean(leave_one_out)) ** 2))
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2) * error)
    return Interval(estimate - reach, estimate + reach)


def leave_one_out_means(values: Floats) -> Floats:
    """The mean of all values but the first, all but the second, and so on."""
    return (np.sum(values) - values) / (len(values) - 1)


def mean_interval(values: Floats) -> Interval | None:
    """Student's t interval for a mean; None below three values."""
    if len(values) < FEWEST_PAIRS:
        return None
    return jackknife_t(float(np.mean(values)), leave_one_out_means(values))


def too_few(pairs: int) -> str:
    """Why there is no interval; empty when there is one."""
    if pairs >= FEWEST_PAIRS:
        return ""
    runs = f"{pairs} paired seed{'' if pairs == 1 else 's'}"
    return f"not enough data: {runs}, and an interval needs at least {FEWEST_PAIRS}"
