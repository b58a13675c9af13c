"""Full attention through torch's own fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus.attention.info import AttentionInfo
from semfocus.attention.inputs import AttentionInputs, common_lead

MOST_ROWS = 2**16 - 1  # that torch's CUDA kernels take at once; more is an error there


def sdpa(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Softmax over every key, or over every key up to the query's own."""
    q, k, v = inputs.q, inputs.k, inputs.v
    if not inputs.causal:
        return fused(q, k, v, inputs.scale), None
    # A value that is not finite must spoil only the rows that see it: those from its own position on.
    finite = v.isfinite()
    spoiled = (~finite).cumsum(dim=-2) > 0
    out = fused(q, k, torch.where(finite, v, 0.0), inputs.scale, causal=True)
    return torch.where(spoiled, float("nan"), out), None


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """torch's attention over any broadcastable batch dimensions: as (N, 1, L, D), which all its kernels take."""
    lead = common_lead(q, k, v)
    rows = [tensor.expand(*lead, *tensor.shape[-2:]).reshape(-1, 1, *tensor.shape[-2:]) for tensor in (q, k, v)]
    parts = [
        scaled_dot_product_attention(*part, is_causal=causal, scale=scale)
        for part in zip(*(tensor.split(MOST_ROWS) for tensor in rows), strict=True)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(*lead, *out.shape[-2:])
