"""All scores at once, as matrix products: the best there is for short sequences, and able to do everything."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.info import AttentionInfo, info_from_mask
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.mechanisms import Full, ScoreRanked, TopK
from semfocus.attention.normalisers import Softmax
from semfocus.attention.positions import Positions
from semfocus.attention.selection import can_sync, topk_mask


def dense(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Only tensor operations: works under compile, vmap and func.grad, with any mechanism and normaliser."""
    q, k, v = (tensor.to(inputs.compute_dtype) for tensor in (inputs.q, inputs.k, inputs.v))
    scores = (q @ k.transpose(-1, -2)) * inputs.scale
    if inputs.bias is not None:
        scores = scores + inputs.bias
    positions = inputs.positions()
    if _is_simple(inputs) and not want_info:
        weights = inputs.dropout(_simple_weights(inputs, scores), positions, positions.key)
        return (weights @ v).to(inputs.q.dtype), None
    valid = inputs.valid()
    mechanism, normaliser = inputs.mechanism, inputs.normaliser
    keep = _keep(inputs, scores.detach(), valid, positions)
    weights = normaliser.weights(scores, keep)
    info = None
    if want_info:
        whole = (*inputs.lead, *scores.shape[-2:])
        info = info_from_mask(
            scores.expand(whole), keep.expand(whole), weights.expand(whole), mechanism.max_kept(inputs.num_keys)
        )
    if inputs.straight_through:
        everything = positions.allowed(scores.detach() != float("-inf"), valid, inputs.causal)
        soft = normaliser.weights(scores, everything)
        weights = soft + (weights - soft).detach()
    weights = inputs.dropout(weights, positions, positions.key)
    harmless = inputs.assume_finite or (type(mechanism) is Full and not inputs.restricted)
    out = weights @ v if harmless else _mix(weights, keep, v)
    return out.to(inputs.q.dtype), info


def _is_simple(inputs: AttentionInputs) -> bool:
    """Whether every query keeps something, and all that it keeps is finite: then there is nothing to guard against."""
    mechanism = inputs.mechanism
    chosen = type(mechanism) is Full or (type(mechanism) is TopK and not (mechanism.sinks or mechanism.window))
    trusted = inputs.assume_finite and inputs.bias is None and not inputs.restricted and not inputs.straight_through
    return chosen and trusted and type(inputs.normaliser) is Softmax


def _simple_weights(inputs: AttentionInputs, scores: Tensor) -> Tensor:
    if isinstance(inputs.mechanism, TopK):
        scores = torch.where(topk_mask(scores.detach(), None, inputs.mechanism.k), scores, float("-inf"))
    return scores.softmax(dim=-1)


def _keep(inputs: AttentionInputs, scores: Tensor, valid: Tensor | None, positions: Positions) -> Tensor:
    """What `mechanism.keep` says, by a faster way where there is one."""
    mechanism = inputs.mechanism
    if not isinstance(mechanism, ScoreRanked):
        return mechanism.keep(scores, valid, causal=inputs.causal, positions=positions, seed=inputs.choice_seed)
    if type(mechanism) is TopK and not (mechanism.sinks or mechanism.window or inputs.restricted):
        return topk_mask(scores, None, mechanism.k)
    free, fixed = mechanism.candidates(scores, valid, inputs.causal, positions)
    chosen = topk_mask(mechanism.priority(scores, positions, inputs.choice_seed), free, mechanism.k)
    return chosen if fixed is None else chosen | fixed


def _mix(weights: Tensor, keep: Tensor, v: Tensor) -> Tensor:
    """weights @ v, except that a value that is not finite spoils only the rows that keep it (0 * NaN is NaN)."""
    if can_sync(v) and bool(v.detach().sum().isfinite()):
        return weights @ v
    finite = v.isfinite()
    spoiled = keep.to(v.dtype) @ (~finite).to(v.dtype) > 0
    return torch.where(spoiled, float("nan"), weights @ torch.where(finite, v, 0.0))
