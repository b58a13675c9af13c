"""As good as full attention: by hand, against scipy, and by simulation of arms that are truly worse."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from semfocus.analysis import Accuracies, Interval, Margin, accuracy_difference
from semfocus.analysis.accuracy import noninferiority_test, sign_p, two_groups
from semfocus.analysis.intervals import log_interval, mean_interval, one_sided_p, tost_p

FULL = [0.90, 0.91, 0.89, 0.92, 0.90, 0.91, 0.88, 0.90, 0.93, 0.89]


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


@pytest.mark.parametrize("bound", [-0.02, 0.0, 0.01])
def test_p_beyond_a_bound_is_scipys_t_test_made_two_sided(bound: float) -> None:
    values = np.array([0.01, 0.02, -0.01, 0.03, 0.005, 0.0, 0.012])
    interval = mean_interval(values)
    assert interval is not None
    above = stats.ttest_1samp(values, bound, alternative="greater").pvalue
    assert one_sided_p(values.mean(), interval, 7, bound) == pytest.approx(min(1.0, 2 * above))
    below = stats.ttest_1samp(values, bound, alternative="less").pvalue
    assert one_sided_p(values.mean(), interval, 7, bound, below=True) == pytest.approx(min(1.0, 2 * below))


def test_p_is_five_percent_where_the_intervals_end_touches_the_bound() -> None:
    interval = Interval(1.0, 3.0)
    assert one_sided_p(2.0, interval, 10, 1.0) == pytest.approx(0.05)
    assert tost_p(2.0, interval, 10, Margin(1.0, 3.0)) == pytest.approx(0.05)
    assert tost_p(2.0, interval, 10, Margin(0.0, 3.0)) == pytest.approx(0.05)
    assert tost_p(2.0, interval, 10, Margin(0.0, 4.0)) < 0.05


def test_seeds_without_any_spread_prove_no_more_than_an_exact_test_could() -> None:
    assert one_sided_p(2.0, Interval(2.0, 2.0), 10, 1.0) == 2**-9
    assert one_sided_p(2.0, Interval(2.0, 2.0), 10, 3.0) == 1.0


def test_an_open_end_is_left_to_the_other_one() -> None:
    assert log_interval(Interval(0.0, 1.0)) == Interval(-math.inf, 0.0)
    assert log_interval(Interval(1.0, math.inf)) == Interval(0.0, math.inf)
    assert one_sided_p(-1.0, Interval(-math.inf, 0.0), 10, 0.0, below=True) == pytest.approx(0.05)


@pytest.mark.parametrize(("successes", "n"), [(10, 10), (9, 10), (5, 10), (0, 7), (3, 11)])
def test_the_sign_test_is_scipys_binomial_test(successes: int, n: int) -> None:
    assert sign_p(successes, n) == pytest.approx(stats.binomtest(successes, n).pvalue)
    assert sign_p(0, 0) == 1.0


def test_equal_arms_are_as_good_and_an_arm_five_points_worse_is_not() -> None:
    test = noninferiority_test(*arms(FULL, [value + 0.001 * (i % 3) for i, value in enumerate(FULL)]))
    assert (test.decision, test.not_worse, test.pairs) == ("yes", 10, 10)
    assert test.p == pytest.approx(2**-9)
    assert (
        noninferiority_test(*arms(FULL, [value - 0.05 + 0.001 * (i % 3) for i, value in enumerate(FULL)])).decision
        == "no"
    )


def test_eight_of_ten_pairs_are_too_few_to_speak_of_most() -> None:
    other = [value + 0.05 for value in FULL]
    other[0], other[1] = FULL[0] - 0.03, FULL[1] - 0.03
    test = noninferiority_test(*arms(FULL, other))
    assert accuracy_difference(*arms(FULL, other)).non_inferiority() == "yes"
    assert test.decision == "undecided"
    assert "8 of 10 pairs" in test.why
    other[1] = FULL[1]
    assert noninferiority_test(*arms(FULL, other)).decision == "yes"


def test_exactly_two_points_worse_is_not_worse_by_more() -> None:
    other = [value - 0.02 for value in FULL[:9]] + [FULL[9]]
    assert noninferiority_test(*arms(FULL, other)).not_worse == 10


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
    assert noninferiority_test(*arms(FULL[:n], FULL[:n])).decision == "undecided"
    assert noninferiority_test(*arms(FULL[:n], [value - 0.3 for value in FULL[:n]])).decision == "undecided"


def test_nine_pairs_can_show_that_an_arm_is_worse_but_not_that_it_is_as_good() -> None:
    test = noninferiority_test(*arms(FULL[:9], FULL[:9]))
    assert test.decision == "undecided"
    assert "10 are needed" in test.why
    worse = [value - 0.3 + 0.01 * (i % 2) for i, value in enumerate(FULL[:9])]
    assert noninferiority_test(*arms(FULL[:9], worse)).decision == "no"


def test_seeds_of_one_arm_alone_are_left_out() -> None:
    full, other = Accuracies.of(dict(enumerate(FULL))), Accuracies.of({i + 5: 0.9 for i in range(10)})
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
