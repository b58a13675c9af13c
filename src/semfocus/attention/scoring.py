"""What models do to their scores besides scaling: caps, and sinks that take part of the weight.

    score' = softcap tanh(score / softcap)                    before a float mask is added: Gemma 2, arXiv 2408.00118
    weight = exp(score) / (exp(sink) + sum over the kept keys of exp(score))    gpt-oss: one learned logit a head

Such a sink is no key: it has no value, and no mechanism keeps or drops it. The `sinks` of `TopK(8, sinks=4)` are keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from semfocus.attention.normalisers import Normaliser
from semfocus.attention.pairs import broadcasts
from semfocus.errors import UsageError


def check_softcap(softcap: float | None) -> float | None:
    """A cap as every backend takes it; UsageError for what is no positive finite number."""
    if softcap is None:
        return None
    is_number = isinstance(softcap, (int, float)) and not isinstance(softcap, bool)
    if not is_number or not math.isfinite(softcap) or not softcap > 0:
        raise UsageError(f"softcap = {softcap!r} must be a positive finite number, or None for scores without a cap")
    return float(softcap)


def check_sinks(
    sinks: Tensor | None, normaliser: Normaliser, lead: torch.Size, device: torch.device, dtype: torch.dtype
) -> Tensor | None:
    """Logits (..., H) as every backend takes them: (..., H, 1, 1) in the dtype of computation."""
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        given = sinks.dtype if isinstance(sinks, Tensor) else type(sinks).__name__
        raise TypeError(
            f"sinks has dtype {given}; it must be a floating tensor, one logit a head (for keys that are always kept "
            "write TopK(8, sinks=4))"
        )
    if sinks.device != device:
        raise UsageError(f"q and sinks differ in device: {device} and {sinks.device}; move one of them")
    if not broadcasts(sinks.shape, lead):
        raise UsageError(f"sinks has shape {tuple(sinks.shape)}, which does not broadcast to (..., H) = {tuple(lead)}")
    if not normaliser.is_softmax:
        raise UsageError(
            f"normaliser {normaliser} cannot serve sinks, which take weight in a softmax; use softmax, or no sinks"
        )
    return sinks.to(dtype)[..., None, None]


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores within +-softcap."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def cap_slope(scores: Tensor, softcap: float) -> Tensor:
    """The derivative of `capped`, from the capped scores."""
    return 1 - (scores / softcap).square()


def softmax_with_sinks(scores: Tensor, keep: Tensor, sinks: Tensor) -> Tensor:
    """(..., Lq, Lk) weights over the kept keys, which sum to less than 1; a query without keys: zeros."""
    if not scores.shape[-1]:
        return scores.expand(torch.broadcast_shapes(scores.shape, keep.shape))
    kept = torch.where(keep, scores, float("-inf"))
    top = torch.maximum(kept.detach().amax(dim=-1, keepdim=True), sinks.detach())
    weights = torch.where(keep, (torch.where(keep, scores, top) - top).exp(), 0.0)
    return weights / (weights.sum(dim=-1, keepdim=True) + (sinks - top).exp())


def share_of_keys(lse: Tensor, sinks: Tensor) -> Tensor:
    """(..., Lq, 1): the part of the weight that a sink (..., 1, 1) leaves to keys whose log-sum-exp is (..., Lq)."""
    return torch.sigmoid(lse.unsqueeze(-1) - sinks)


def leave_to_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The output (..., Lq, Dv) with sinks, from that without; channels that are not finite stay as they are."""
    finite = out.isfinite()
    shared = torch.where(finite, out, 0.0).to(lse.dtype) * share_of_keys(lse, sinks)
    return torch.where(finite, shared.to(out.dtype), out)
