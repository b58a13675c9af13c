"""Level, power and coverage on data whose truth is known. Bounds are the nominal value and four Monte Carlo errors.

The tables in docs/statistics.md come from the same simulations with more repetitions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

REPETITIONS = 1500


def four_errors(rate: float, repetitions: int) -> float:
    return 4 * math.sqrt(rate * (1 - rate) / repetitions)


@pytest.mark.parametrize("censored", [0.0, 0.3])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_without_an_effect_the_paired_test_keeps_its_level(simulation, correlation: float, censored: float) -> None:
    setting = simulation.Setting(10, correlation, 0.35, 1.0, censored)
    rate, _ = simulation.rejection_rates(setting, REPETITIONS)
    assert rate <= 0.05 + four_errors(0.05, REPETITIONS)
    assert rate >= 0.02  # nor is it so strict that it could never reject


def test_ignoring_the_pairing_loses_level_and_power(simulation) -> None:
    size = simulation.rejection_rates(simulation.Setting(10, 0.8, 0.35, 1.0, 0.2), REPETITIONS)
    power = simulation.rejection_rates(simulation.Setting(10, 0.8, 0.35, 1.3, 0.2), REPETITIONS)
    for rate, expected in zip((*size, *power), (0.05, 0.002, 0.79, 0.24), strict=True):
        assert rate == pytest.approx(expected, abs=four_errors(expected, REPETITIONS))


def test_without_censoring_power_is_near_that_of_the_paired_t_test_on_logs(simulation) -> None:
    # Log epochs are normal here, so that t is the best test there is; its power is known in closed form.
    n, correlation, spread, ratio = 10, 0.5, 0.35, 1.5
    rate, _ = simulation.rejection_rates(simulation.Setting(n, correlation, spread, ratio, 0.0), REPETITIONS)
    effect = math.log(ratio) / (spread * math.sqrt(2 * (1 - correlation)))
    bound = stats.t.ppf(0.975, n - 1)
    best = stats.nct.sf(bound, n - 1, effect * math.sqrt(n)) + stats.nct.cdf(-bound, n - 1, effect * math.sqrt(n))
    assert best - 0.12 < rate < best + four_errors(best, REPETITIONS)


def test_the_truth_of_the_simulated_speed_up_is_its_long_run_value(simulation) -> None:
    setting = simulation.Setting(10, 0.5, 0.4, 1.3, 0.1)
    full, other = (np.minimum(arm, setting.horizon) for arm in simulation.simulate_epochs(setting, 20_000))
    assert full.mean() / other.mean() == pytest.approx(setting.true_ratio, rel=0.005)


@pytest.mark.parametrize("censored", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_speed_up_interval_covers(simulation, correlation: float, censored: float) -> None:
    setting = simulation.Setting(10, correlation, 0.35, 1.3, censored)
    covered = simulation.speedup_coverage(setting, 800)[0]
    assert covered >= 0.95 - four_errors(0.95, 800)


@pytest.mark.parametrize("kind", ["noise", "ceiling", "stuck"])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_accuracy_interval_covers_and_beats_the_bootstraps(simulation, kind: str, correlation: float) -> None:
    ours, bca, percentile = simulation.accuracy_coverage(kind, 10, correlation, 800)
    assert ours >= (0.95 if kind == "noise" else 0.925) - four_errors(0.95, 800)
    assert ours > max(bca, percentile)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_an_arm_two_points_worse_is_seldom_called_non_inferior(simulation, correlation: float) -> None:
    rate = simulation.false_noninferiority("noise", 10, correlation, REPETITIONS)
    assert rate <= 0.025 + four_errors(0.025, REPETITIONS)


@pytest.mark.parametrize("truth", [0.0, 0.6, 0.9])
def test_the_rank_correlation_interval_covers_at_eight_tasks(simulation, truth: float) -> None:
    assert simulation.correlation_coverage(8, truth, REPETITIONS) >= 0.95 - four_errors(0.95, REPETITIONS)


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 10, 20])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("censored", [0.0, 0.2])
def test_the_level_holds_at_more_seeds_and_repetitions(simulation, n: int, correlation: float, censored: float) -> None:
    rate, _ = simulation.rejection_rates(simulation.Setting(n, correlation, 0.35, 1.0, censored), 10_000)
    assert rate <= 0.05 + four_errors(0.05, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 1.3, 4.0])
@pytest.mark.parametrize("spread", [0.15, 0.4])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_ten_seeds_cover_in_93_of_100_cases(simulation, ratio: float, spread: float, correlation: float) -> None:
    setting = simulation.Setting(10, correlation, spread, ratio, 0.1)
    assert simulation.speedup_coverage(setting, 8000)[0] >= 0.93
