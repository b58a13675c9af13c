"""Attention by a polynomial at a cost of O(L d^(p + 1)): sums over keys first, then one product for each query.

With s = scale q.k and degree p, the sum over keys of s^l / l! v is a product of q's l-fold tensor power with a sum over
keys of k's, which all queries share. Causal attention carries these sums from chunk to chunk.

Shapes: *lead batch dimensions and heads, D head width, W = Dv + 1: the values and a column of ones, for the sum of the
weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.fast import FastWeights
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo

MAX_FACTORISED = 2  # degree: beyond it the sums are larger than the matrix of scores of any length that fits
CHUNK = 64  # queries whose scores among themselves are computed directly, in causal attention
FASTER_FROM = {1: 1, 2: 4}  # by degree: keys per D^p from which this was faster in each case that was measured


def linear(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Attention of a call that `linear_refuses` does not refuse."""
    lead, dtype = inputs.lead, inputs.compute_dtype
    q, k, v = (part.to(dtype).expand(*lead, *part.shape[-2:]) for part in (inputs.q, inputs.k, inputs.v))
    q = q * inputs.scale
    degree = _degree(inputs)
    valid = inputs.valid()
    present = q.new_ones(inputs.num_keys, 1, dtype=torch.bool) if valid is None else valid.transpose(-1, -2)
    finite = v.isfinite()
    # Not by multiplication: 0 * NaN is NaN.
    values, k = torch.where(present & finite, v, 0.0), torch.where(present, k, 0.0)
    values = torch.cat([values, present.to(dtype).expand(*lead, inputs.num_keys, 1)], dim=-1)  # (*lead, Lk, W)
    spoiled = (present & ~finite).expand(*lead, *v.shape[-2:])
    if inputs.causal:
        total = _causal(q, k, values, degree)
        spoiled = spoiled.cumsum(dim=-2) > 0
    else:
        total = _product(q, _sums(k, values, degree), degree)
        spoiled = spoiled.any(dim=-2, keepdim=True)
    weights = total[..., -1:]
    seen = present.expand(*lead, inputs.num_keys, 1)
    seen = seen.cumsum(dim=-2) > 0 if inputs.causal else seen.any(dim=-2, keepdim=True)
    out = torch.where(seen, total[..., :-1], 0.0) / torch.where(seen, weights, 1.0)
    return torch.where(spoiled, float("nan"), out).to(inputs.q.dtype), None


def linear_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why the sums cannot serve a call; None if they can."""
    if not isinstance(inputs.normaliser, FastWeights) or not inputs.mechanism.keeps_all:
        return f"it computes polynomials of every key only, not {inputs.mechanism} with {inputs.normaliser}"
    if _degree(inputs) > MAX_FACTORISED:
        return f"its sums are for degrees up to {MAX_FACTORISED}, not {_degree(inputs)}"
    if inputs.k_positions is not None:
        return "its sums go by the order of keys, not by given positions"
    if inputs.softcap is not None:
        return "capped scores (softcap) do not factorise"
    if inputs.bias is not None:
        return "a float mask does not factorise"
    if inputs.mask is not None and inputs.mask.shape[-2] != 1:
        return "a mask that differs from query to query does not factorise"
    if inputs.causal and inputs.num_queries != inputs.num_keys:
        return "causal sums need as many queries as keys"
    if inputs.dropout_seed is not None or inputs.straight_through:
        return "dropout and straight_through need single weights, which it never forms"
    return "it cannot tell single weights (return_info)" if want_info else None


def suits_linear(inputs: AttentionInputs) -> bool:
    """Whether the sums are the faster way."""
    normaliser = inputs.normaliser
    if not isinstance(normaliser, FastWeights) or normaliser.degree not in FASTER_FROM:
        return False
    return inputs.num_keys >= FASTER_FROM[normaliser.degree] * inputs.q.shape[-1] ** normaliser.degree


def _degree(inputs: AttentionInputs) -> int:
    return inputs.normaliser.degree if isinstance(inputs.normaliser, FastWeights) else 0


def _sums(k: Tensor, values: Tensor, degree: int) -> list[Tensor]:
    """For l = 0 .. degree, the sum over keys of the l-fold power of k times its value: (*lead, 1 or D or D D, W)."""
    sums = [values.sum(dim=-2, keepdim=True), k.transpose(-1, -2) @ values]
    if degree > 1:
        sums.append(_squares(k).transpose(-1, -2) @ values)
    return sums


def _product(q: Tensor, sums: list[Tensor], degree: int) -> Tensor:
    """(*lead, Lq, W): the polynomials of each query with the sums."""
    total = sums[0] + q @ sums[1]
    return total + _squares(q) @ sums[2] / 2 if degree > 1 else total


def _squares(vectors: Tensor) -> Tensor:
    """(..., L, D D): the products of each two channels."""
    return (vectors.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(-2)


def _causal(q: Tensor, k: Tensor, values: Tensor, degree: int) -> Tensor:
    polynomial = FastWeights(degree).polynomial
    parts, before = [], [torch.zeros_like(part) for part in _sums(k[..., :1, :], values[..., :1, :], degree)]
    for first in range(0, q.shape[-2], CHUNK):
        own = slice(first, first + CHUNK)
        q_own, k_own, v_own = q[..., own, :], k[..., own, :], values[..., own, :]
        within = polynomial(q_own @ k_own.transpose(-1, -2)).tril()
        parts.append(_product(q_own, before, degree) + within @ v_own)
        before = [sofar + new for sofar, new in zip(before, _sums(k_own, v_own, degree), strict=True)]
    return torch.cat(parts, dim=-2) if parts else values[..., :0, :]
