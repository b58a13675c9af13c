"""Constants of LayerNorm, activations, MLP and cross-entropy: enclosed, attained, never passed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, gelu, layer_norm, mish, relu

from semfocus.errors import UsageError
from semfocus.theory import NormRows, activation_constant, layer_norm_constant, mlp_constant, spectral_norm
from semfocus.theory.layers import CROSS_ENTROPY_SLOPE

FUNCTIONS = {"relu": relu, "gelu": gelu, "mish": mish}


def slope(function, x):
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    return gradient


@pytest.mark.parametrize(("name", "value"), [("relu", 1.0), ("gelu", 1.1289), ("mish", 1.0885)])
def test_activation_constants_are_the_steepest_slopes(name, value):
    grid = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    steepest = slope(FUNCTIONS[name], grid).abs().max().item()
    assert activation_constant(name) == pytest.approx(value, abs=5e-5)
    assert activation_constant(name) - 1e-5 < steepest <= activation_constant(name)
    assert FUNCTIONS[name](torch.zeros(1)).item() == 0.0


def test_gelu_is_nowhere_steeper_than_at_the_square_root_of_two():
    """Its second derivative (2 - x^2) pdf(x) changes sign there alone, so that the two ends decide."""
    root = torch.tensor([math.sqrt(2), -math.sqrt(2)], dtype=torch.float64)
    up, down = slope(gelu, root).tolist()
    assert up == pytest.approx(activation_constant("gelu"), abs=1e-14)
    assert down == pytest.approx(1 - activation_constant("gelu"), abs=1e-14)


def test_mish_is_nowhere_steeper_than_its_constant_by_an_enclosure_of_every_interval():
    """Slope t + x (1 - t^2) s, with t = tanh(softplus x) and s = sigmoid x, both growing with x.

    On [a, b], a >= 0, it is at most t(b) + b (1 - t(a)^2) s(b). For x <= 0 it lies between -|x| s(x) > -0.28 and
    t(0) = 0.6; for x >= 20, 1 - t^2 < 4 e^(-2x) leaves it below 1.0001.
    """

    def upper(edges):
        t, s = torch.tanh(torch.nn.functional.softplus(edges)), torch.sigmoid(edges)
        return (t[1:] + edges[1:] * (1 - t[:-1] ** 2) * s[1:]).max().item()

    coarse = [torch.linspace(a, b, 200_001, dtype=torch.float64) for a, b in ((0, 1.4), (1.6, 20))]
    fine = torch.linspace(1.4, 1.6, 1_000_001, dtype=torch.float64)
    assert max(map(upper, (*coarse, fine))) <= activation_constant("mish")
    left = torch.linspace(-60, 0, 600_001, dtype=torch.float64)
    assert (-left * torch.sigmoid(left)).max().item() < 0.2785


rows = st.lists(st.floats(-5, 5), min_size=4, max_size=4)


@given(rows, rows, st.sampled_from([0.0, 1e-5, 0.5]))
@settings(max_examples=200, deadline=None)
def test_two_rows_never_part_faster_than_the_layer_norm_constant(first, second, epsilon):
    pair = torch.tensor([first, second], dtype=torch.float64)
    std = pair.std(-1, correction=0).min().item()
    if std**2 + epsilon < 1e-8:
        return
    moved = layer_norm(pair, (4,), eps=epsilon)
    apart = (pair[0] - pair[1]).norm().item()
    assert (moved[0] - moved[1]).norm().item() <= layer_norm_constant(std, epsilon) * apart * (1 + 1e-7) + 1e-9


def test_the_layer_norm_constant_is_attained():
    row = torch.tensor([3.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer_norm(x, (4,), eps=0.5), row)
    measured = torch.linalg.matrix_norm(jacobian, ord=2).item()
    assert measured == pytest.approx(layer_norm_constant(row.std(correction=0).item(), 0.5))


def test_rows_of_no_spread_have_the_global_constant_and_inf_without_epsilon():
    assert layer_norm_constant(0.0, 1e-4) == pytest.approx(100.0)
    assert layer_norm_constant(0.0, 0.0) == math.inf
    assert NormRows(std=0.0, epsilon=0.0, gain=0.0).slope == 0.0
    assert NormRows(std=3.0, epsilon=16.0, gain=2.0).slope == pytest.approx(0.4)


def test_an_mlp_never_stretches_more_than_its_constant_and_can_come_near():
    weights = torch.diag(torch.tensor([2.0, 0.1], dtype=torch.float64))
    out = torch.diag(torch.tensor([3.0, 0.2], dtype=torch.float64))
    bound = mlp_constant(spectral_norm(weights), spectral_norm(out), "gelu")
    steep = torch.tensor([math.sqrt(2) / 2, 0.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: out @ gelu(weights @ x), steep)
    assert torch.linalg.matrix_norm(jacobian, ord=2).item() == pytest.approx(bound) == pytest.approx(6 * 1.128904)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=5))
@settings(max_examples=100, deadline=None)
def test_cross_entropy_never_has_a_longer_gradient_than_the_square_root_of_two(logits):
    z = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    cross_entropy(z, torch.tensor([0])).backward()
    assert z.grad.norm().item() <= CROSS_ENTROPY_SLOPE * (1 + 1e-12)


def test_cross_entropy_comes_near_that_gradient():
    z = torch.tensor([[-30.0, 30.0]], dtype=torch.float64, requires_grad=True)
    cross_entropy(z, torch.tensor([0])).backward()
    assert z.grad.norm().item() == pytest.approx(CROSS_ENTROPY_SLOPE)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: layer_norm_constant(-1.0), "std = -1 must be at least 0"),
        (lambda: NormRows(std=1.0, epsilon=-1e-5), "epsilon = -1e-05 must be at least 0"),
        (lambda: activation_constant("swish"), "unknown activation 'swish'"),
        (lambda: mlp_constant(-1.0, 1.0, "relu"), "into = -1"),
        (lambda: spectral_norm(torch.zeros(3)), "weight has shape (3,)"),
    ],
)
def test_invalid_input_is_refused_by_name(call, words):
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)
