"""Full attention through torch's own fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus.attention.info import AttentionInfo
from semfocus.attention.inputs import AttentionInputs, common_lead

MAX_BATCH = 2**16 - 1  # torch's CUDA kernels raise an error for a larger batch


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
