"""The kernels as one backend of `attend`: short rows by `short`, top-k over long rows by `long`."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.info import AttentionInfo
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.kernels.short.dispatch import is_served, refuses_call, short, short_refuses

SERVED = ("topk",)  # mechanisms that `long` is written for
WORTHWHILE = 1024  # keys for which `long` does in half the time, at twice the k, what `short` does
MOST_KEYS, WIDEST, LONGEST = 64, 128, 131_072  # of `long`: by score a query, of a head, of a row


def triton(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """A problem that `triton_refuses` does not refuse."""
    if short_refuses(inputs, want_info) is None and not (
        _suits_long(inputs) and long_refuses(inputs, want_info) is None
    ):
        return short(inputs, want_info)
    from semfocus.attention.kernels.long.dispatch import long

    return long(inputs, want_info)


def _suits_long(inputs: AttentionInputs) -> bool:
    """Whether the kernels for long rows do shorter ones faster too (docs/kernels.md): half-precision top-k."""
    return inputs.q.dtype != torch.float32 and inputs.num_keys >= WORTHWHILE


def triton_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why no kernel can serve a problem; None if one can."""
    reason, wider = short_refuses(inputs, want_info), long_refuses(inputs, want_info)
    if reason is None or wider is None:
        return None
    return wider if is_served(inputs.mechanism, SERVED) else reason  # of top-k those for long rows serve more


def long_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why the kernels for long rows cannot serve a problem; None if they can."""
    mechanism, rows = inputs.mechanism, max(inputs.num_keys, inputs.num_queries)
    if not is_served(mechanism, SERVED):
        return f"in rows of {rows} it computes top-k attention only, not {mechanism}"
    if max(min(mechanism.size or 0, inputs.num_keys), mechanism.num_sinks + mechanism.num_nearest) > MOST_KEYS:
        return f"it keeps at most {MOST_KEYS} keys by score and {MOST_KEYS} sinks and window keys, not {mechanism}"
    width = max(inputs.q.shape[-1], inputs.v.shape[-1])
    if width > WIDEST:
        return f"heads are at most {WIDEST} wide, not {width}"
    if rows > LONGEST or inputs.lead.numel() * rows >= 2**31:
        return f"rows are at most {LONGEST} long, and fewer than 2^31 in all"
    if not inputs.scale > 0:
        return f"scale = {inputs.scale!r} is not positive, so that the order of products is not that of scores"
    return refuses_call(inputs)
