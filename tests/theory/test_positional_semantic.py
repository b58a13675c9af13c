"""The solvable layer: its loss against the definition, its overlaps against the source's, and bad arguments."""

from __future__ import annotations

import math

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.theory.positional_semantic import (
    Setup,
    World,
    half_signs,
    kept_keys,
    linear_error,
    positional_weights,
    train,
)

SMALL = Setup(width=12, tokens=4, steps=5, test_rows=20)


def by_definition(world: World, q: torch.Tensor, k: int) -> float:
    """The squared error summed over training examples, example by example."""
    setup, total = world.setup, 0.0
    signs = half_signs(setup.tokens)[:, None] / math.sqrt(setup.width)
    for shifted in world.train.tokens:
        x = shifted - signs
        s = x @ world.target / math.sqrt(setup.width)
        target_k = kept_keys(setup.target, setup.tokens)
        y = (1 - setup.omega) * kept_softmax(torch.outer(s, s), target_k) @ x
        y = y + setup.omega * positional_weights(setup.tokens) @ x
        own = shifted @ q / math.sqrt(setup.width)
        total += float(((kept_softmax(torch.outer(own, own), k) @ shifted - y) ** 2).sum())
    return total


def kept_softmax(scores: torch.Tensor, k: int) -> torch.Tensor:
    rows = []
    for row in scores:
        best = sorted(range(len(row)), key=lambda j: (-row[j].item(), j))[:k]
        own = torch.full_like(row, -math.inf)
        own[best] = row[best]
        rows.append(own.softmax(-1))
    return torch.stack(rows)


@pytest.mark.parametrize("target", ["full", "topk:2"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_loss_is_the_squared_error_of_the_definition(target: str, k: int) -> None:
    world = World.draw(Setup(width=12, tokens=4, target=target, test_rows=5), alpha=1.0, seed=3)
    q = torch.linspace(-1, 2, 12)
    assert world.train.errors(q[None], [k]).item() == pytest.approx(by_definition(world, q, k), rel=1e-4)


def test_full_attention_has_the_positional_overlap_of_the_source() -> None:
    """The source's asymptotic m at L = 2, omega 0.3, sigma 0.5, lambda 0.01 and a ratio of 1: 0.249."""
    setup = Setup(width=400, tokens=2, steps=800, test_rows=10)
    (positional,) = (one for one in train(World.draw(setup, 1.0, 1), ("full",)) if one.start == "positional")
    assert positional.m == pytest.approx(0.249, abs=0.03)
    assert positional.theta < 0.1


def test_full_attention_turns_to_meaning_where_the_source_says() -> None:
    """At L = 2 the source's free energies cross at a ratio of 1.26; theta sigma^2 is 0.159 at a ratio of 2."""
    setup = Setup(width=400, tokens=2, steps=600, test_rows=10)

    def trained(alpha: float):
        semantic, positional = train(World.draw(setup, alpha, 1), ("full",))
        return semantic, semantic.loss < positional.loss

    assert not trained(0.7)[1]
    semantic, is_lower = trained(2.0)
    assert is_lower
    assert semantic.theta * setup.sigma**2 == pytest.approx(0.159, abs=0.03)
    assert semantic.m < 0.05


def test_more_examples_turn_the_layer_from_position_to_meaning() -> None:
    setup = Setup(width=100, steps=600, test_rows=10)

    def winner(alpha: float):
        return min(train(World.draw(setup, alpha, 0), ("full",)), key=lambda one: one.loss)

    few, many = winner(0.1), winner(3.0)
    assert few.m > few.theta
    assert many.theta > 0.5 > many.m


def test_the_linear_mixture_is_right_about_a_target_that_only_mixes_by_position() -> None:
    assert linear_error(World.draw(Setup(width=30, omega=1.0, test_rows=30), 2.0, 0)) == pytest.approx(0, abs=1e-9)


def test_the_same_seed_gives_the_same_layer() -> None:
    first, second = (train(World.draw(SMALL, 1.0, 5), ("full", "topk:2")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("fields", "what"),
    [({"tokens": 3}, "tokens = 3 must be even"), ({"omega": 2.0}, "omega = 2.0"), ({"steps": 0}, "steps"),
     ({"target": "topk:9"}, "topk:9")],
)  # fmt: skip
def test_a_setup_that_has_no_meaning_is_refused(fields: dict, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Setup(**fields)


@pytest.mark.parametrize("mechanism", ["topk:1", "topk:5", "topk:x", "banded:3"])
def test_a_mechanism_that_cannot_learn_here_is_refused(mechanism: str) -> None:
    with pytest.raises(UsageError, match="from 2 to 4"):
        kept_keys(mechanism, 4)
