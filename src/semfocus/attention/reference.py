"""The oracle: every pair of query and key on its own, step by step as the definition reads. Slow on purpose."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.base import SelectionInputs
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo, info_from_mask


def reference(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Scores, then the kept keys, then their weights, then the weighted sum of their values.

    A kept value that is not finite makes its channel of that query's output NaN; one that is not kept has no effect.
    """
    q, k, v = (tensor.to(inputs.compute_dtype) for tensor in (inputs.q, inputs.k, inputs.v))
    scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(dim=-1) * inputs.scale  # (.., Lq, Lk)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    if inputs.bias is not None:
        scores = scores + inputs.bias
    scores = scores.expand(*inputs.lead, *scores.shape[-2:])
    positions = inputs.positions()
    call = inputs.selection(scores, q, k, positions)
    keep = inputs.mechanism.choose(call).expand(scores.shape)
    weights = _weights(inputs, scores, keep, call)
    info = info_from_mask(scores, keep, weights, inputs.mechanism.max_kept(inputs.num_keys)) if want_info else None
    if inputs.straight_through:
        everything = positions.allowed(scores != float("-inf"), inputs.valid(), inputs.causal)
        soft = _weights(inputs, scores, everything, call)
        weights = soft + (weights - soft).detach()
    weights = inputs.dropout(weights, positions, positions.key_index)
    finite = v.isfinite().unsqueeze(-3)
    values = torch.where(keep.unsqueeze(-1) & finite, v.unsqueeze(-3), 0.0)
    if inputs.straight_through:  # the gradient of the soft weights needs the values of all keys
        values = torch.where(finite, v.unsqueeze(-3), 0.0)
    out = (weights.unsqueeze(-1) * values).sum(dim=-2)
    not_finite = (keep.unsqueeze(-1) & ~finite).any(dim=-2)
    return torch.where(not_finite, float("nan"), out).to(inputs.q.dtype), info


def _weights(inputs: AttentionInputs, scores: Tensor, keep: Tensor, call: SelectionInputs) -> Tensor:
    """The weights of the kept keys. A sink is one more column of the softmax, and then taken out."""
    if inputs.sinks is None:
        return inputs.normaliser.weigh(scores, keep, call)
    sinks = inputs.sinks.expand(*scores.shape[:-1], 1)
    columns = torch.cat([torch.where(keep, scores, float("-inf")), sinks], dim=-1)
    return torch.where(keep, columns.softmax(dim=-1)[..., :-1], 0.0)
