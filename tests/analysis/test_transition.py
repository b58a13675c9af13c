"""Where a solvable layer turns from position to meaning, on rows made by hand."""

from __future__ import annotations

import math

import pytest

from semfocus.analysis.transition import compare_transitions, medians, transitions, winners
from semfocus.theory.positional_semantic import Trained

ALPHAS = (0.1, 0.4, 1.6)


def curve(mechanism: str, seed: int, leads: tuple[float, ...]) -> list[Trained]:
    """At each ratio the winner's theta - m; the other training ends higher, and would say the opposite."""
    rows = []
    for alpha, lead in zip(ALPHAS, leads, strict=True):
        rows.append(Trained(mechanism, "semantic", alpha, seed, 1.0, 0.1, 0.5, 0.5 + lead))
        rows.append(Trained(mechanism, "positional", alpha, seed, 2.0, 0.1, 0.5, 0.5 - lead))
    return rows


def test_the_lower_training_counts_and_the_crossing_lies_between_two_ratios() -> None:
    rows = curve("full", 1, (-0.2, 0.2, 0.3))
    assert [row.start for row in winners(rows)] == ["semantic"] * 3
    assert transitions(rows, "full") == {1: pytest.approx(0.2)}  # halfway between 0.1 and 0.4, on the logarithm


def test_a_layer_that_is_semantic_throughout_or_never_is_told_apart() -> None:
    rows = curve("topk:2", 1, (0.1, 0.2, 0.3)) + curve("topk:2", 2, (0.1, 0.2, -0.1))
    assert transitions(rows, "topk:2") == {1: 0.0, 2: math.inf}


def test_seeds_are_compared_one_by_one_and_ties_count_for_neither() -> None:
    rows = [row for seed in range(8) for row in curve("full", seed, (-0.2, 0.2, 0.3))]
    rows += [row for seed in range(7) for row in curve("topk:2", seed, (0.1, 0.2, 0.3))]
    rows += curve("topk:2", 7, (-0.2, 0.2, 0.3))
    test = compare_transitions(rows, "topk:2")
    assert (test.earlier, test.later, test.seeds) == (7, 0, 8)
    assert test.p == pytest.approx(2 / 2**7)


def test_medians_are_of_the_winners() -> None:
    alphas, quartiles = medians(curve("full", 1, (0.1, 0.2, 0.3)), "full", "theta")
    assert alphas == list(ALPHAS)
    assert [middle for _, middle, _ in quartiles] == pytest.approx([0.6, 0.7, 0.8])
