from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.analysis import ConvergenceTimes, Unpaired, paired_logrank, pooled_logrank
from semfocus.analysis.paired import EXACT_PAIRS, exact_swap_p, sampled_swap_p
from semfocus.analysis.pairing import paired_seeds
from semfocus.errors import UsageError

EPOCHS = st.one_of(st.none(), st.integers(1, 12).map(float))


def brute_force(full: dict, other: dict, horizon: float) -> float:
    """Swap whole runs and score every arrangement anew, in loops."""

    def statistic(one: list, two: list) -> float:
        runs = [horizon + 1 if e is None else e for e in [*one, *two]]
        total = 0.0
        for i, moment in enumerate(runs):
            score = float(moment <= horizon)
            for t in runs:
                if t <= horizon and t <= moment:
                    score -= 1 / sum(u >= t for u in runs)
            total += score if i >= len(one) else -score
        return total

    seeds = sorted(full)
    arrangements = []
    for swaps in itertools.product([False, True], repeat=len(seeds)):
        one = [other[s] if swap else full[s] for s, swap in zip(seeds, swaps, strict=True)]
        two = [full[s] if swap else other[s] for s, swap in zip(seeds, swaps, strict=True)]
        arrangements.append(abs(statistic(one, two)))
    return sum(value >= arrangements[0] - 1e-9 for value in arrangements) / len(arrangements)


def by_seed(values: list, first: int = 0) -> dict:
    return dict(enumerate(values, start=first))


@given(st.lists(st.tuples(EPOCHS, EPOCHS), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_p_is_the_share_of_all_swaps_of_whole_runs(pairs: list) -> None:
    full, other = (by_seed([pair[arm] for pair in pairs]) for arm in (0, 1))
    test = paired_logrank(ConvergenceTimes.of(full, horizon=12), ConvergenceTimes.of(other, horizon=12))
    assert test.method == "exact"
    assert test.p == pytest.approx(brute_force(full, other, 12))


@pytest.mark.parametrize("n", [2, 5, 10, 20])
def test_a_clean_sweep_gives_the_smallest_p(n: int) -> None:
    full = ConvergenceTimes.of(by_seed([50.0 + i for i in range(n)]), horizon=100)
    other = ConvergenceTimes.of(by_seed([5.0 + i / 4 for i in range(n)]), horizon=100)
    test = paired_logrank(full, other)
    assert test.p == test.smallest_p == 2.0 ** (1 - n)
    assert test.favours == "other"
    assert paired_logrank(other, full).favours == "full"
    assert paired_logrank(other, full).p == test.p


def test_the_statistic_agrees_with_a_case_worked_by_hand() -> None:
    # Order of arrival: other 1, full 2, other 3, full never; scores 3/4, 5/12, -1/12, -13/12.
    full, other = ConvergenceTimes.of({1: 2.0, 2: None}, horizon=5), ConvergenceTimes.of({1: 1.0, 2: 3.0}, horizon=5)
    test = paired_logrank(full, other)
    assert test.statistic == pytest.approx((3 / 4 - 1 / 12) - (5 / 12 - 13 / 12))
    assert test.p == 0.5


def test_arms_that_do_not_differ_are_not_told_apart() -> None:
    same = ConvergenceTimes.of({1: 4.0, 2: None, 3: 7.0}, horizon=10)
    test = paired_logrank(same, same)
    assert (test.p, test.favours, test.informative) == (1.0, "neither", 0)
    assert "nothing to tell the arms apart" in test.why


def test_all_censored_arms_give_p_one() -> None:
    never = ConvergenceTimes.of(by_seed([None] * 10), horizon=10)
    test = paired_logrank(never, never)
    assert (test.p, test.pairs, test.informative) == (1.0, 10, 0)


@pytest.mark.parametrize("n", [0, 1])
def test_no_test_is_claimed_below_two_pairs(n: int) -> None:
    arm = ConvergenceTimes.of(by_seed([3.0] * n), horizon=10)
    test = paired_logrank(arm, arm)
    assert (test.p, test.method, test.pairs) == (None, "none", n)
    assert f"not enough data: {n} paired seed" in test.why


def test_shared_seeds_come_in_rising_order_however_large() -> None:
    full, other = (2**70, 245293503, 153476998, 7), (7, 245293503, 2**70, -1)
    assert paired_seeds(full, other) == ((7, 245293503, 2**70), (Unpaired(-1, "full"), Unpaired(153476998, "other")))


def test_seeds_of_one_arm_alone_are_left_out_and_listed() -> None:
    full = ConvergenceTimes.of({1: 50.0, 2: 60.0, 3: 1.0}, horizon=100)
    other = ConvergenceTimes.of({4: 99.0, 2: 6.0, 1: 5.0}, horizon=100)
    test = paired_logrank(full, other)
    assert test.left_out == (Unpaired(3, "other"), Unpaired(4, "full"))
    assert test.pairs == 2
    shared = paired_logrank(full.only([1, 2]), other.only([1, 2]))
    assert (test.p, test.statistic) == (shared.p, shared.statistic)


def test_results_do_not_depend_on_the_order_of_runs() -> None:
    rng = np.random.default_rng(5)
    full = {int(seed): float(e) for seed, e in zip(rng.permutation(30), rng.uniform(1, 50, 30), strict=True)}
    other = {seed: float(e) for seed, e in zip(full, rng.uniform(1, 40, 30), strict=True)}
    shuffled = dict(sorted(other.items(), reverse=True))
    one, two = (
        paired_logrank(ConvergenceTimes.of(full, horizon=50), ConvergenceTimes.of(arm, horizon=50))
        for arm in (other, shuffled)
    )
    assert one == two


def test_different_horizons_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"horizon = 100 .* 60 .*ConvergenceTimes\.until"):
        paired_logrank(ConvergenceTimes.of({1: 5.0}, horizon=100), ConvergenceTimes.of({1: 5.0}, horizon=60))


def test_matching_halves_counts_every_swap_once() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7, 12):
        differences = np.round(rng.normal(0.3, 1, n), 1)  # rounded: many equal sums
        signs = np.array(list(itertools.product([1, -1], repeat=n)))
        expected = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
        assert exact_swap_p(differences) == pytest.approx(expected, abs=1e-15)


def test_thirty_equal_differences_follow_the_binomial_law() -> None:
    from scipy.stats import binom

    differences = np.array([0.1] * 20 + [-0.1] * 10)
    assert exact_swap_p(differences) == pytest.approx(2 * binom.cdf(10, 30, 0.5), rel=1e-12)


def test_sampled_swaps_agree_with_counted_ones() -> None:
    differences = np.random.default_rng(1).normal(0.2, 1, 24)
    exact = exact_swap_p(differences)
    assert 0.001 < exact < 0.9
    assert sampled_swap_p(differences) == pytest.approx(exact, abs=5 * np.sqrt(exact / 100_000))
    assert sampled_swap_p(differences) == sampled_swap_p(differences)


def test_more_pairs_than_can_be_counted_are_sampled_and_say_so() -> None:
    n = EXACT_PAIRS + 1
    full, other = (ConvergenceTimes.of(by_seed([base + i / 8 for i in range(n)]), horizon=100) for base in (50.0, 5.0))
    test = paired_logrank(full, other)
    assert test.method == "sampled"
    assert test.p == test.smallest_p == 1e-5
    assert paired_logrank(full.only(range(20)), other.only(range(20))).method == "exact"


def test_pooled_tasks_are_scored_apart_and_swapped_within_task_and_seed() -> None:
    easy = (
        ConvergenceTimes.of({1: 10.0, 2: 12.0}, horizon=20),
        ConvergenceTimes.of({1: 5.0, 2: 6.0, 3: 7.0}, horizon=20),
    )
    hard = (
        ConvergenceTimes.of({1: 900.0, 2: None}, horizon=1000),
        ConvergenceTimes.of({1: 300.0, 2: 400.0}, horizon=1000),
    )
    pooled = pooled_logrank({"hard": hard, "easy": easy})
    apart = [paired_logrank(*arms) for arms in (easy, hard)]
    assert pooled.pairs == 4
    assert pooled.p == 2.0**-3
    assert pooled.statistic == pytest.approx(sum(test.statistic for test in apart))
    assert pooled.left_out == (Unpaired(3, "full", "easy"),)
    assert pooled == pooled_logrank({"easy": easy, "hard": hard})
