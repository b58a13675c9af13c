"""Does a mechanism generalise as well as full attention? A rule that also guards against rare failures.

    test = noninferiority_test(full, other)
    test.decision, test.p      "yes", 0.0215

The t interval of the mean difference alone is overconfident if runs fall in two groups (stuck or not) and the two runs
of a seed mostly agree: with ten seeds it accepts an arm that is 4.7 points worse in one of five repetitions. "yes"
therefore requires three things:

1. the interval of the mean difference lies above the margin of -2 points;
2. significantly more than half of the pairs are not worse by more than 2 points, by the exact sign test, which holds
   for any distribution and any correlation within pairs;
3. there are at least 10 pairs, and at least 30 if the runs fall in two groups.

Failures that are too rare to occur in ten runs stay undetected. docs/verdicts.md has the error rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.analysis.accuracy import Accuracies, accuracy_difference
from semfocus.analysis.intervals import ACCURACY_MARGIN, Interval, NonInferiority, non_inferiority, one_sided_p
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.pairing import paired_seeds

GAP = 0.10  # an empty range of accuracies wider than this separates two groups
PAIRS, PAIRS_FOR_GROUPS = 10, 30  # required for "yes"


@dataclass(frozen=True)
class NonInferiorityTest:
    """Whether the other arm is at most two points worse, in the mean and for most seeds."""

    decision: NonInferiority
    p: float | None  # two-sided, of "yes": the larger one of the mean's and the sign test's
    mean: float | None  # of other - full
    interval: Interval | None  # of the mean
    pairs: int
    not_worse: int  # pairs in which the other run is at most two points worse
    two_groups: bool
    why: str


def noninferiority_test(full: Accuracies, other: Accuracies) -> NonInferiorityTest:
    """Compare two arms on the seeds they share."""
    seeds, _ = paired_seeds(full.seeds, other.seeds)
    full, other = full.only(seeds), other.only(seeds)
    difference = accuracy_difference(full, other)
    not_worse = int(np.sum(other.values - full.values >= ACCURACY_MARGIN.low - 1e-12))
    grouped = two_groups(np.concatenate([full.values, other.values]))
    p, decision, why = None, "undecided", difference.why
    if difference.interval is not None and difference.mean is not None:
        mean_p = one_sided_p(difference.mean, difference.interval, len(seeds), ACCURACY_MARGIN.low)
        p = max(mean_p, sign_p(not_worse, len(seeds)))
        decision, why = _decide(difference.interval, p, not_worse, len(seeds), grouped)
    return NonInferiorityTest(decision, p, difference.mean, difference.interval, len(seeds), not_worse, grouped, why)


def sign_p(successes: int, n: int) -> float:
    """The two-sided exact sign test: n trials, success and failure equally likely."""
    from scipy.special import bdtr

    if n == 0:
        return 1.0
    return min(1.0, 2 * float(bdtr(min(successes, n - successes), n, 0.5)))


def two_groups(values: np.ndarray) -> bool:
    """Whether an empty gap of more than ten points divides the runs."""
    return len(values) > 1 and bool(np.max(np.diff(np.sort(values))) > GAP)


def _decide(interval: Interval, p: float, not_worse: int, n: int, grouped: bool) -> tuple[NonInferiority, str]:
    if not_enough(n, 1):
        return "undecided", not_enough(n, 1)
    by_mean = non_inferiority(interval, ACCURACY_MARGIN)
    if by_mean == "no":
        return "no", f"worse by more than {-ACCURACY_MARGIN.low:.0%}"
    if by_mean == "undecided":
        return "undecided", f"the mean difference may lie on either side of {ACCURACY_MARGIN.low:.0%}"
    if 2 * not_worse <= n or p > ALPHA:
        return "undecided", f"{not_worse} of {n} pairs are not worse by more than 2 points, too few to say so of most"
    if n < PAIRS:
        return "undecided", f"{n} pairs may all have missed what goes wrong now and then; {PAIRS} are needed"
    if grouped and n < PAIRS_FOR_GROUPS:
        why = f"runs fall in two groups more than {GAP:.0%} apart, which takes {PAIRS_FOR_GROUPS} seeds; there are {n}"
        return "undecided", why
    return "yes", ""
