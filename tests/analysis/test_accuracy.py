"""Accuracies over seeds, differences and non-inferiority: by hand, against scipy, by simulation of worse arms."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from semfocus.analysis import Accuracies, Unpaired, accuracy_difference
from semfocus.analysis.accuracy import noninferiority_test, sign_p, two_groups
from semfocus.errors import UsageError

RNG = np.random.default_rng(4)
FULL = {seed: float(v) for seed, v in enumerate(RNG.uniform(0.8, 0.99, 10))}
NEAR_NINETY = [0.90, 0.91, 0.89, 0.92, 0.90, 0.91, 0.88, 0.90, 0.93, 0.89]
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


def arms(full: list[float], other: list[float]) -> tuple[Accuracies, Accuracies]:
    return tuple(Accuracies.of(dict(enumerate(values))) for values in (full, other))


@pytest.fixture(scope="session")
def check(simulation: ModuleType) -> ModuleType:
    """benchmarks/verdicts_check.py, which imports its neighbour."""
    import importlib

    folder = str(Path(simulation.__file__ or "").parent)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("verdicts_check")
    finally:
        sys.path.remove(folder)


@pytest.mark.parametrize(("successes", "n"), [(10, 10), (9, 10), (5, 10), (0, 7), (3, 11)])
def test_the_sign_test_is_scipys_binomial_test(successes: int, n: int) -> None:
    assert sign_p(successes, n) == pytest.approx(stats.binomtest(successes, n).pvalue)
    assert sign_p(0, 0) == 1.0


def test_equal_arms_are_as_good_and_an_arm_five_points_worse_is_not() -> None:
    test = noninferiority_test(*arms(NEAR_NINETY, [value + 0.001 * (i % 3) for i, value in enumerate(NEAR_NINETY)]))
    assert (test.decision, test.not_worse, test.pairs) == ("yes", 10, 10)
    assert test.p == pytest.approx(2**-9)
    assert (
        noninferiority_test(
            *arms(NEAR_NINETY, [value - 0.05 + 0.001 * (i % 3) for i, value in enumerate(NEAR_NINETY)])
        ).decision
        == "no"
    )


def test_eight_of_ten_pairs_are_too_few_to_speak_of_most() -> None:
    other = [value + 0.05 for value in NEAR_NINETY]
    other[0], other[1] = NEAR_NINETY[0] - 0.03, NEAR_NINETY[1] - 0.03
    test = noninferiority_test(*arms(NEAR_NINETY, other))
    assert accuracy_difference(*arms(NEAR_NINETY, other)).non_inferiority() == "yes"
    assert test.decision == "undecided"
    assert "8 of 10 pairs" in test.why
    other[1] = NEAR_NINETY[1]
    assert noninferiority_test(*arms(NEAR_NINETY, other)).decision == "yes"


def test_exactly_two_points_worse_is_not_worse_by_more() -> None:
    other = [value - 0.02 for value in NEAR_NINETY[:9]] + [NEAR_NINETY[9]]
    assert noninferiority_test(*arms(NEAR_NINETY, other)).not_worse == 10


def test_two_groups_take_thirty_pairs() -> None:
    def stuck(n: int) -> list[float]:
        return [0.5 if i % 5 == 0 else 0.97 + 0.001 * (i % 4) for i in range(n)]

    few, many = noninferiority_test(*arms(stuck(29), stuck(29))), noninferiority_test(*arms(stuck(30), stuck(30)))
    assert few.two_groups
    assert (few.decision, many.decision) == ("undecided", "yes")
    assert "takes 30 seeds; there are 29" in few.why


def test_a_gap_of_more_than_ten_points_makes_two_groups() -> None:
    assert two_groups(np.array([0.5, 0.61, 0.5]))
    assert not two_groups(np.array([0.5, 0.599, 0.69]))
    assert not two_groups(np.array([0.5]))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_than_six_pairs_decide_nothing_either_way(n: int) -> None:
    assert noninferiority_test(*arms(NEAR_NINETY[:n], NEAR_NINETY[:n])).decision == "undecided"
    assert (
        noninferiority_test(*arms(NEAR_NINETY[:n], [value - 0.3 for value in NEAR_NINETY[:n]])).decision == "undecided"
    )


def test_nine_pairs_can_show_that_an_arm_is_worse_but_not_that_it_is_as_good() -> None:
    test = noninferiority_test(*arms(NEAR_NINETY[:9], NEAR_NINETY[:9]))
    assert test.decision == "undecided"
    assert "10 are needed" in test.why
    worse = [value - 0.3 + 0.01 * (i % 2) for i, value in enumerate(NEAR_NINETY[:9])]
    assert noninferiority_test(*arms(NEAR_NINETY[:9], worse)).decision == "no"


def test_seeds_of_one_arm_alone_are_left_out() -> None:
    full, other = Accuracies.of(dict(enumerate(NEAR_NINETY))), Accuracies.of({i + 5: 0.9 for i in range(10)})
    assert noninferiority_test(full, other).pairs == 5


def four_errors(rate: float, repetitions: int) -> float:
    return 4 * math.sqrt(rate * (1 - rate) / repetitions)


@pytest.mark.parametrize("kind", ["noise", "stuck"])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_an_arm_that_is_worse_is_seldom_called_as_good_at_ten_seeds(check, kind: str, correlation: float) -> None:
    ours, interval = check.wrongly(kind, 10, correlation, 400)
    assert ours <= 0.025 + four_errors(0.025, 400)
    assert ours <= interval


def test_where_the_interval_alone_errs_in_one_of_five_the_rule_does_not(check) -> None:
    ours, interval = check.wrongly("stuck", 10, 0.9, 400)
    assert interval > 0.15
    assert ours < 0.05


def test_an_arm_that_is_better_is_mostly_called_as_good(check) -> None:
    assert check.rightly("noise", 10, 0.5, 200)[0] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 20, 30])
@pytest.mark.parametrize("kind", ["noise", "stuck"])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_size_holds_at_more_repetitions(check, n: int, kind: str, correlation: float) -> None:
    assert check.wrongly(kind, n, correlation, 4000)[0] <= 0.025 + four_errors(0.025, 4000)
