"""Smoothness in the Frobenius norm: the bounds against each other, their witness, and power iteration against SVD."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.theory.smoothness import (
    frobenius_bound,
    local_constant,
    lone_tokens,
    sqrt_n_bound,
    steepest_frobenius,
)


def attention(w: torch.Tensor, keep: torch.Tensor | None = None):
    def f(x: torch.Tensor) -> torch.Tensor:
        scores = x @ w @ x.mT
        scores = scores if keep is None else scores.masked_fill(~keep, -math.inf)
        return scores.softmax(-1) @ x

    return f


def jacobian_norm(f, x: torch.Tensor) -> float:
    """By brute force: the whole Jacobian and its largest singular value."""
    jacobian = torch.autograd.functional.jacobian(lambda one: f(one[None])[0], x)
    return torch.linalg.matrix_norm(jacobian.reshape(x.numel(), x.numel()), ord=2).item()


def topk_mask(scores: torch.Tensor, k: int) -> torch.Tensor:
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(k, dim=-1).indices, True)


@pytest.mark.parametrize("k", [None, 1, 3, 7])
def test_power_iteration_gives_the_largest_singular_value_of_the_jacobian(k: int | None) -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    keep = None if k is None else topk_mask(x @ w @ x.mT, k)
    found = local_constant(attention(w, keep), x, steps=3000, tolerance=1e-13)
    assert bool(found.settled.all())
    for i in range(3):
        expected = jacobian_norm(attention(w, None if keep is None else keep[i]), x[i])
        assert found.constant[i].item() == pytest.approx(expected, rel=1e-8)


def test_a_function_that_does_not_move_has_the_constant_zero_and_empty_input_is_refused() -> None:
    assert local_constant(lambda x: 0 * x, torch.ones(2, 3, 2)).constant.tolist() == [0.0, 0.0]
    with pytest.raises(UsageError, match=r"shape \(0, 3\)"):
        local_constant(lambda x: x, torch.ones(0, 3))


def test_an_iteration_that_is_cut_off_says_so_and_stays_below_the_truth() -> None:
    x = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    f = attention(torch.eye(3, dtype=torch.float64))
    found = local_constant(f, x, steps=2, tolerance=1e-15)
    assert not bool(found.settled)
    assert found.constant.item() <= jacobian_norm(f, x[0]) * (1 + 1e-12)


@pytest.mark.parametrize(("n", "gamma"), [(6, 0.3), (12, 1.0), (25, 2.0)])
def test_the_lone_tokens_attain_what_their_formula_says(n: int, gamma: float) -> None:
    constant, lone = lone_tokens(n, gamma=gamma)
    x = torch.zeros(n, 2, dtype=torch.float64)
    x[:, 0] = torch.where(torch.arange(n) < n - lone, 1.0, -1.0)
    w = torch.tensor([[-gamma, 0.0], [0.0, 0.0]], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(attention(w), x)  # (n, 2, n, 2)
    moved = jacobian[: n - lone, :, n - lone :, 0].sum(-1) * lone**-0.5
    assert moved.norm().item() == pytest.approx(constant, rel=1e-12)
    assert constant <= jacobian_norm(attention(w), x) * (1 + 1e-12)


@pytest.mark.parametrize(("n", "gamma"), list(itertools.product((2, 10, 40, 600), (0.01, 0.3, 1.0, 3.0, 10.0))))
def test_witness_certified_bound_and_sqrt_n_bound_come_in_this_order(n: int, gamma: float) -> None:
    bound = frobenius_bound(n, gamma=gamma)
    assert lone_tokens(n, gamma=gamma).constant <= bound <= sqrt_n_bound(n, gamma=gamma)


def test_the_growth_is_that_of_sqrt_n_first_and_none_after_e_to_the_2_g() -> None:
    def exponent(low: int, high: int) -> float:
        ratio = lone_tokens(high, gamma=4.0).constant / lone_tokens(low, gamma=4.0).constant
        return math.log(ratio) / math.log(high / low)

    assert 0.5 <= exponent(20, 200) < 0.7  # e^8 is 2981
    assert exponent(40_000, 400_000) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("k", [None, 2])
def test_no_input_passes_the_bounds(k: int | None) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        n = int(torch.randint(2, 9, (), generator=generator))
        x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        x /= x.norm(dim=-1).max()
        w = torch.randn(2, 2, generator=generator, dtype=torch.float64) * 5 * torch.rand((), generator=generator)
        gamma = torch.linalg.matrix_norm(w, ord=2).item()
        keep = None if k is None else topk_mask(x @ w @ x.mT, k)
        norm = jacobian_norm(attention(w, keep), x)
        in_degree = None if keep is None else keep.sum(0).max().item()
        assert norm <= frobenius_bound(n, gamma=gamma, k=k, in_degree=in_degree)
        if k is None:
            assert norm <= sqrt_n_bound(n, gamma=gamma)


def test_the_search_comes_near_the_bound_and_never_passes_it() -> None:
    found = steepest_frobenius(4, gamma=1.0, steps=120)
    assert lone_tokens(4, gamma=1.0).constant <= found <= frobenius_bound(4, gamma=1.0)


@pytest.mark.parametrize(("arguments", "what"), [({"n": 0}, "n = 0"), ({"n": 3, "gamma": -1.0}, "gamma")])
def test_bad_arguments_are_named(arguments: dict, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        sqrt_n_bound(**{"gamma": 1.0, **arguments})
