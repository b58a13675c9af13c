"""Where a solvable layer turns from position to meaning: the sample ratio from which on meaning has the larger overlap.

    transitions(rows, "topk:2")             {seed: alpha}; 0: by meaning at every ratio, inf: by position at the last
    compare_transitions(rows, "topk:2")     in how many seeds it turns earlier than full attention, and the sign test

Rows are `semfocus.theory.positional_semantic.Trained`. Of the two trainings of a data set the one
that ends lower counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semfocus.analysis.accuracy import sign_p
from semfocus.theory.positional_semantic import FULL, Trained


@dataclass(frozen=True)
class TransitionTest:
    """Whether a mechanism turns to meaning with fewer examples than full attention, seed by seed."""

    earlier: int
    later: int
    seeds: int  # that both have; ties count for neither
    p: float  # two-sided, exact


def winners(rows: Sequence[Trained]) -> list[Trained]:
    """Of the trainings of one mechanism, seed and ratio, the one that ends lower."""
    best: dict[tuple[str, int, float], Trained] = {}
    for row in rows:
        key = row.mechanism, row.seed, row.alpha
        if key not in best or row.loss < best[key].loss:
            best[key] = row
    return [best[key] for key in sorted(best)]


def transitions(rows: Sequence[Trained], mechanism: str) -> dict[int, float]:
    """By seed, the ratio from which on theta > m of the winner, linear in log alpha between two ratios."""
    own = [row for row in winners(rows) if row.mechanism == mechanism]
    return {
        seed: _crossing(sorted((row.alpha, row.theta - row.m) for row in own if row.seed == seed))
        for seed in sorted({row.seed for row in own})
    }


def compare_transitions(rows: Sequence[Trained], mechanism: str) -> TransitionTest:
    """Count the seeds in which the mechanism turns earlier, or later, than full attention."""
    base, other = transitions(rows, FULL), transitions(rows, mechanism)
    seeds = sorted(base.keys() & other.keys())
    earlier, later = (sum(other[s] < base[s] for s in seeds), sum(other[s] > base[s] for s in seeds))
    return TransitionTest(earlier, later, len(seeds), sign_p(earlier, earlier + later))


def medians(rows: Sequence[Trained], mechanism: str, name: str) -> tuple[list[float], list[list[float]]]:
    """The ratios, and at each the quartiles over seeds of a quantity of the winners."""
    own = [row for row in winners(rows) if row.mechanism == mechanism]
    alphas = sorted({row.alpha for row in own})
    values = [[getattr(row, name) for row in own if row.alpha == alpha] for alpha in alphas]
    return alphas, [np.quantile(part, [0.25, 0.5, 0.75]).tolist() for part in values]


def _crossing(curve: Sequence[tuple[float, float]]) -> float:
    """Where the values become positive for good: 0 if they are from the first ratio on, inf if the last is not."""
    places = [i for i, (_, value) in enumerate(curve) if value <= 0]
    if not places:
        return 0.0
    if places[-1] == len(curve) - 1:
        return math.inf
    (low, below), (high, above) = curve[places[-1]], curve[places[-1] + 1]
    share = -below / (above - below)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
