"""Banded and block-local attention at a cost of O(L w), global tokens included."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from semfocus.attention.chunked import chunked
from semfocus.attention.dense import dense, fused
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo


def local(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Aligned blocks as one batch of small full attentions; other patterns as a list of keys for each query."""
    mechanism = inputs.mechanism
    plain = not inputs.restricted and inputs.dropout_seed is None and inputs.num_queries == inputs.num_keys
    plain = plain and inputs.normaliser.is_softmax and inputs.softcap is None and inputs.sinks is None
    if mechanism.keeps_blocks and mechanism.size is not None and plain and not want_info and inputs.v.shape[-1]:
        return _blocks(inputs, mechanism.size), None
    out, info = chunked(inputs, want_info)
    num_globals = min(mechanism.num_globals, inputs.num_queries)
    if num_globals:
        # The last queries keep every key; there are few of them, so they are computed densely.
        global_out, _ = dense(inputs.last(num_globals))
        out = torch.cat([out[..., :-num_globals, :], global_out], dim=-2)
    return out, info


def _blocks(inputs: AttentionInputs, width: int) -> Tensor:
    """(*lead, L, Dv): whole blocks as a batch, then the short last one, then global queries; all see global keys."""
    q, k, v = inputs.q, inputs.k, inputs.v
    own = max(inputs.num_keys - inputs.mechanism.num_globals, 0)
    whole = own - own % width

    def stacked(tensor: Tensor, with_globals: bool) -> Tensor:
        blocks = tensor[..., :whole, :].unflatten(-2, (whole // width, width))
        if not with_globals or own == inputs.num_keys:
            return blocks
        shared = tensor[..., None, own:, :].expand(*blocks.shape[:-2], -1, -1)
        return torch.cat([blocks, shared], dim=-2)

    attention = partial(fused, scale=inputs.scale, assume_finite=inputs.assume_finite)
    parts = []
    if whole:
        out = attention(stacked(q, False), stacked(k, True), stacked(v, True))
        parts.append(out.flatten(-3, -2))
    if whole < own:
        parts.append(attention(q[..., whole:own, :], k[..., whole:, :], v[..., whole:, :]))
    if own < inputs.num_keys:
        parts.append(attention(q[..., own:, :], k, v))
    return torch.cat(parts, dim=-2) if len(parts) != 1 else parts[0]
