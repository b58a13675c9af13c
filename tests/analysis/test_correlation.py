from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from semfocus.analysis import spearman
from semfocus.analysis.correlation import fisher_interval, mean_ranks
from semfocus.errors import UsageError


def named(values) -> dict[str, float]:
    return {f"task{i:02d}": float(value) for i, value in enumerate(values)}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=4, max_size=9))
@settings(max_examples=40, deadline=None)
def test_rho_is_scipys_with_ties_or_without(pairs: list) -> None:
    x, y = zip(*pairs, strict=True)
    result = spearman(named(x), named(y))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert result.rho is result.p is None
        assert "the same for all items" in result.why
    else:
        assert result.rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_p_is_the_share_of_all_assignments(n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.integers(0, 6, n), rng.integers(0, 6, n)
    observed = abs(stats.spearmanr(x, y).statistic)
    ranks = stats.rankdata(x), stats.rankdata(y)
    every = [abs(np.corrcoef(ranks[0], ranks[1][list(order)])[0, 1]) for order in itertools.permutations(range(n))]
    result = spearman(named(x), named(y))
    assert result.method == "exact"
    assert result.p == pytest.approx(np.mean(np.array(every) >= observed - 1e-9))


@pytest.mark.parametrize("n", [4, 8, 9])
def test_a_perfect_order_has_the_smallest_p(n: int) -> None:
    result = spearman(named(range(n)), named(-np.exp(np.arange(n))))
    assert result.rho == pytest.approx(-1)
    assert result.p == pytest.approx(2 / math.factorial(n), rel=1e-12)
    assert result.interval is not None
    assert result.interval.low == -1
    assert result.interval.high < 0 or n == 4


def test_sampled_p_agrees_with_scipys_sampling_and_repeats_itself() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=12)
    y = 0.5 * x + rng.normal(size=12)
    result = spearman(named(x), named(y))
    assert result.method == "sampled"
    reference = stats.spearmanr(x, y).pvalue  # t approximation, good to a few per cent at 12
    assert result.p == pytest.approx(reference, rel=0.15)
    assert spearman(named(x), named(y)) == result


def test_the_sampled_p_of_a_perfect_order_is_never_zero() -> None:
    assert spearman(named(range(15)), named(range(15))).p == 1e-5


def test_the_interval_agrees_with_a_case_worked_by_hand() -> None:
    # rho = 0.5, n = 12: z = 0.549306, se = sqrt(1.125 / 9) = 0.353553
    interval = fisher_interval(0.5, 12)
    assert interval.low == pytest.approx(math.tanh(0.5493061 - 1.9599640 * 0.3535534), abs=1e-6)
    assert interval.high == pytest.approx(math.tanh(0.5493061 + 1.9599640 * 0.3535534), abs=1e-6)


def test_a_perfect_correlation_keeps_an_interval_with_width() -> None:
    interval = fisher_interval(1.0, 8)
    assert interval.high == 1
    assert 0.8 < interval.low < 0.95
    mirrored = fisher_interval(-1.0, 8)
    assert (mirrored.low, mirrored.high) == (-1, -interval.low)


def test_results_do_not_depend_on_the_order_of_items() -> None:
    rng = np.random.default_rng(2)
    for n in (5, 12):  # counted and sampled
        x, y = named(rng.normal(size=n)), named(rng.normal(size=n))
        shuffled = {name: x[name] for name in rng.permutation(list(x))}
        assert spearman(shuffled, y) == spearman(x, y)


def test_items_with_one_number_only_are_left_out_and_listed() -> None:
    x = named([3, 1, 2, 5]) | {"listops": 1.0}
    result = spearman(x, named([2, 1, 3, 5]) | {"parity": 2.0})
    assert result.left_out == ("listops", "parity")
    assert result.items == 4


@pytest.mark.parametrize("n", [0, 1, 3])
def test_too_few_items_claim_nothing(n: int) -> None:
    result = spearman(named(range(n)), named(range(n)))
    assert (result.rho, result.p, result.interval, result.method) == (None, None, None, "none")
    assert result.why.startswith(f"not enough data: {n} item{'' if n == 1 else 's'}, and")


def test_a_number_that_is_not_finite_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="y = nan of task01"):
        spearman(named([1, 2, 3, 4]), named([1, float("nan"), 3, 4]))


def test_equal_values_share_their_mean_rank() -> None:
    np.testing.assert_array_equal(mean_ranks(np.array([5.0, 1.0, 5.0, 2.0])), [3.5, 1, 3.5, 2])
