"""Each generator draws from its documented distribution: exact shares, chi-square at fixed seeds, p > 0.001."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from semfocus.tasks import get_task
from semfocus.tasks.listops_trees import TreeSizes

N = 20_000


def _assert_fits(observed: np.ndarray, expected_shares: np.ndarray) -> None:
    expected = np.asarray(expected_shares) * observed.sum() / np.sum(expected_shares)
    assert stats.chisquare(observed, expected).pvalue > 1e-3, (observed, expected)


@pytest.mark.parametrize(
    ("name", "labels", "symbols"),
    [("parity", 2, 2), ("even_pairs", 2, 2), ("cycle_navigation", 5, 3)],
)
def test_uniform_tasks_have_uniform_symbols_and_labels(name: str, labels: int, symbols: int) -> None:
    batch = get_task(name).sample(N, seed=1)
    _assert_fits(np.bincount(batch.labels, minlength=labels), np.ones(labels))
    for position in (0, 17, 39):
        _assert_fits(np.bincount(batch.tokens[:, position], minlength=symbols), np.ones(symbols))


def test_the_hole_of_missing_duplicate_is_uniform_over_both_copies() -> None:
    batch = get_task("missing_duplicate").sample(N, seed=1)
    _assert_fits(np.bincount((batch.tokens == 2).int().argmax(dim=1), minlength=40), np.ones(40))
    _assert_fits(np.bincount(batch.labels, minlength=2), np.ones(2))


def test_stack_content_is_uniform_on_1_to_39_and_actions_are_uniform() -> None:
    tokens = get_task("stack_manipulation").sample(N, seed=1).tokens.numpy()
    content = np.argmax(tokens >= 2, axis=1)
    _assert_fits(np.bincount(content, minlength=40)[1:], np.ones(39))
    _assert_fits(np.bincount(tokens[:, -1], minlength=5)[2:], np.ones(3))
    assert ((tokens >= 2) == (np.arange(40) >= content[:, None])).all()


def test_an_empty_stack_is_as_rare_as_computed() -> None:
    labels = get_task("stack_manipulation").sample(200_000, seed=1).labels
    # 0.027 % of rows: 54 expected, and five standard deviations either way.
    assert abs((labels == 2).sum().item() - 54) < 5 * 54**0.5


def test_modular_arithmetic_favours_zero_exactly_as_multiplication_makes_it() -> None:
    batch = get_task("modular_arithmetic").sample(N, seed=1)
    _assert_fits(np.bincount(batch.labels, minlength=5), np.array([0.2916, 0.1771, 0.1771, 0.1771, 0.1771]))
    shares = np.bincount(batch.tokens.ravel(), minlength=11) / batch.tokens.numel()
    assert abs(shares[7] - 0.064) < 0.001
    assert shares[10] == 0
    digits = (batch.tokens < 5).sum(dim=1)
    assert digits.min() == 7
    assert digits.max() == 10
    assert abs(digits.float().mean() - 8.64) < 0.02
    depth = ((batch.tokens == 8).int() - (batch.tokens == 9).int()).cumsum(dim=1).max(dim=1).values
    assert depth.min() == 4
    assert depth.max() == 9


def _expected_x_shares(rows: np.ndarray, walk: bool) -> np.ndarray:
    """The expected share of x at each rank among the digits: next digit after a uniform position, or uniform digit."""
    shares = np.zeros(12)
    for row in rows:
        places = np.flatnonzero((row[:38] < 5) | (row[:38] == 9))
        gaps = np.diff(places, prepend=places[-1] - 38) if walk else np.ones(len(places))
        shares[: len(places)] += gaps / gaps.sum()
    return shares


def _rank_of_x(rows: np.ndarray) -> np.ndarray:
    before = (rows[:, :38] < 5) & (np.arange(38) < np.argmax(rows == 9, axis=1)[:, None])
    return np.bincount(before.sum(axis=1), minlength=12)


def test_x_replaces_the_next_digit_after_a_uniform_position_and_not_a_uniform_digit() -> None:
    rows = get_task("solve_equation").sample(N, seed=1).tokens.numpy()
    observed = _rank_of_x(rows)
    walk, uniform = _expected_x_shares(rows, walk=True), _expected_x_shares(rows, walk=False)
    used = walk > 5
    _assert_fits(observed[used], walk[used])
    chi2 = ((observed - uniform)[used] ** 2 / uniform[used]).sum()
    assert chi2 > 300, "this sample cannot tell the walk from a uniform choice: the test above proves nothing"


def test_solve_equation_labels_are_uniform_and_rows_end_with_equals_and_value() -> None:
    batch = get_task("solve_equation").sample(N, seed=1)
    _assert_fits(np.bincount(batch.labels, minlength=5), np.ones(5))
    assert (batch.tokens[:, 38] == 10).all()
    assert (batch.tokens[:, 39] < 5).all()
    assert ((batch.tokens == 9).sum(dim=1) == 1).all()


def test_rows_of_any_length_are_drawn_with_uniform_lengths() -> None:
    lengths = get_task("parity").sample(N, seed=1, lengths=(3, 12)).lengths
    _assert_fits(np.bincount(lengths, minlength=13)[3:], np.ones(10))


@pytest.fixture(scope="module")
def listops() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch = get_task("listops").sample(4000, seed=5, cache=False)
    return batch.tokens.numpy(), batch.labels.numpy(), batch.lengths.numpy()


def test_listops_lengths_follow_the_exact_law_of_tree_sizes(listops: tuple[np.ndarray, ...]) -> None:
    lengths = listops[2]
    law = TreeSizes.of(600, 10, 10).probability[501:]
    assert 85 < 1 / law.sum() < 105  # about 95 tries for a kept tree
    _assert_fits(np.bincount(lengths - 501, minlength=99), law)
    assert abs(lengths.mean() - 549.2) < 5 * 28.6 / 4000**0.5


def test_listops_labels_and_tokens_have_the_known_shares(listops: tuple[np.ndarray, ...]) -> None:
    tokens, labels, lengths = listops
    known = np.array([16.1, 9.1, 8.7, 9.1, 8.7, 8.8, 6.8, 7.4, 8.8, 16.4]) / 100
    noise = np.sqrt(known * (1 - known) * (1 / 4000 + 1 / 7000))  # the known shares are a sample of 7000 themselves
    assert (abs(np.bincount(labels) / 4000 - known) < 4.5 * noise).all()
    shares = np.bincount(tokens[np.arange(599) < lengths[:, None]], minlength=15) / lengths.sum()
    assert abs(shares[14] - 0.143) < 0.001
    assert (abs(shares[:10] - 0.0714) < 0.001).all()
    assert (abs(shares[10:14] - 0.0357) < 0.001).all()


def test_every_listops_tree_reaches_the_full_depth(listops: tuple[np.ndarray, ...]) -> None:
    tokens = listops[0]
    opened = (tokens >= 10) & (tokens < 14)
    depth = (opened.astype(int) - (tokens == 14)).cumsum(axis=1).max(axis=1) + 1
    assert depth.min() == depth.max() == 10


def test_small_listops_trees_have_equally_likely_operators_and_digits() -> None:
    # [op a b ] is the only shape of four tokens: 4 operators, 10 digits in each of two places.
    task = get_task("listops", min_length=3, max_length=5, max_depth=3, max_args=2)
    tokens = np.concatenate([task.sample(50, seed=seed, cache=False).tokens.numpy() for seed in range(40)])
    assert (tokens[:, 3] == 14).all()
    _assert_fits(np.bincount(tokens[:, 0] - 10, minlength=4), np.ones(4))
    for place in (1, 2):
        _assert_fits(np.bincount(tokens[:, place], minlength=10), np.ones(10))
