from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from semfocus.analysis import ConvergenceTimes
from semfocus.analysis.survival import logrank_scores
from semfocus.errors import UsageError

SOME = {3: 54.0, 1: 27.5, 2: None, 5: 61.25, 4: 54.0, 9: None, 8: 100.0}


def scipy_survival(times: ConvergenceTimes):
    never = times.epochs[~times.reached]
    return stats.ecdf(stats.CensoredData(uncensored=times.epochs[times.reached], right=never)).sf


def random_times(n: int, seed: int, horizon: float = 30.0) -> ConvergenceTimes:
    rng = np.random.default_rng(seed)
    epochs = np.ceil(rng.exponential(20.0, n) * 4) / 4  # quarters of an epoch, with ties
    return ConvergenceTimes(np.minimum(epochs, horizon), epochs <= horizon, horizon, tuple(range(n)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_the_curve_is_the_kaplan_meier_estimate_of_scipy(n: int, seed: int) -> None:
    times = random_times(n, seed)
    curve = times.curve()
    reference = scipy_survival(times)
    np.testing.assert_allclose(curve.waiting, reference.evaluate(curve.epochs), atol=1e-12)
    just_before = np.nextafter(curve.epochs[1:], 0)
    np.testing.assert_allclose(curve.waiting[:-1], reference.evaluate(just_before), atol=1e-12)
    assert set(curve.epochs) == {0.0, *times.epochs[times.reached]}


@pytest.mark.parametrize("n", [1, 5, 8, 41])
def test_the_restricted_mean_is_the_area_under_scipys_curve(n: int) -> None:
    times = random_times(n, seed=3)
    edges = np.unique(np.concatenate([[0.0], times.epochs, [times.horizon]]))
    area = np.sum(np.diff(edges) * scipy_survival(times).evaluate(edges[:-1]))
    assert times.restricted_mean == pytest.approx(area, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 40])
@pytest.mark.parametrize("seed", range(4))
def test_the_median_is_where_scipys_curve_passes_one_half(n: int, seed: int) -> None:
    times = random_times(n, seed)
    reference = scipy_survival(times)
    median = times.median
    if median is None:
        assert reference.evaluate(times.horizon) >= 0.5 - 1e-12
    else:
        assert reference.evaluate(median) <= 0.5 + 1e-12
        assert reference.evaluate(np.nextafter(median, 0)) >= 0.5 - 1e-12


def test_the_median_is_the_middle_of_the_flat_piece_at_one_half() -> None:
    assert ConvergenceTimes.of({1: 4.0, 2: 5.0, 3: 9.0, 4: None}, horizon=10).median == 7.0


def test_the_median_is_unknown_when_only_half_of_the_runs_got_there() -> None:
    assert ConvergenceTimes.of({1: 4.0, 2: None}, horizon=10).median is None
    assert ConvergenceTimes.of({1: 4.0, 2: 4.0, 3: None}, horizon=10).median == 4.0


def test_the_worked_example_of_the_docstring_holds() -> None:
    times = ConvergenceTimes.of({7: 54.0, 8: 61.5, 9: None}, horizon=100)
    assert times.median == 61.5
    assert times.restricted_mean == pytest.approx((54 + 61.5 + 100) / 3)
    np.testing.assert_allclose(times.curve().epochs, [0, 54, 61.5])
    np.testing.assert_allclose(times.curve().waiting, [1, 2 / 3, 1 / 3])


def test_runs_are_kept_by_seed_whatever_order_they_come_in() -> None:
    forward, backward = (
        ConvergenceTimes.of(dict(items), horizon=100) for items in (SOME.items(), reversed(SOME.items()))
    )
    assert forward.seeds == backward.seeds == (1, 2, 3, 4, 5, 8, 9)
    np.testing.assert_array_equal(forward.epochs, [27.5, 100, 54, 54, 61.25, 100, 100])
    np.testing.assert_array_equal(forward.reached, [True, False, True, True, True, True, False])
    np.testing.assert_array_equal(forward.epochs, backward.epochs)
    np.testing.assert_array_equal(forward.reached, backward.reached)


def test_a_run_that_stopped_early_without_arriving_counts_to_the_horizon() -> None:
    diverged = ConvergenceTimes(np.array([3.0, np.nan]), np.array([False, False]), 50, (1, 2))
    assert diverged.restricted_mean == 50
    assert diverged.median is None


def test_an_earlier_horizon_censors_what_comes_after_it() -> None:
    cut = ConvergenceTimes.of(SOME, horizon=100).until(54)
    np.testing.assert_array_equal(cut.reached, [True, False, True, True, False, False, False])
    np.testing.assert_array_equal(cut.epochs, [27.5, 54, 54, 54, 54, 54, 54])
    with pytest.raises(UsageError, match=r"horizon = 101 exceeds 100"):
        cut = ConvergenceTimes.of(SOME, horizon=100).until(101)


def test_stored_values_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ConvergenceTimes.of(SOME, horizon=100).epochs[0] = 1


@pytest.mark.parametrize(
    ("epochs", "horizon", "message"),
    [
        ({1: 101.0}, 100, r"epochs = 101\.0 of seed 1 .* horizon 100"),
        ({1: float("nan")}, 100, "epochs = nan of seed 1"),
        ({1: float("inf")}, 100, "epochs = inf of seed 1"),
        ({1: 0.0}, 100, "above 0"),
        ({1: 5.0}, 0, "horizon = 0"),
        ({1: 5.0}, float("nan"), "horizon = nan"),
        ({1.5: 5.0}, 100, r"seed = 1\.5 must be a whole number"),
        ({True: 5.0}, 100, "seed = True must be a whole number"),
    ],
)
def test_impossible_epochs_are_refused(epochs: dict, horizon: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ConvergenceTimes.of(epochs, horizon=horizon)


def test_two_runs_of_one_seed_are_refused() -> None:
    with pytest.raises(UsageError, match="seed = 7 appears twice"):
        ConvergenceTimes(np.array([1.0, 2.0]), np.array([True, True]), 10, (7, 7))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="one entry for each of the 2 seeds"):
        ConvergenceTimes(np.array([1.0, 2.0]), np.array([True]), 10, (7, 8))
    with pytest.raises(UsageError, match="True or False"):
        ConvergenceTimes(np.array([1.0, 2.0]), np.array([1, 0]), 10, (7, 8))


def test_no_runs_give_no_numbers() -> None:
    nothing = ConvergenceTimes.of({}, horizon=10)
    assert len(nothing) == 0
    assert nothing.median is None
    assert nothing.restricted_mean is None
    with pytest.raises(UsageError, match="no runs"):
        nothing.curve()


def test_logrank_scores_agree_with_a_case_worked_by_hand() -> None:
    # Waiting before 2: 5 runs, one arrives; before 3: 4 runs, two arrive; at 9: 2 left, one arrives, one never.
    scores = logrank_scores([2, 3, 3, 9, 9], [True, True, True, True, False])
    h2, h3, h9 = 1 / 5, 1 / 5 + 2 / 4, 1 / 5 + 2 / 4 + 1 / 2
    np.testing.assert_allclose(scores, [1 - h2, 1 - h3, 1 - h3, 1 - h9, 0 - h9])


def hypergeometric_variance(epochs, reached, first) -> float:
    total = 0.0
    for moment in np.unique(epochs[reached]):
        waiting, arriving = np.sum(epochs >= moment), np.sum((epochs == moment) & reached)
        share = np.sum((epochs >= moment) & first) / waiting
        if waiting > 1:
            total += arriving * share * (1 - share) * (waiting - arriving) / (waiting - 1)
    return total


@pytest.mark.parametrize("seed", range(6))
def test_scores_of_one_arm_sum_to_scipys_logrank_statistic(seed: int) -> None:
    one, two = random_times(12, seed), random_times(15, seed + 100)
    epochs, reached = (np.concatenate([getattr(one, field), getattr(two, field)]) for field in ("epochs", "reached"))
    scores = logrank_scores(epochs, reached)
    assert np.sum(scores) == pytest.approx(0, abs=1e-12)
    first = np.arange(27) < 12
    z = np.sum(scores[first]) / np.sqrt(hypergeometric_variance(epochs, reached, first))
    data = [stats.CensoredData(uncensored=t.epochs[t.reached], right=t.epochs[~t.reached]) for t in (one, two)]
    assert z == pytest.approx(stats.logrank(*data).statistic, rel=1e-10)


def test_scores_of_many_samples_at_once_are_those_of_each() -> None:
    rows = np.stack([random_times(9, seed).epochs for seed in range(4)])
    reached = np.stack([random_times(9, seed).reached for seed in range(4)])
    each = [logrank_scores(epochs, flags) for epochs, flags in zip(rows, reached, strict=True)]
    np.testing.assert_array_equal(logrank_scores(rows, reached), each)
