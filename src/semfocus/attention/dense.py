"""All scores at once: `dense` by matrix products, for every call; `sdpa` by torch's kernels, for full attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus.attention.base import SelectionInputs
from semfocus.attention.inputs import AttentionInputs, common_lead, shared_product
from semfocus.attention.inspection import AttentionInfo, info_from_mask
from semfocus.attention.normalisers import Softmax
from semfocus.attention.positions import Positions
from semfocus.attention.selection import can_sync, topk_mask

MAX_BATCH = 2**16 - 1  # torch's CUDA kernels raise an error for a larger batch
MIN_CPU_KEYS = 16  # over fewer keys than a vector register holds, torch's CPU kernel turns scores of NaN into zeros


def dense(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Plain tensor operations: works under compile, vmap and func.grad, with any mechanism and normaliser."""
    q, k, v = (tensor.to(inputs.compute_dtype) for tensor in (inputs.q, inputs.k, inputs.v))
    scores = inputs.capped(shared_product(q, k.transpose(-1, -2)) * inputs.scale)  # (.., Lq, Lk)
    if inputs.bias is not None:
        scores = scores + inputs.bias
    if inputs.mechanism.is_stochastic:  # every entry and head of the output draws its own, also where only v has them
        scores = scores.expand(*inputs.lead, *scores.shape[-2:])
    positions = inputs.positions()
    if _is_simple(inputs) and not want_info:
        weights = inputs.dropout(_simple_weights(inputs, scores), positions, positions.key_index)
        return shared_product(weights, v).to(inputs.q.dtype), None
    mechanism = inputs.mechanism
    selection = inputs.selection(scores, q, k, positions)
    keep = _keep(inputs, selection)
    weights = inputs.weigh(scores, keep, selection)
    info = None
    if want_info:
        whole = (*inputs.lead, *scores.shape[-2:])
        info = info_from_mask(
            scores.expand(whole), keep.expand(whole), weights.expand(whole), mechanism.max_kept(inputs.num_keys)
        )
    if inputs.straight_through:
        soft = inputs.weigh(scores, selection.allowed, selection)
        weights = soft + (weights - soft).detach()
    weights = inputs.dropout(weights, positions, positions.key_index)
    if inputs.assume_finite:
        out = shared_product(weights, v)
    else:
        out = _weighted_sum(weights, None if mechanism.keeps_all and not inputs.restricted else keep, v)
    return out.to(inputs.q.dtype), info


def _is_simple(inputs: AttentionInputs) -> bool:
    """Whether every query keeps a key and all values are finite, so that no guards are needed."""
    mechanism = inputs.mechanism
    chosen = mechanism.keeps_all or mechanism.keeps_largest is not None
    trusted = inputs.assume_finite and inputs.bias is None and not inputs.restricted and not inputs.straight_through
    return chosen and trusted and inputs.normaliser.is_softmax and inputs.sinks is None


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


def _weighted_sum(weights: Tensor, keep: Tensor | None, v: Tensor) -> Tensor:
    """weights @ v, except that a value that is not finite affects only the queries that keep it (0 * NaN is NaN).

    `keep` None: every query keeps every key.
    """
    if can_sync(v) and not _is_differentiated(weights, v):
        out = shared_product(weights, v)
        if bool(out.sum().isfinite()):  # a product with NaN or infinity is finite nowhere in its channel
            return out
    elif _all_finite(v):
        return shared_product(weights, v)
    finite = v.isfinite()
    not_finite = (~finite).any(dim=-2, keepdim=True) if keep is None else keep.to(v.dtype) @ (~finite).to(v.dtype) > 0
    return torch.where(not_finite, float("nan"), shared_product(weights, torch.where(finite, v, 0.0)))


def _is_differentiated(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _all_finite(v: Tensor) -> bool:
    """Whether all values are known to be finite."""
    return can_sync(v) and bool(v.detach().sum().isfinite())


def sdpa(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Softmax over every key, or over every key up to the query's own."""
    return fused(inputs.q, inputs.k, inputs.v, inputs.scale, inputs.causal, inputs.assume_finite), None


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, assume_finite: bool = False) -> Tensor:
    """torch's attention over every key, or every key up to the query's own; any broadcastable batch dimensions.

    A value that is not finite affects only the queries that see it, and no gradient.
    """
    if assume_finite:
        return _kernel(q, k, v, scale, causal)
    if k.device.type == "cpu" and k.shape[-2] < MIN_CPU_KEYS:
        return _guarded(_few_keys, q, k, v, scale, causal)
    return _guarded(_kernel, q, k, v, scale, causal)


def _guarded(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """`attention`, whose values need not be finite."""
    if not causal and can_sync(v) and not _is_differentiated(q, k, v):
        out = attention(q, k, v, scale, causal)
        if bool(out.sum().isfinite()):
            return out
    if _all_finite(v) or (not causal and not can_sync(v)):  # without causality every query sees it, without our help
        return attention(q, k, v, scale, causal)
    finite = v.isfinite()
    affected = (~finite).cumsum(dim=-2) > 0 if causal else (~finite).any(dim=-2, keepdim=True)
    return torch.where(affected, float("nan"), attention(q, k, torch.where(finite, v, 0.0), scale, causal))


def _kernel(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, by_heads: bool | None = None) -> Tensor:
    """torch's attention as (N, 1, L, D), which all its kernels take; `by_heads` (causal on a GPU) as (N, H, L, D)."""
    if not causal and q.dim() == k.dim() == v.dim() > 2 and k.shape[-3] == v.shape[-3] == 1 < q.shape[-3]:
        # Heads that share keys, as more queries of one head: the keys need not be copied for each.
        return _kernel(q.flatten(-3, -2).unsqueeze(-3), k, v, scale, causal).squeeze(-3).unflatten(-2, q.shape[-3:-1])
    lead = common_lead(q, k, v)
    # Heads that lie between the positions, as a language model has them, would be copied to become batch entries.
    by_heads = causal and q.is_cuda if by_heads is None else by_heads
    heads = lead[-1] if by_heads and len(lead) > 1 else 1
    flat = [tensor.expand(*lead, *tensor.shape[-2:]) for tensor in (q, k, v)]
    flat = [tensor.reshape(-1, heads, *tensor.shape[-2:]) for tensor in flat]
    parts = [
        scaled_dot_product_attention(*part, is_causal=causal, scale=scale)
        for part in zip(*(tensor.split(MAX_BATCH) for tensor in flat), strict=True)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(*lead, *out.shape[-2:])


def _few_keys(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The same by plain operations."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(wide) @ k.to(wide).transpose(-1, -2)) * scale
    seen = scores != float("-inf")
    if causal:
        seen = seen & Positions.of(scores).past()
    return (Softmax().weights(scores, seen) @ v.to(wide)).to(q.dtype)
