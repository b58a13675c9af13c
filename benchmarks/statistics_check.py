"""Do the tests keep their level and the intervals their coverage on simulated data? With other methods for comparison.

    python benchmarks/statistics_check.py                       # all tables, a few minutes on one core
    python benchmarks/statistics_check.py --table speedup --repetitions 1000

Epochs are lognormal, rounded up to whole epochs, correlated between the two runs of a seed, and censored at a
horizon that full attention misses in a given share of runs. (The name statistics.py would hide the standard module:
the folder of a script comes first on the import path.)
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from semfocus.analysis import Accuracies, ConvergenceTimes, accuracy_difference, paired_logrank, speed_up
from semfocus.analysis.correlation import fisher_interval, mean_ranks
from semfocus.analysis.survival import logrank_scores
from semfocus.randomness import stream

Floats = NDArray[np.float64]
RESAMPLES = 2000


class Setting(NamedTuple):
    """Parameters of one simulation."""

    seeds: int
    correlation: float
    spread: float  # standard deviation of log epochs
    ratio: float  # median epochs of full attention / of the other mechanism
    censored: float  # share of full-attention runs that miss the horizon
    median: float = 50.0  # epochs of full attention

    @property
    def horizon(self) -> int:
        """The last epoch; six standard deviations above the median when no run is censored."""
        beyond = 6.0 if self.censored == 0 else float(ndtri(1 - self.censored))
        return math.ceil(self.median * math.exp(self.spread * beyond))

    @property
    def true_ratio(self) -> float:
        """The exact ratio of restricted means: E min(ceil T, h) = sum over k < h of P(T > k)."""
        k = np.arange(1, self.horizon)
        full, other = (
            1 + np.sum(ndtr(-(np.log(k) - math.log(centre)) / self.spread))
            for centre in (self.median, self.median / self.ratio)
        )
        return float(full / other)


def correlated_normals(name: str, repetitions: int, n: int, correlation: float) -> tuple[Floats, Floats]:
    """Return two (repetitions, n) arrays of standard normals with this correlation."""
    u = ndtri(stream(0, f"benchmarks/statistics/{name}").uniform((2, repetitions, n)))
    return u[0], correlation * u[0] + math.sqrt(1 - correlation**2) * u[1]


def simulate_epochs(setting: Setting, repetitions: int) -> tuple[Floats, Floats]:
    """Return the epochs of full attention and of the other mechanism; infinite beyond the horizon."""
    z, y = correlated_normals(f"epochs/{setting}", repetitions, setting.seeds, setting.correlation)
    full = np.ceil(setting.median * np.exp(setting.spread * z))
    other = np.ceil(setting.median / setting.ratio * np.exp(setting.spread * y))
    full[full > setting.horizon] = np.inf
    other[other > setting.horizon] = np.inf
    return full, other


def as_times(epochs: Floats, horizon: float) -> ConvergenceTimes:
    """Return one repetition as the library's type."""
    return ConvergenceTimes(epochs, np.isfinite(epochs), horizon, tuple(range(len(epochs))))


def rejection_rates(setting: Setting, repetitions: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return how often our paired test rejects, and how often the log-rank test that ignores the pairing does."""
    full, other = simulate_epochs(setting, repetitions)
    ours = 0
    for f, o in zip(full, other, strict=True):
        p = paired_logrank(as_times(f, setting.horizon), as_times(o, setting.horizon)).p
        ours += p is not None and p <= alpha
    return ours / repetitions, float(np.mean(unpaired_logrank_p(full, other) <= alpha))


def unpaired_logrank_p(full: Floats, other: Floats) -> Floats:
    """Return p per repetition of the two-sample log-rank permutation test, in its normal approximation."""
    n = full.shape[1]
    epochs = np.concatenate([full, other], axis=1)
    scores = logrank_scores(epochs, np.isfinite(epochs))
    variance = n / (2 * (2 * n - 1)) * np.sum(scores**2, axis=1)  # of the sum of n of the 2n, without replacement
    return 2 * ndtr(-np.abs(np.sum(scores[:, n:], axis=1)) / np.sqrt(np.maximum(variance, 1e-12)))


def speedup_coverage(setting: Setting, repetitions: int) -> tuple[float, float, float]:
    """Return the coverage of our interval, and of BCa and percentile bootstraps of the same ratio."""
    full, other = simulate_epochs(setting, repetitions)
    truth = setting.true_ratio
    ours = 0
    for f, o in zip(full, other, strict=True):
        interval = speed_up(as_times(f, setting.horizon), as_times(o, setting.horizon)).interval
        ours += interval is not None and interval.low <= truth <= interval.high
    full, other = (np.minimum(arm, setting.horizon) for arm in (full, other))

    def log_ratio(weights: Floats) -> Floats:
        return np.log((full @ weights.T) / (other @ weights.T))

    return ours / repetitions, *bootstrap_coverage(log_ratio, setting.seeds, math.log(truth))


def bootstrap_coverage(statistic: Callable[[Floats], Floats], n: int, truth: float) -> tuple[float, float]:
    """Return the coverage of BCa and percentile intervals; `statistic`: (m, n) weights -> (repetitions, m) values."""
    draws = stream(0, "benchmarks/statistics/bootstrap").integers(n, (RESAMPLES, n))
    weights = np.stack([np.bincount(row, minlength=n) for row in draws]) / n
    values = np.sort(statistic(weights), axis=1)
    estimate = statistic(np.full((1, n), 1 / n))
    without_one = statistic((1 - np.eye(n)) / (n - 1))
    influence = np.mean(without_one, axis=1, keepdims=True) - without_one
    scale = np.maximum(np.sum(influence**2, axis=1) ** 1.5, 1e-300)
    acceleration = np.sum(influence**3, axis=1) / (6 * scale)
    below = (np.mean(values < estimate - 1e-12, axis=1) + np.mean(values <= estimate + 1e-12, axis=1)) / 2
    bias = ndtri(np.clip(below, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES))
    ends = []
    for quantile in (0.025, 0.975):
        shifted = bias + ndtri(quantile)
        rank = ndtr(bias + shifted / (1 - acceleration * shifted)) * RESAMPLES
        index = np.clip(rank.astype(int), 0, RESAMPLES - 1)
        ends.append((np.take_along_axis(values, index[:, None], 1)[:, 0], values[:, int(quantile * RESAMPLES)]))
    (bca_low, plain_low), (bca_high, plain_high) = ends
    return (
        float(np.mean((bca_low <= truth) & (truth <= bca_high))),
        float(np.mean((plain_low <= truth) & (truth <= plain_high))),
    )


def simulate_accuracies(kind: str, n: int, correlation: float, repetitions: int) -> tuple[Floats, Floats, float]:
    """Return the accuracies of both arms on 2000 held-out examples, and the true mean difference.

    noise: 60 % and 62 %, two to three points of spread. ceiling: a skewed tail below 100 %. stuck: 30 % and 20 %
    of the runs stay at chance, the others generalise.
    """
    z, y = correlated_normals(f"accuracy/{kind}/{n}/{correlation}", repetitions, n, correlation)
    if kind == "noise":
        full, other, truth = 0.60 + 0.02 * z, 0.62 + 0.03 * y, 0.02
    elif kind == "ceiling":
        full, other = 1 - 0.010 * np.exp(0.8 * z), 1 - 0.006 * np.exp(0.8 * y)
        truth = 0.004 * math.exp(0.8**2 / 2)
    else:
        jitter = correlated_normals(f"jitter/{n}/{correlation}", repetitions, n, 0.0)
        full = np.where(z < ndtri(0.3), 0.5, 0.97) + 0.005 * jitter[0]
        other = np.where(y < ndtri(0.2), 0.5, 0.97) + 0.005 * jitter[1]
        truth = 0.1 * 0.47
    full, other = (np.clip(np.round(arm * 2000) / 2000, 0, 1) for arm in (full, other))
    return full, other, truth


def accuracy_coverage(kind: str, n: int, correlation: float, repetitions: int) -> tuple[float, float, float]:
    """Return the coverage of our paired interval, and of BCa and percentile bootstraps of the mean difference."""
    full, other, truth = simulate_accuracies(kind, n, correlation, repetitions)
    seeds = tuple(range(n))
    ours = 0
    for f, o in zip(full, other, strict=True):
        interval = accuracy_difference(Accuracies(f, seeds), Accuracies(o, seeds)).interval
        ours += interval is not None and interval.low <= truth <= interval.high
    difference = other - full
    return ours / repetitions, *bootstrap_coverage(lambda weights: difference @ weights.T, n, truth)


def false_noninferiority(kind: str, n: int, correlation: float, repetitions: int) -> float:
    """Return how often an arm that is worse by two points (noise) or 4.7 (stuck) is called non-inferior."""
    worse, better, _ = simulate_accuracies(kind, n, correlation, repetitions)
    seeds = tuple(range(n))
    wrong = 0
    for full, other in zip(better, worse, strict=True):
        wrong += accuracy_difference(Accuracies(full, seeds), Accuracies(other, seeds)).non_inferiority() == "yes"
    return wrong / repetitions


def correlation_coverage(n: int, truth: float, repetitions: int) -> float:
    """Return the coverage of the interval of Spearman's rho on normal data whose rank correlation is `truth`."""
    x, y = correlated_normals(f"spearman/{n}/{truth}", repetitions, n, 2 * math.sin(math.pi * truth / 6))
    covered = 0
    for a, b in zip(x, y, strict=True):
        interval = fisher_interval(float(np.corrcoef(mean_ranks(a), mean_ranks(b))[0, 1]), n)
        covered += interval.low <= truth <= interval.high
    return covered / repetitions


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(f'{cell:.3f}' if isinstance(cell, float) else str(cell) for cell in row)} |", flush=True)


def size_table(repetitions: int) -> None:
    """Print the size of the paired test, and of the one that ignores pairs."""
    rows = []
    for n in (8, 10, 20):
        for correlation in (0.0, 0.5, 0.8, 0.9):
            for censored in (0.0, 0.2):
                setting = Setting(n, correlation, 0.35, 1.0, censored)
                rows.append((n, f"{correlation:g}", f"{censored:.0%}", *rejection_rates(setting, repetitions)))
    columns = ("seeds", "correlation", "censored", "paired, exact", "pairing ignored")
    print_table("How often the 5 % test rejects when there is no effect (spread 0.35)", columns, rows)


def power_table(repetitions: int) -> None:
    """Print the power of both tests."""
    cases = ((10, 0.0, 1.3), (10, 0.5, 1.3), (10, 0.8, 1.3), (10, 0.5, 2.0), (20, 0.5, 1.3), (30, 0.5, 1.3))
    rows = []
    for n, correlation, ratio in cases:
        setting = Setting(n, correlation, 0.35, ratio, 0.2)
        rows.append((n, f"{correlation:g}", f"{ratio:g}x", *rejection_rates(setting, repetitions)))
    columns = ("seeds", "correlation", "effect", "paired, exact", "pairing ignored")
    print_table("Power at 5 % (spread 0.35, 20 % of full-attention runs censored)", columns, rows)


def speedup_table(repetitions: int) -> None:
    """Print the coverage for the speed-up: mean and lowest over effects and spreads."""
    usual, wide, few, all_shares = (0.15, 0.4), (0.7,), (0.1,), (0.0, 0.1, 0.3)
    cases = [(3, usual, few), (5, usual, few), (10, usual, all_shares), (20, usual, few)]
    cases += [(10, wide, all_shares), (20, wide, few)]
    rows = []
    for n, spreads, shares in cases:
        for correlation in (0.0, 0.5, 0.9):
            for censored in shares:
                settings = [Setting(n, correlation, s, ratio, censored) for ratio in (1.0, 1.3, 4.0) for s in spreads]
                cells = np.array([speedup_coverage(setting, repetitions) for setting in settings])
                covered = [f"{mean:.3f} ({low:.3f})" for mean, low in zip(cells.mean(0), cells.min(0), strict=True)]
                rows.append((n, ", ".join(map(str, spreads)), f"{correlation:g}", f"{censored:.0%}", *covered))
    columns = ("seeds", "spreads", "correlation", "censored", "jackknife-t", "BCa", "percentile")
    title = (
        "Coverage of nominal 95 % intervals for the speed-up: mean (lowest) over effects 1x, 1.3x, 4x and the spreads"
    )
    print_table(title, columns, rows)


def accuracy_table(repetitions: int) -> None:
    """Print the coverage for the difference of accuracies."""
    rows = [
        (n, kind, f"{correlation:g}", *accuracy_coverage(kind, n, correlation, repetitions))
        for n in (5, 10, 20)
        for kind in ("noise", "ceiling", "stuck")
        for correlation in (0.0, 0.5, 0.9)
    ]
    columns = ("seeds", "data", "correlation", "paired t", "BCa", "percentile")
    print_table("Coverage of nominal 95 % intervals for the accuracy difference", columns, rows)


def noninferiority_table(repetitions: int) -> None:
    """Print how often non-inferiority is claimed falsely."""
    rows = [
        (n, kind, *(false_noninferiority(kind, n, correlation, repetitions) for correlation in (0.0, 0.5, 0.9)))
        for kind in ("noise", "stuck")
        for n in (5, 10, 20, 30)
    ]
    title = "How often an arm 2 points (noise) or 4.7 points (stuck) worse is called non-inferior, by correlation"
    print_table(title, ("seeds", "data", "0", "0.5", "0.9"), rows)


def correlation_table(repetitions: int) -> None:
    """Print the coverage for the rank correlation."""
    truths = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
    rows = [(n, *(correlation_coverage(n, truth, repetitions) for truth in truths)) for n in (5, 8, 10, 20)]
    print_table("Coverage of nominal 95 % intervals for Spearman's rho", ("items", *map(str, truths)), rows)


TABLES = {
    "size": size_table,
    "power": power_table,
    "speedup": speedup_table,
    "accuracy": accuracy_table,
    "noninferiority": noninferiority_table,
    "correlation": correlation_table,
}


def print_tables(tables: Mapping[str, Callable[[int], None]], description: str, rate: float, rate_text: str) -> None:
    """Print the tables that the command line asks for, and the Monte Carlo error of a share near `rate`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--table", choices=sorted(tables), action="append", help="default: all")
    parser.add_argument("--repetitions", type=int, default=4000)
    options = parser.parse_args()
    error = math.sqrt(rate * (1 - rate) / options.repetitions)
    print(f"{options.repetitions} repetitions: Monte Carlo standard error {error:.4f} at {rate_text}")
    for name in options.table or tables:
        tables[name](options.repetitions)


if __name__ == "__main__":
    print_tables(TABLES, __doc__.splitlines()[0], 0.05, "5 % or 95 %")
