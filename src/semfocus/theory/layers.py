"""Certified Lipschitz constants of the parts around attention, each from numbers that the caller measured.

Tokens are rows here, as in a model: a layer's constant says how far the row it gives can move when the row it is
given moves, in the 2-norm. Layers that treat every token alone have that constant in every norm over tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import check_fields, number, pick, plain, times

# sup |d/dx of the activation|; all three are 0 at 0. GELU (the exact one): the slope cdf(x) + x pdf(x) peaks at
# sqrt(2). Mish: 1.08849816..., at x = 1.4906, rounded up; a test encloses it.
ACTIVATION_SLOPE = {
    "relu": 1.0,
    "gelu": (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi),
    "mish": 1.0885,
}

# The gradient in the logits is p - one_hot(y): |.|^2 = (1 - p_y)^2 + sum of the other p^2 <= 2 (1 - p_y)^2.
CROSS_ENTROPY_SLOPE = math.sqrt(2)


@dataclass(frozen=True)
class NormRows:
    """The rows that enter a LayerNorm: none has a standard deviation (population, before epsilon) below `std`."""

    std: float
    epsilon: float = 1e-5
    gain: float = 1.0  # largest absolute entry of the affine weight, 1 without one

    def __post_init__(self) -> None:
        check_fields(self, "std", "epsilon", "gain")

    @property
    def slope(self) -> float:
        """`layer_norm_constant` of these rows."""
        return layer_norm_constant(self.std, self.epsilon, self.gain)


def layer_norm_constant(std: float, epsilon: float = 1e-5, gain: float = 1.0) -> float:
    """gain / sqrt(std^2 + epsilon): for any two rows whose standard deviations are at least `std`.

    Only the two rows count, not those between them. With `std` = 0 it is the global constant 1/sqrt(epsilon).
    """
    scale = math.hypot(plain("std", std), math.sqrt(plain("epsilon", epsilon)))
    return times(plain("gain", gain), 1 / scale if scale else math.inf)


def activation_constant(activation: str) -> float:
    """How steep an activation gets: relu 1, gelu 1.1289, mish 1.0885."""
    return pick("activation", activation, ACTIVATION_SLOPE)


def mlp_constant(into: float, out: float, activation: str) -> float:
    """linear, activation, linear, from the spectral norms of the two matrices."""
    return times(activation_constant(activation), plain("into", into), plain("out", out))


def spectral_norm(weight: torch.Tensor) -> float:
    """The largest singular value of a matrix, in float64; inf where an element is infinite, NaN where one is NaN."""
    matrix = number("weight", weight)
    if matrix.ndim != 2 or not matrix.numel():
        raise UsageError(f"weight has shape {tuple(matrix.shape)}; a spectral norm needs a matrix")
    if not bool(matrix.isfinite().all()):
        return matrix.abs().amax().item()
    return torch.linalg.matrix_norm(matrix, ord=2).item()
