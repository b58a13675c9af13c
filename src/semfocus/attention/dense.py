"""All scores at once: `dense` by matrix products, for every call; `sdpa` by torch's kernels, for full attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus.attention.base import SelectionInputs
from semfocus.attention.inputs import AttentionInputs, common_lead
from semfocus.attention.inspection import AttentionInfo, info_from_mask
from semfocus.attention.selection import can_sync, topk_mask

MAX_BATCH = 2**16 - 1  # torch's CUDA kernels raise an error for a larger batch


def dense(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Plain tensor operations: works under compile, vmap and func.grad, with any mechanism and normaliser."""
    q, k, v = (tensor.to(inputs.compute_dtype) for tensor in (inputs.q, inputs.k, inputs.v))
    scores = (q @ k.transpose(-1, -2)) * inputs.scale  # (.., Lq, Lk)
    if inputs.bias is not None:
        scores = scores + inputs.bias
    if inputs.mechanism.is_stochastic:  # every entry and head of the output draws its own, also where only v has them
        scores = scores.expand(*inputs.lead, *scores.shape[-2:])
    positions = inputs.positions()
    if _is_simple(inputs) and not want_info:
        weights = inputs.dropout(_simple_weights(inputs, scores), positions, positions.key)
        return (weights @ v).to(inputs.q.dtype), None
    mechanism, normaliser = inputs.mechanism, inputs.normaliser
    selection = inputs.selection(scores, q, k, positions)
    keep = _keep(inputs, selection)
    weights = normaliser.weigh(scores, keep, selection)
    info = None
    if want_info:
        whole = (*inputs.lead, *scores.shape[-2:])
        info = info_from_mask(
            scores.expand(whole), keep.expand(whole), weights.expand(whole), mechanism.max_kept(inputs.num_keys)
        )
    if inputs.straight_through:
        soft = normaliser.weigh(scores, selection.allowed, selection)
        weights = soft + (weights - soft).detach()
    weights = inputs.dropout(weights, positions, positions.key)
    unguarded = inputs.assume_finite or (mechanism.keeps_all and not inputs.restricted)
    out = weights @ v if unguarded else _weighted_sum(weights, keep, v)
    return out.to(inputs.q.dtype), info


def _is_simple(inputs: AttentionInputs) -> bool:
    """Whether every query keeps a key and all values are finite, so that no guards are needed."""
    mechanism = inputs.mechanism
    chosen = mechanism.keeps_all or mechanism.keeps_largest is not None
    trusted = inputs.assume_finite and inputs.bias is None and not inputs.restricted and not inputs.straight_through
    return chosen and trusted and inputs.normaliser.is_softmax


def _simple_weights(inputs: AttentionInputs, scores: Tensor) -> Tensor:
    k = inputs.mechanism.keeps_largest
    if k is not None:
        scores = torch.where(topk_mask(scores.detach(), None, k), scores, float("-inf"))
    return scores.softmax(dim=-1)


def _keep(inputs: AttentionInputs, selection: SelectionInputs) -> Tensor:
    """(.., Lq, Lk) bool: `mechanism.choose(selection)`, by a faster way where there is one."""
    mechanism = inputs.mechanism
    if not mechanism.is_ranked:
        return mechanism.choose(selection)
    k = mechanism.keeps_largest
    if k is not None and not inputs.restricted:
        return topk_mask(selection.scores, None, k)  # a score of -inf ranks last by itself
    ranking = mechanism.ranking(selection)
    chosen = topk_mask(ranking.priority, ranking.candidates, ranking.k)
    return chosen if ranking.always_kept is None else chosen | ranking.always_kept


def _weighted_sum(weights: Tensor, keep: Tensor, v: Tensor) -> Tensor:
    """weights @ v, except that a value that is not finite affects only the queries that keep it (0 * NaN is NaN)."""
    if can_sync(v) and bool(v.detach().sum().isfinite()):
        return weights @ v
    finite = v.isfinite()
    not_finite = keep.to(v.dtype) @ (~finite).to(v.dtype) > 0
    return torch.where(not_finite, float("nan"), weights @ torch.where(finite, v, 0.0))


def sdpa(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Softmax over every key, or over every key up to the query's own."""
    q, k, v = inputs.q, inputs.k, inputs.v
    if not inputs.causal:
        return fused(q, k, v, inputs.scale), None
    # A value that is not finite must affect only the queries that see it: those from its own position on.
    finite = v.isfinite()
    affected = (~finite).cumsum(dim=-2) > 0
    out = fused(q, k, torch.where(finite, v, 0.0), inputs.scale, causal=True)
    return torch.where(affected, float("nan"), out), None


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """torch's attention over any broadcastable batch dimensions, as (N, 1, L, D), which all its kernels take."""
    lead = common_lead(q, k, v)
    flat = [tensor.expand(*lead, *tensor.shape[-2:]).reshape(-1, 1, *tensor.shape[-2:]) for tensor in (q, k, v)]
    parts = [
        scaled_dot_product_attention(*part, is_causal=causal, scale=scale)
        for part in zip(*(tensor.split(MAX_BATCH) for tensor in flat), strict=True)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(*lead, *out.shape[-2:])
