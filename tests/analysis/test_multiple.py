from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semfocus.analysis import holm, not_enough, pairs_needed
from semfocus.errors import UsageError


def test_holm_agrees_with_a_case_worked_by_hand() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})


def test_holm_keeps_the_order_of_its_input_and_never_exceeds_one() -> None:
    adjusted = holm({"z": 0.9, "a": 0.8})
    assert list(adjusted) == ["z", "a"]
    assert adjusted == {"z": 1.0, "a": 1.0}


def test_a_comparison_without_a_test_still_counts() -> None:
    assert holm({"a": 0.02, "b": None}) == {"a": 0.04, "b": None}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_rejecting_adjusted_values_is_holms_step_down_procedure(p_values: list[float]) -> None:
    alpha, rejected = 0.05, 0
    for rank, p in enumerate(sorted(p_values)):
        if (len(p_values) - rank) * p > alpha:
            break
        rejected += 1
    adjusted = holm(dict(enumerate(p_values)))
    assert sum(p is not None and p <= alpha for p in adjusted.values()) == rejected


def test_holm_does_not_depend_on_the_order_of_comparisons() -> None:
    p_values = dict(enumerate([0.03, 0.01, 0.03, 0.2, 0.01]))
    assert holm(dict(reversed(p_values.items()))) == holm(p_values)


def test_a_p_value_outside_zero_to_one_is_refused() -> None:
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="of 'topk' must lie between 0 and 1"):
            holm({"topk": bad})


def test_holm_over_no_comparisons_is_nothing() -> None:
    assert holm({}) == {}


def test_eight_seeds_serve_five_mechanisms_and_ten_serve_fourteen() -> None:
    assert (pairs_needed(1), pairs_needed(5), pairs_needed(14)) == (6, 8, 10)
    for comparisons in range(1, 60):
        n = pairs_needed(comparisons)
        assert comparisons * 2.0 ** (1 - n) <= 0.05 < comparisons * 2.0 ** (2 - n)


def test_too_few_seeds_are_told_how_many_would_do() -> None:
    assert not_enough(8, 5) == ""
    assert not_enough(7, 5) == (
        "not enough data: with 7 paired seeds the smallest p after Holm over 5 comparisons is 0.078 > 0.05; "
        "at least 8 seeds are needed"
    )
    assert "with 0 paired seeds the smallest p after Holm over 1 comparison is 1 >" in not_enough(0, 1)


def test_a_family_or_level_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="comparisons = 0"):
        pairs_needed(0)
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(UsageError, match="alpha"):
            pairs_needed(3, alpha)


def test_the_smallest_adjusted_p_of_enough_seeds_is_significant() -> None:
    for comparisons in (1, 5, 14):
        best = 2.0 ** (1 - pairs_needed(comparisons))
        family = {0: best} | dict.fromkeys(range(1, comparisons), 1.0)
        assert np.asarray(holm(family)[0]) <= 0.05
