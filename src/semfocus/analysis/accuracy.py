"""Accuracy over seeds: level, spread, and whether one mechanism generalises as well as another.

    topk = Accuracies.of({7: 0.93, 8: 0.95, 9: 0.91, 10: 0.94})
    topk.median, topk.quartiles, topk.interquartile_mean
    accuracy_difference(full, topk).interval          of the mean of other - full, seed by seed
    noninferiority_test(full, topk).decision          "yes": at most two points worse, in the mean and for most seeds

Accuracies are fractions of 1. The caller chooses the epoch they come from; verdicts use the last one.

The t interval of the mean difference alone is overconfident if runs fall in two groups (stuck or not) and the two runs
of a seed mostly agree: with ten seeds it accepts an arm that is 4.7 points worse in one of five repetitions. A "yes" of
`noninferiority_test` therefore requires three things:

1. the interval of the mean difference lies above the margin of -2 points;
2. significantly more than half of the pairs are not worse by more than 2 points, by the exact sign test, which holds
   for any distribution and any correlation within pairs;
3. there are at least 10 pairs, and at least 30 if the runs fall in two groups.

Failures that are too rare to occur in ten runs stay undetected. docs/verdicts.md has the error rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semfocus.analysis.intervals import (
    ACCURACY_MARGIN,
    Equivalence,
    Interval,
    NonInferiority,
    equivalence,
    mean_interval,
    non_inferiority,
    one_sided_p,
    too_few,
)
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.pairing import Floats, Unpaired, paired_seeds, positions, seed_order
from semfocus.errors import UsageError

GAP = 0.10  # an empty range of accuracies wider than this separates two groups
PAIRS, PAIRS_FOR_GROUPS = 10, 30  # required for "yes"


@dataclass(frozen=True, eq=False)
class Accuracies:
    """Accuracies of one task and mechanism, one run per seed, in the order of the seeds."""

    values: Floats
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        order, seeds = seed_order(self.seeds)
        values = np.asarray(self.values, dtype=np.float64)
        if values.shape != (len(seeds),):
            raise UsageError(f"accuracies {values.shape} must have one entry for each of the {len(seeds)} seeds")
        values = values[order]
        for seed, value in zip(seeds, values, strict=True):
            if not 0 <= value <= 1:
                raise UsageError(f"accuracy = {value} of seed {seed} must be a fraction between 0 and 1")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "seeds", seeds)

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Accuracies:
        """From accuracies by seed."""
        return cls(np.array(list(values.values()), dtype=np.float64), tuple(values))

    def __len__(self) -> int:
        return len(self.seeds)

    def only(self, seeds: Sequence[int]) -> Accuracies:
        """The runs of these seeds only."""
        return Accuracies(self.values[positions(self.seeds, seeds)], tuple(seeds))

    @property
    def mean(self) -> float | None:
        """The mean; None without runs, as for the other statistics."""
        return float(np.mean(self.values)) if len(self) else None

    @property
    def median(self) -> float | None:
        """The median."""
        return float(np.median(self.values)) if len(self) else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The lower and the upper quartile, interpolated linearly."""
        if not len(self):
            return None
        low, high = np.quantile(self.values, [0.25, 0.75])
        return float(low), float(high)

    @property
    def interquartile_mean(self) -> float | None:
        """The mean of the middle half: a quarter of the runs, rounded down, is dropped at either end."""
        if not len(self):
            return None
        dropped = len(self) // 4
        return float(np.mean(np.sort(self.values)[dropped : len(self) - dropped]))

    @property
    def interval(self) -> Interval | None:
        """Student's t interval of the mean; None below three runs."""
        return mean_interval(self.values)

    def near(self, level: float) -> Equivalence:
        """Whether the mean is within two points of `level`, for example chance."""
        return equivalence(mean_interval(self.values - level), ACCURACY_MARGIN)


@dataclass(frozen=True)
class AccuracyDifference:
    """The difference in accuracy between the other arm and full attention, over the seeds they share."""

    mean: float | None  # of other - full; None without a shared seed
    median: float | None
    interval: Interval | None  # of the mean: Student's t on the paired differences
    pairs: int
    left_out: tuple[Unpaired, ...]
    why: str = ""

    def equivalence(self) -> Equivalence:
        """Whether the two differ by at most two points."""
        return equivalence(self.interval, ACCURACY_MARGIN)

    def non_inferiority(self) -> NonInferiority:
        """Whether the other arm is at most two points worse."""
        return non_inferiority(self.interval, ACCURACY_MARGIN)


def accuracy_difference(full: Accuracies, other: Accuracies) -> AccuracyDifference:
    """Other minus full, seed by seed."""
    seeds, left_out = paired_seeds(full.seeds, other.seeds)
    differences = other.only(seeds).values - full.only(seeds).values
    return AccuracyDifference(
        mean=float(np.mean(differences)) if seeds else None,
        median=float(np.median(differences)) if seeds else None,
        interval=mean_interval(differences),
        pairs=len(seeds),
        left_out=left_out,
        why=too_few(len(seeds)),
    )


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
