"""P-values of an interval's position against a margin, so that Holm can be applied to claims of that kind.

    one_sided_p(mean, interval, n, -0.02)           of "the truth is above -0.02": 0.05 at the interval's low end
    one_sided_p(mean, interval, n, 0.02, below=True)
    tost_p(mean, interval, n, Margin(-0.02, 0.02))

The intervals of this package are estimate +- Student's t (n - 1 degrees) times a standard error, on the logarithm
for ratios. These functions ask at which level the end of such an interval would touch the bound. All p-values are
two-sided, as the intervals are. Where all n seeds agree to the last digit the interval is a point, and p is 2^(1-n),
the least that an exact test of n pairs can give: no spread seen is not proof of none.
"""

from __future__ import annotations

import math

from semfocus.analysis.intervals import LEVEL, Interval, Margin
from semfocus.analysis.resampling import ROUNDING


def one_sided_p(estimate: float, interval: Interval, n: int, bound: float, *, below: bool = False) -> float:
    """Of the claim that the truth lies above `bound` (below it, if so asked)."""
    from scipy.special import stdtr, stdtrit

    finite = [abs(end - estimate) for end in (interval.low, interval.high) if math.isfinite(end)]
    error = max(finite) / float(stdtrit(n - 1, (1 + LEVEL) / 2))
    distance = bound - estimate if below else estimate - bound
    if error <= ROUNDING * max(1.0, abs(estimate)):
        return math.ldexp(1.0, 1 - n) if distance >= 0 else 1.0
    return min(1.0, 2 * float(stdtr(n - 1, -distance / error)))


def tost_p(estimate: float, interval: Interval, n: int, margin: Margin) -> float:
    """Of the claim that the truth lies inside `margin`: both one-sided claims have to hold."""
    above = one_sided_p(estimate, interval, n, margin.low)
    return max(above, one_sided_p(estimate, interval, n, margin.high, below=True))


def logs(interval: Interval) -> Interval:
    """The interval of a ratio on the logarithmic scale; an end at 0 becomes -inf."""
    low = math.log(interval.low) if interval.low > 0 else -math.inf
    return Interval(low, math.log(interval.high) if interval.high < math.inf else math.inf)
