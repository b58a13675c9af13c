"""How often is a mechanism that generalises worse called "as good", and one that is as good called so?

    python benchmarks/verdicts_check.py                       # the tables of docs/verdicts.md, some minutes on one core
    python benchmarks/verdicts_check.py --table rare --repetitions 500

The data are those of statistics_check.py. The rule that verdicts use is compared with the t interval alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtri

from semfocus.analysis import Accuracies, accuracy_difference
from semfocus.analysis.accuracy import noninferiority_test
from statistics_check import correlated_normals, print_table, print_tables, simulate_accuracies

CORRELATIONS = (0.0, 0.5, 0.9)


def called_as_good(full: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the share of repetitions (rows) in which `other` is called as good: by our rule, by the interval alone."""
    seeds = tuple(range(full.shape[1]))
    ours = interval = 0
    for f, o in zip(full, other, strict=True):
        arms = Accuracies(f, seeds), Accuracies(o, seeds)
        ours += noninferiority_test(*arms).decision == "yes"
        interval += accuracy_difference(*arms).non_inferiority() == "yes"
    return ours / len(full), interval / len(full)


def wrongly(kind: str, n: int, correlation: float, repetitions: int) -> tuple[float, float]:
    """Return how often an arm that is worse by exactly 2 points (noise) or by 4.7 (stuck) is called as good."""
    worse, better, _ = simulate_accuracies(kind, n, correlation, repetitions)
    return called_as_good(better, worse)


def rightly(kind: str, n: int, correlation: float, repetitions: int) -> tuple[float, float]:
    """Return how often an arm that is better by 2 points (noise) or by 4.7 (stuck) is called as good."""
    worse, better, _ = simulate_accuracies(kind, n, correlation, repetitions)
    return called_as_good(worse, better)


def rarely_stuck(share: float, n: int, repetitions: int) -> tuple[float, float]:
    """Return how often an arm with this share of runs stuck at chance is called as good as one without."""
    z, y = correlated_normals(f"rare/{share}/{n}", repetitions, n, 0.0)
    full = np.clip(0.97 + 0.005 * z, 0, 1)
    stuck = np.abs(y) > -ndtri(share / 2)
    return called_as_good(full, np.where(stuck, 0.5, np.clip(0.97 + 0.005 * y, 0, 1)))


def compared_table(title: str, ask: Callable[..., tuple[float, float]], kinds: Sequence[str], repetitions: int) -> None:
    """Print the rule and the interval alone, by kind of data, seeds and correlation."""
    heads = [f"{name}, {correlation:g}" for correlation in CORRELATIONS for name in ("rule", "interval")]
    rows = [
        (n, kind, *(share for correlation in CORRELATIONS for share in ask(kind, n, correlation, repetitions)))
        for kind in kinds
        for n in (10, 20, 30)
    ]
    print_table(f"{title}, by correlation", ("seeds", "data", *heads), rows)


def worse_table(repetitions: int) -> None:
    """Print false claims. (`ceiling` can have none: its difference is within the margin.)"""
    compared_table("Worse, but called as good", wrongly, ("noise", "stuck"), repetitions)


def better_table(repetitions: int) -> None:
    """Print the power."""
    compared_table("Better, and called as good", rightly, ("noise", "ceiling", "stuck"), repetitions)


def rare_table(repetitions: int) -> None:
    """Print how often rare failures stay undetected."""
    rows = [
        (f"{share:.0%}", f"{47 * share:.1f}", *(rarely_stuck(share, n, repetitions)[0] for n in (10, 20, 30, 60)))
        for share in (0.05, 0.1, 0.2, 0.3)
    ]
    heads = ("stuck", "points worse", "10", "20", "30", "60")
    print_table("Runs that are stuck now and then, called as good", heads, rows)


TABLES = {"worse": worse_table, "better": better_table, "rare": rare_table}


if __name__ == "__main__":
    print_tables(TABLES, __doc__.splitlines()[0], 0.025, "2.5 %")
