"""Does a mechanism need other epochs to the threshold than full attention? An exact test on paired seeds.

    test = paired_logrank(full, other)
    test.p, test.favours      0.00195, "other"

Both arms are pooled and every run gets its log-rank score. Under the null hypothesis the two runs of a seed are
exchangeable: the statistic, the sum of the score differences, is compared with its values under all 2^n swaps. The
p-value is two-sided and exact for any correlation between paired runs, with ties and with censoring. It cannot fall
below 2^(1-n).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from semfocus.analysis.intervals import DRAWS, ROUNDING, sampled_p
from semfocus.analysis.pairing import Floats, Unpaired, paired_seeds
from semfocus.analysis.survival import ConvergenceTimes, logrank_scores
from semfocus.errors import UsageError
from semfocus.randomness import Stream

EXACT_PAIRS = 40  # up to here all swaps are enumerated; two halves of 2^20 sums take a fraction of a second


@dataclass(frozen=True)
class PairedTest:
    """The result of a test by within-seed swaps of two arms."""

    p: float | None  # two-sided; None if there is no test; `why` gives the reason
    statistic: float  # observed minus expected arrivals of `other`, less those of `full`
    pairs: int
    informative: int  # pairs whose two runs differ
    smallest_p: float  # the smallest p that a test of this many pairs can give
    method: Literal["exact", "sampled", "none"]
    left_out: tuple[Unpaired, ...]
    why: str = ""

    @property
    def favours(self) -> Literal["full", "other", "neither"]:
        """The arm that is earlier in this sample, significant or not."""
        if self.informative == 0 or abs(self.statistic) < ROUNDING:
            return "neither"
        return "other" if self.statistic > 0 else "full"


def paired_logrank(full: ConvergenceTimes, other: ConvergenceTimes) -> PairedTest:
    """The exact paired log-rank test on one task; seeds that only one arm has are listed as left out."""
    return pooled_logrank({"": (full, other)})


def pooled_logrank(tasks: Mapping[str, tuple[ConvergenceTimes, ConvergenceTimes]]) -> PairedTest:
    """The same test over several tasks at once: runs are scored within their task and swapped within (task, seed).

    It tests for a difference on these tasks together; "on every task" needs a test of each task.
    """
    differences: list[Floats] = []
    left_out: list[Unpaired] = []
    for task in sorted(tasks):
        full, other = tasks[task]
        same_horizon(full, other)
        seeds, alone = paired_seeds(full.seeds, other.seeds)
        left_out += [Unpaired(seed, missing, task) for seed, missing, _ in alone]
        differences.append(_score_differences(full.only(seeds), other.only(seeds)))
    return _swap_test(np.concatenate([np.empty(0), *differences]), tuple(left_out))


def same_horizon(full: ConvergenceTimes, other: ConvergenceTimes) -> None:
    """Raise an error if the arms were trained for different numbers of epochs."""
    if full.horizon != other.horizon:
        raise UsageError(
            f"horizon = {full.horizon:g} of the full arm differs from {other.horizon:g} of the other; "
            "cut both to the shorter one with ConvergenceTimes.until"
        )


def exact_swap_p(differences: Floats) -> float:
    """The share of all 2^n sign changes of these differences whose sum is at least as far from zero.

    The sums of the two halves are enumerated separately and matched by binary search: 2^(n/2) steps instead of 2^n.
    """
    observed, slack = _observed(differences)
    if observed <= slack:
        return 1.0
    middle = len(differences) // 2
    left, right = (_signed_sums(half) for half in (differences[:middle], differences[middle:]))
    right.sort()
    below = np.searchsorted(right, observed - slack - left, side="left")
    upper = left.size * right.size - int(np.sum(below))
    return 2 * upper / 2.0 ** len(differences)  # the lower tail mirrors the upper one


def sampled_swap_p(differences: Floats) -> float:
    """The same share, estimated from random sign changes."""
    observed, slack = _observed(differences)

    def draw(rng: Stream, n: int) -> Floats:
        return (1.0 - 2.0 * rng.integers(2, (n, len(differences)))) @ differences

    return sampled_p("swaps", observed - slack, draw)


def _score_differences(full: ConvergenceTimes, other: ConvergenceTimes) -> Floats:
    epochs = np.concatenate([full.epochs, other.epochs])
    scores = logrank_scores(epochs, np.concatenate([full.reached, other.reached]))
    return scores[len(full) :] - scores[: len(full)]


def _swap_test(differences: Floats, left_out: tuple[Unpaired, ...]) -> PairedTest:
    pairs = len(differences)
    informative = int(np.sum(np.abs(differences) > ROUNDING))
    p, method, why, smallest = None, "none", "", 1.0
    if pairs < 2:
        why = f"not enough data: {pairs} paired seed{'' if pairs == 1 else 's'}, and a test needs at least 2"
    elif pairs <= EXACT_PAIRS:
        p, method, smallest = exact_swap_p(differences), "exact", 2.0 ** (1 - pairs)
    else:
        p, method, smallest = sampled_swap_p(differences), "sampled", 1 / (1 + DRAWS)
    if pairs >= 2 and informative == 0:
        why = "the two runs of every seed got there together or not at all: nothing to tell the arms apart"
    return PairedTest(p, float(np.sum(differences)), pairs, informative, smallest, method, left_out, why)


def _observed(differences: Floats) -> tuple[float, float]:
    return abs(float(np.sum(differences))), ROUNDING * float(np.sum(np.abs(differences)))


def _signed_sums(values: Floats) -> Floats:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums
