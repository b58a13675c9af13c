from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from semfocus.analysis import ACCURACY_MARGIN, SPEEDUP_MARGIN, Interval, Margin, equivalence, non_inferiority
from semfocus.analysis.intervals import (
    jackknife_t,
    leave_one_out_means,
    log_interval,
    mean_interval,
    one_sided_p,
    tost_p,
)
from semfocus.errors import UsageError


def test_margins_are_those_fixed_beforehand() -> None:
    assert SPEEDUP_MARGIN == (0.8, 1.25)
    assert ACCURACY_MARGIN == (-0.02, 0.02)


@pytest.mark.parametrize(
    ("low", "high", "same", "not_worse"),
    [
        (0.80, 1.25, "equivalent", "yes"),
        (0.95, 1.10, "equivalent", "yes"),
        (1.05, 1.20, "equivalent", "yes"),
        (1.20, 1.40, "undecided", "yes"),
        (1.26, 3.00, "different", "yes"),
        (1.25, 3.00, "undecided", "yes"),
        (0.70, 1.40, "undecided", "undecided"),
        (0.70, 0.80, "undecided", "undecided"),
        (0.50, 0.79, "different", "no"),
        (0.00, 0.54, "different", "no"),
        (2.40, math.inf, "different", "yes"),
        (0.90, math.inf, "undecided", "yes"),
    ],
)
def test_an_interval_decides_only_when_it_lies_on_one_side(low: float, high: float, same: str, not_worse: str) -> None:
    assert equivalence(Interval(low, high), SPEEDUP_MARGIN) == same
    assert non_inferiority(Interval(low, high), SPEEDUP_MARGIN) == not_worse


def test_without_an_interval_nothing_is_decided() -> None:
    assert equivalence(None, ACCURACY_MARGIN) == "undecided"
    assert non_inferiority(None, ACCURACY_MARGIN) == "undecided"


def test_a_mean_gets_students_interval() -> None:
    values = np.array([0.91, 0.87, 0.95, 0.90, 0.99])
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    interval = mean_interval(values)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-12)


def test_leaving_one_out_gives_the_mean_of_the_rest() -> None:
    np.testing.assert_allclose(leave_one_out_means(np.array([1.0, 2.0, 6.0])), [4.0, 3.5, 1.5])


def test_two_values_are_too_few_for_an_interval() -> None:
    assert mean_interval(np.array([0.5, 0.6])) is None
    assert mean_interval(np.array([])) is None
    assert jackknife_t(0.5, np.array([0.4, 0.6])) is None


@pytest.mark.parametrize("ends", [(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_an_interval_with_ends_out_of_order_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="low <= high"):
        Interval(*ends)


def test_importing_the_analysis_does_not_pay_for_scipy_or_torch() -> None:
    code = "import sys, semfocus.analysis; print([m for m in ('scipy', 'torch', 'matplotlib') if m in sys.modules])"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == "[]"


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
