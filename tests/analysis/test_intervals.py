from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from semfocus.analysis import ACCURACY_MARGIN, SPEEDUP_MARGIN, Interval, equivalence, non_inferiority
from semfocus.analysis.intervals import jackknife_t, leave_one_out_means, mean_interval
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
