"""Certified Lipschitz constants of the layers of a model and of its attention heads, from measured norms.

Tokens are row vectors, as in a model. A layer's constant bounds the change of an output token by the change of its
input token, in the 2-norm. A layer that acts on each token separately has the same constant in every norm over tokens.

A head: q_i = W_q x_i + b_q, k_j = W_k x_j + b_k, v_j = W_v x_j + b_v, score_ij = scale * q_i . k_j, and the head adds
W_o sum_j p_ij v_j to token i, where W_o is its slice of the output projection. A constant added to all scores of a
query does not change the softmax, and a constant added to all values does not change the effect of changed weights.
Keys and values therefore enter through the radius of a ball around them, whatever its centre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import check_fields, number, pick, plain, times
from semfocus.theory.scores import dispersion, in_degree, separation
from semfocus.theory.softmax import weight_bound

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
    """Tokens that enter a LayerNorm: none has a standard deviation (population, before epsilon) below `std`."""

    std: float
    epsilon: float = 1e-5
    gain: float = 1.0  # largest absolute entry of the affine weight, 1 without one

    def __post_init__(self) -> None:
        check_fields(self, "std", "epsilon", "gain")

    @property
    def slope(self) -> float:
        """`layer_norm_constant` of these tokens."""
        return layer_norm_constant(self.std, self.epsilon, self.gain)


def layer_norm_constant(std: float, epsilon: float = 1e-5, gain: float = 1.0) -> float:
    """gain / sqrt(std^2 + epsilon): for any two tokens whose standard deviations are at least `std`.

    Points between the two tokens may have a smaller one. With `std` = 0 it is the global constant 1/sqrt(epsilon).
    """
    scale = math.hypot(plain("std", std), math.sqrt(plain("epsilon", epsilon)))
    return times(plain("gain", gain), 1 / scale if scale else math.inf)


def activation_constant(activation: str) -> float:
    """The largest slope of an activation: relu 1, gelu 1.1289, mish 1.0885."""
    return pick("activation", activation, ACTIVATION_SLOPE)


def mlp_constant(into: float, out: float, activation: str) -> float:
    """The constant of linear, activation, linear, from the spectral norms of the two matrices."""
    return times(activation_constant(activation), plain("into", into), plain("out", out))


def spectral_norm(weight: torch.Tensor) -> float:
    """The largest singular value of a matrix, in float64; inf where an element is infinite, NaN where one is NaN."""
    matrix = number("weight", weight)
    if matrix.ndim != 2 or not matrix.numel():
        raise UsageError(f"weight has shape {tuple(matrix.shape)}; a spectral norm needs a matrix")
    if not bool(matrix.isfinite().all()):
        return matrix.abs().amax().item()
    return torch.linalg.matrix_norm(matrix, ord=2).item()


Linear = tuple[torch.Tensor, torch.Tensor | None]  # weight (out, in), bias (out,) or None


@dataclass(frozen=True)
class Gains:
    """Lipschitz constants of a map over tokens, in three norms.

    max: the largest change of a token; frobenius: the root of the summed squares; sum: the summed changes.
    """

    max: float
    frobenius: float
    sum: float


@dataclass(frozen=True, kw_only=True)
class HeadNorms:
    """Upper bounds that hold at every point of a certificate; `separation` is a lower bound."""

    queries: float  # scale * |q_i|
    keys: float  # scale * radius of the k_j
    query_slope: float  # scale * |W_k' q_i|: slope of a score in the token of its key
    key_slope: float  # scale * radius of the W_q' k_j: slope of score differences in the token of the query
    values: float  # |v_j|
    spread: float  # radius of the W_o v_j
    value_slope: float  # |W_o W_v|
    output: float  # |W_o|
    in_degree: float  # no key is kept by more queries than this
    weight: float = 1.0  # no attention weight is larger: weight_bound(delta, k, "tight")
    separation: float | None = None  # None: the same masks at every point; else masks may change

    def __post_init__(self) -> None:
        check_fields(self, *(name for name in self.__dataclass_fields__ if name != "separation"))
        if self.separation is not None:
            check_fields(self, "separation")

    @property
    def jump(self) -> float:
        """max(1, 2 / separation): the factor of the part through the scores when masks may change."""
        return 1.0 if self.separation is None else max(1.0, 2 / self.separation if self.separation else math.inf)

    @property
    def gains(self) -> Gains:
        """The constants of the head's output with respect to its input tokens."""
        through_query, through_key = times(self.spread, self.key_slope), times(self.spread, self.query_slope)
        largest = self.value_slope + times(through_query + through_key, self.jump)
        flip = 0.0 if self.separation is None else 1 / self.separation if self.separation else math.inf
        summed = (
            times(self.in_degree, self.weight, self.value_slope)
            + times(through_query, self.jump)
            + times(2 * self.in_degree, max(self.weight, flip), through_key)
        )
        return Gains(largest, math.sqrt(times(largest, summed)), summed)


def measure_head(
    tokens: torch.Tensor,
    *,
    query: Linear,
    key: Linear,
    value: Linear,
    output: torch.Tensor,
    scale: float,
    keep: torch.Tensor | None = None,
    masks_may_change: bool = False,
) -> HeadNorms:
    """The norms of a head on the tokens (..., L, d) that enter it (after the LayerNorm of a pre-norm block).

    `keep` (..., L, L) is the mask; without it every query keeps all keys. With `masks_may_change` the separation is
    measured too, and the constants hold between inputs whose masks differ.
    """
    x, factor = number("tokens", tokens), plain("scale", scale)
    if x.ndim < 2:
        raise UsageError(f"tokens has shape {tuple(x.shape)}; it must be (..., L, d)")
    q, k, v = (_project("query", query, x), _project("key", key, x), _project("value", value, x))
    w_q, w_k, w_v = (number("weight", w) for w in (query[0], key[0], value[0]))
    w_o = number("output", output)
    if len(w_q) != len(w_k) or w_o.ndim != 2 or w_o.shape[1] != len(w_v):
        raise UsageError(
            f"query {tuple(w_q.shape)}, key {tuple(w_k.shape)}, value {tuple(w_v.shape)} and output "
            f"{tuple(w_o.shape)} do not fit: query and key need as many rows, output a column for each row of value"
        )
    scores = factor * q @ k.mT
    mask = torch.ones(scores.shape, dtype=torch.bool) if keep is None else torch.as_tensor(keep)
    spreads = dispersion(scores, mask)
    mask = mask.broadcast_to(scores.shape)
    kept = mask.sum(-1).clamp(min=1)
    return HeadNorms(
        queries=factor * _longest(q),
        keys=factor * _radius(k),
        query_slope=factor * _longest(q @ w_k),
        key_slope=factor * _radius(k @ w_q),
        values=_longest(v),
        spread=_radius(v @ w_o.mT),
        value_slope=spectral_norm(w_o @ w_v),
        output=spectral_norm(w_o),
        in_degree=in_degree(mask).amax().item(),
        weight=torch.as_tensor(weight_bound(spreads, kept, form="tight")).amax().item(),
        separation=separation(scores, mask).amin().item() if masks_may_change else None,
    )


def _project(name: str, linear: Linear, x: torch.Tensor) -> torch.Tensor:
    weight = number(f"{name} weight", linear[0])
    bias = None if linear[1] is None else number(f"{name} bias", linear[1])
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise UsageError(
            f"{name} weight has shape {tuple(weight.shape)}; tokens of width {x.shape[-1]} need (out, {x.shape[-1]})"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UsageError(f"{name} bias has shape {tuple(bias.shape)}; it must be ({len(weight)},)")
    return torch.nn.functional.linear(x, weight, bias)


def _longest(rows: torch.Tensor) -> float:
    return rows.norm(dim=-1).amax().item()


def _radius(rows: torch.Tensor) -> float:
    """The radius of the ball around the mean of each sequence."""
    return _longest(rows - rows.mean(-2, keepdim=True))
