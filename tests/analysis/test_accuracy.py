from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from semfocus.analysis import Accuracies, Unpaired, accuracy_difference
from semfocus.errors import UsageError

RNG = np.random.default_rng(4)
FULL = {seed: float(v) for seed, v in enumerate(RNG.uniform(0.8, 0.99, 10))}
OTHER = {seed: float(np.clip(v + d, 0, 1)) for (seed, v), d in zip(FULL.items(), RNG.normal(0, 0.02, 10), strict=True)}


@pytest.mark.parametrize("n", [1, 3, 4, 7, 10, 13])
def test_summaries_agree_with_scipy(n: int) -> None:
    values = np.random.default_rng(n).uniform(0, 1, n)
    accuracies = Accuracies(values, tuple(range(n)))
    assert accuracies.mean == pytest.approx(values.mean())
    assert accuracies.median == pytest.approx(stats.scoreatpercentile(values, 50))
    assert accuracies.quartiles == pytest.approx(tuple(stats.scoreatpercentile(values, [25, 75])))
    assert accuracies.interquartile_mean == pytest.approx(stats.trim_mean(values, 0.25))


def test_the_paired_interval_is_scipys() -> None:
    result = accuracy_difference(Accuracies.of(FULL), Accuracies.of(OTHER))
    reference = stats.ttest_rel(list(OTHER.values()), list(FULL.values())).confidence_interval(0.95)
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == pytest.approx((reference.low, reference.high))
    differences = np.array(list(OTHER.values())) - np.array(list(FULL.values()))
    assert result.mean == pytest.approx(differences.mean())
    assert result.median == pytest.approx(np.median(differences))


def test_the_interval_of_one_arm_is_students() -> None:
    values = np.array(list(FULL.values()))
    interval = Accuracies.of(FULL).interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx(
        stats.t.interval(0.95, 9, loc=values.mean(), scale=stats.sem(values))
    )


def test_seeds_of_one_arm_alone_are_left_out_and_listed() -> None:
    result = accuracy_difference(Accuracies.of(FULL | {77: 0.0}), Accuracies.of(OTHER | {66: 1.0}))
    assert result.left_out == (Unpaired(66, "full"), Unpaired(77, "other"))
    assert result.interval == accuracy_difference(Accuracies.of(FULL), Accuracies.of(OTHER)).interval


def test_results_do_not_depend_on_the_order_of_runs() -> None:
    backwards = Accuracies.of(dict(reversed(OTHER.items())))
    forwards = Accuracies.of(OTHER)
    full = Accuracies.of(FULL)
    assert accuracy_difference(full, backwards) == accuracy_difference(full, forwards)
    assert backwards.mean == forwards.mean


def shifted(by: float, spread: float = 0.001) -> Accuracies:
    wiggle = spread * np.array([1, -1, 1, -1, 0, 0, 1, -1, 1, -1])
    return Accuracies(np.full(10, 0.9) + by + wiggle, tuple(range(10)))


@pytest.mark.parametrize(
    ("by", "spread", "same", "not_worse"),
    [
        (0.0, 0.001, "equivalent", "yes"),
        (-0.015, 0.001, "equivalent", "yes"),
        (0.05, 0.001, "different", "yes"),
        (-0.05, 0.001, "different", "no"),
        (-0.02, 0.001, "undecided", "undecided"),
        (0.0, 0.08, "undecided", "undecided"),
    ],
)
def test_two_points_decide_what_counts_as_the_same(by: float, spread: float, same: str, not_worse: str) -> None:
    result = accuracy_difference(shifted(0.0, 0.0), shifted(by, spread))
    assert result.equivalence() == same
    assert result.non_inferiority() == not_worse


def test_near_chance_is_an_equivalence_not_a_missing_difference() -> None:
    assert Accuracies(0.5 + 0.005 * np.arange(-3, 4), tuple(range(7))).near(0.5) == "equivalent"
    assert Accuracies(np.array([0.45, 0.55, 0.6, 0.4]), (1, 2, 3, 4)).near(0.5) == "undecided"
    assert Accuracies(0.9 + 0.005 * np.arange(-3, 4), tuple(range(7))).near(0.5) == "different"


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_seeds_give_no_interval_and_say_so(n: int) -> None:
    arm = Accuracies.of(dict(list(FULL.items())[:n]))
    result = accuracy_difference(arm, arm)
    assert result.interval is None
    assert (result.mean is None) == (n == 0)
    assert f"not enough data: {n} paired seed" in result.why
    assert result.equivalence() == result.non_inferiority() == arm.near(0.5) == "undecided"


def test_no_runs_give_no_numbers() -> None:
    nothing = Accuracies.of({})
    assert nothing.mean is nothing.median is nothing.quartiles is nothing.interquartile_mean is nothing.interval is None


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.5, 93.0])
def test_accuracies_that_are_no_fractions_are_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="of seed 2 must be a fraction between 0 and 1"):
        Accuracies.of({1: 0.5, 2: bad})


def test_columns_of_different_lengths_and_unknown_seeds_are_refused() -> None:
    with pytest.raises(UsageError, match="one entry for each of the 2 seeds"):
        Accuracies(np.array([0.5]), (1, 2))
    with pytest.raises(UsageError, match="seed = 99 is not among the 10 seeds"):
        Accuracies.of(FULL).only([99])
