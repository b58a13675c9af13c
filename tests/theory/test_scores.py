"""Dispersion, separation, in-degree, sink ratio and quantiles, on rows small enough to check by eye."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.theory import aggregate, dispersion, in_degree, separation, sink_ratio

INF, NAN = math.inf, math.nan
SCORES = torch.tensor([[3.0, 2.5, 1.0, 0.25], [0.0, 5.0, 5.0, -1.0]])
KEEP = torch.tensor([[True, True, False, False], [False, True, True, False]])


def test_worked_rows_give_the_numbers_of_the_docstring():
    assert dispersion(SCORES, KEEP).tolist() == [0.5, 0.0]
    assert separation(SCORES, KEEP).tolist() == [1.5, 5.0]
    assert in_degree(KEEP).tolist() == [1, 2, 1, 0]
    assert sink_ratio(KEEP).item() == 1.0


def test_results_are_float64_even_for_half_precision_scores():
    assert dispersion(SCORES.half(), KEEP).dtype == torch.float64
    assert separation(SCORES.half(), KEEP).dtype == torch.float64


def test_keys_outside_valid_are_neither_kept_nor_dropped():
    valid = torch.tensor([True, True, False, True])
    assert separation(SCORES, KEEP, valid).tolist() == [2.25, 5.0]
    only_kept = torch.tensor([True, True, False, False])
    assert separation(SCORES[:1], KEEP[:1], only_kept).tolist() == [INF]
    invalid_kept = torch.tensor([True, False, True, True])
    assert separation(SCORES[:1], KEEP[:1], invalid_kept).tolist() == [2.0]


def test_a_key_at_minus_infinity_counts_neither_way():
    scores = torch.tensor([[1.0, -INF, 0.5, -INF]])
    keep = torch.tensor([[True, True, False, False]])
    assert dispersion(scores, keep).tolist() == [0.0]
    assert separation(scores, keep).tolist() == [0.5]
    assert dispersion(torch.full((1, 2), -INF), torch.ones(1, 2, dtype=torch.bool)).tolist() == [0.0]


def test_rows_with_nothing_dropped_or_nothing_kept_have_infinite_separation_and_no_nan():
    everything, nothing = torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, 4, dtype=torch.bool)
    assert separation(SCORES, everything).tolist() == [INF, INF]
    assert separation(SCORES, nothing).tolist() == [INF, INF]
    assert dispersion(SCORES, nothing).tolist() == [0.0, 0.0]
    assert dispersion(SCORES, everything).tolist() == [2.75, 6.0]


def test_constant_scores_have_separation_zero_not_nan():
    assert separation(torch.full((2, 4), 7.0), KEEP).tolist() == [0.0, 0.0]
    assert dispersion(torch.full((2, 4), 7.0), KEEP).tolist() == [0.0, 0.0]


def test_masks_that_do_not_keep_the_heaviest_have_negative_separation():
    assert separation(SCORES, ~KEEP).tolist() == [-2.75, -6.0]


@pytest.mark.parametrize("column", [0, 3])
def test_nan_reaches_its_own_row_alone(column):
    scores = SCORES.clone()
    scores[0, column] = NAN
    spread, gap = dispersion(scores, KEEP), separation(scores, KEEP)
    assert math.isnan(gap[0])
    assert gap[1] == 5.0
    assert math.isnan(spread[0]) == (column == 0), "a dropped NaN is no part of the dispersion"
    assert spread[1] == 0.0


def test_nan_in_an_invalid_key_is_not_seen():
    scores = SCORES.clone()
    scores[0, 3] = NAN
    assert separation(scores, KEEP, torch.tensor([True, True, True, False])).tolist() == [1.5, 5.0]


def test_masks_broadcast_over_batch_and_heads():
    scores = SCORES.expand(2, 3, 2, 4)
    assert dispersion(scores, KEEP).shape == (2, 3, 2)
    valid = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    assert separation(scores, KEEP, valid).shape == (2, 3, 2)
    assert in_degree(KEEP.expand(2, 3, 2, 4)).shape == (2, 3, 4)
    assert sink_ratio(KEEP.expand(2, 3, 2, 4)).shape == (2, 3)


@given(st.integers(2, 9), st.data())
@settings(max_examples=50, deadline=None)
def test_a_regular_mask_has_sink_ratio_at_least_one_and_mean_in_degree_k(length, data):
    k = data.draw(st.integers(1, length))
    rows = [data.draw(st.permutations(range(length)))[:k] for _ in range(length)]
    keep = torch.zeros(length, length, dtype=torch.bool)
    for i, row in enumerate(rows):
        keep[i, row] = True
    assert in_degree(keep).double().mean().item() == pytest.approx(k)
    assert sink_ratio(keep).item() >= 1.0


def test_sink_ratio_of_irregular_masks_divides_by_the_fewest_kept_keys_unless_told():
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    assert sink_ratio(causal).item() == 4.0
    assert sink_ratio(causal, k=2).item() == 2.0
    padded = torch.cat([KEEP, torch.zeros(1, 4, dtype=torch.bool)])
    assert sink_ratio(padded).item() == 1.0, "a query that keeps nothing does not count"
    assert sink_ratio(torch.zeros(2, 4, dtype=torch.bool)).item() == 0.0


def test_quantiles_agree_with_torch_on_finite_values():
    values = torch.linspace(-1, 2, 11, dtype=torch.float64) ** 3
    levels = [0.0, 0.05, 0.5, 0.77, 1.0]
    expected = torch.quantile(values, torch.tensor(levels, dtype=torch.float64))
    torch.testing.assert_close(aggregate(values, levels), expected)
    assert aggregate(values, 0.5) == pytest.approx(expected[2].item())
    assert aggregate([[3, 1], [2, 4]], 0.5) == 2.5


def test_quantiles_of_infinite_separations_are_never_nan():
    values = [1.0, INF, INF, INF]
    assert aggregate(values, [0.0, 0.1, 0.5, 1.0]).tolist() == [1.0, INF, INF, INF]
    assert aggregate([1.0, INF], 0.0) == 1.0
    assert aggregate([-INF, -INF], 0.3) == -INF


def test_a_nan_is_not_hidden_by_a_quantile():
    assert math.isnan(aggregate([1.0, NAN, 2.0], 0.1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dispersion(SCORES, KEEP[:, :3]), "keep has shape (2, 3), scores (2, 4)"),
        (lambda: dispersion(SCORES, KEEP.expand(2, 2, 4)), "keep has shape (2, 2, 4)"),
        (lambda: dispersion(SCORES, KEEP[:, :1]), "keep has shape (2, 1)"),
        (lambda: separation(SCORES, KEEP, torch.ones(3, 4, dtype=torch.bool)), "valid has shape (3, 4)"),
        (lambda: dispersion(SCORES, KEEP.float()), "keep must be a bool tensor"),
        (lambda: dispersion(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)), "scores has shape (2, 0)"),
        (lambda: in_degree(torch.ones(4, dtype=torch.bool)), "keep must be a bool tensor of shape"),
        (lambda: in_degree(torch.ones(4, 4)), "keep must be a bool tensor of shape"),
        (lambda: sink_ratio(KEEP, k=0), "k = 0 must be at least 1"),
        (lambda: aggregate([], 0.5), "values is empty"),
        (lambda: aggregate([1.0], 1.5), "quantile = 1.5 must lie between 0 and 1"),
        (lambda: aggregate([1.0], NAN), "quantile = nan must lie between 0 and 1"),
        (lambda: aggregate("many", 0.5), "values = 'many'"),
    ],
)
def test_invalid_input_is_refused_by_name(call, words):
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)
