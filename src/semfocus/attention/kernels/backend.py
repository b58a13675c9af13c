"""The kernels as one backend of `attend`: `short` for short sequences, `long` for top-k over long ones."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.short.configs import MAX_HEAD_DIM
from semfocus.attention.kernels.short.dispatch import is_served, refuses_call, short, short_refuses

SERVED = ("topk",)  # mechanisms that `long` is written for
MIN_LONG_KEYS = 1024  # from here on `long` takes half the time of `short` at twice the k
MAX_LONG_LENGTH = 131_072  # positions that `long` serves
MAX_KEPT_KEYS = 64  # that `long` selects for a query, and as many sinks and window keys


def triton(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Attention of a call that `triton_refuses` does not refuse."""
    if short_refuses(inputs, want_info) is None and not (
        _suits_long(inputs) and long_refuses(inputs, want_info) is None
    ):
        return short(inputs, want_info)
    from semfocus.attention.kernels.long.dispatch import long

    return long(inputs, want_info)


def _suits_long(inputs: AttentionInputs) -> bool:
    """Whether `long` is faster although `short` may serve too (docs/kernels.md): half-precision top-k."""
    return inputs.q.dtype != torch.float32 and inputs.num_keys >= MIN_LONG_KEYS


def triton_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why no kernel can serve a call; None if one can."""
    short_reason, long_reason = short_refuses(inputs, want_info), long_refuses(inputs, want_info)
    if short_reason is None or long_reason is None:
        return None
    return long_reason if is_served(inputs.mechanism, SERVED) else short_reason  # of top-k `long` serves more


def long_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why `long` cannot serve a call; None if it can."""
    mechanism, rows = inputs.mechanism, max(inputs.num_keys, inputs.num_queries)
    if not is_served(mechanism, SERVED):
        return f"in rows of {rows} it computes top-k attention only, not {mechanism}"
    if max(min(mechanism.size or 0, inputs.num_keys), mechanism.num_sinks + mechanism.num_nearest) > MAX_KEPT_KEYS:
        return (
            f"it keeps at most {MAX_KEPT_KEYS} keys by score and {MAX_KEPT_KEYS} sinks and window keys, not {mechanism}"
        )
    width = max(inputs.q.shape[-1], inputs.v.shape[-1])
    if width > MAX_HEAD_DIM:
        return f"heads are at most {MAX_HEAD_DIM} wide, not {width}"
    if rows > MAX_LONG_LENGTH or inputs.lead.numel() * rows >= 2**31:
        return f"rows are at most {MAX_LONG_LENGTH} long, and fewer than 2^31 in all"
    if not inputs.scale > 0:
        return f"scale = {inputs.scale!r} is not positive, so that the order of products is not that of scores"
    return refuses_call(inputs)
