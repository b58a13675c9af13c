"""The kernels as one backend of `attend`: `short` for short sequences; for top-k also `long`, `threshold`, `decode`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.regimes import MAX_DECODE_QUERIES, REGIMES, Regime
from semfocus.attention.kernels.short.configs import MAX_HEAD_DIM
from semfocus.attention.kernels.short.dispatch import is_served, refuses_call, short, short_refuses
from semfocus.attention.kernels.threshold.configs import MAX_THRESHOLD_HEAD_DIM

SERVED = ("topk",)  # mechanisms that the kernels for long rows are written for
MAX_LONG_LENGTH = 131_072  # positions of a row
MAX_DECODE_KEPT_KEYS = 2048
MAX_KEPT_KEYS = 64  # that `long` selects for a query, and as many sinks and window keys


def triton(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Attention of a call that `triton_refuses` does not refuse."""
    name = choose_kernels(inputs, want_info)
    if name == "long":
        from semfocus.attention.kernels.long.dispatch import long

        return long(inputs, want_info)
    if name == "threshold":
        from semfocus.attention.kernels.threshold.dispatch import threshold

        return threshold(inputs, want_info)
    if name == "decode":
        from semfocus.attention.kernels.decode.dispatch import decode

        return decode(inputs, want_info)
    return short(inputs, want_info)


def explain_kernels(inputs: AttentionInputs, want_info: bool = False) -> dict[str, str]:
    """For each family of kernels why it computes a call, or does not."""
    chosen = choose_kernels(inputs, want_info)
    fitting = list(_fitting(inputs)) if is_served(inputs.mechanism, SERVED) else []
    reasons = {}
    for name, refuses in REFUSALS.items():
        refused = refuses(inputs, want_info)
        if refused is not None:
            reasons[name] = f"cannot: {refused}"
        elif name == chosen:
            rows = [f": {regime.why}" for regime in fitting if regime.kernels == name][:1]
            reasons[name] = f"runs{''.join(rows)}"
        else:
            reasons[name] = "it can; the table of regimes prefers the other"
    return reasons


def choose_kernels(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """The kernels that compute a call, by the table of regimes; None where none can serve."""
    if not is_served(inputs.mechanism, SERVED):
        return "short" if short_refuses(inputs, want_info) is None else None
    for name in chain((regime.kernels for regime in _fitting(inputs)), REFUSALS):  # at last whatever can serve
        if name == "decode" and _wants_grad(inputs) and _decode_refuses_sizes(inputs) is None:
            name = "threshold"  # which keeps the same keys, by the same bits, and has a gradient
        if REFUSALS[name](inputs, want_info) is None:
            return name
    return None


def _wants_grad(inputs: AttentionInputs) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (inputs.q, inputs.k, inputs.v))


def _fitting(inputs: AttentionInputs) -> Iterator[Regime]:
    """The rows of the table of regimes that a call of top-k attention fits, in order."""
    mechanism = inputs.mechanism
    kept = max(min(mechanism.size or 0, inputs.num_keys), mechanism.num_sinks + mechanism.num_nearest)
    size = kept, inputs.num_keys, inputs.num_queries, 8 * inputs.q.element_size()
    return (regime for regime in REGIMES if regime.fits(*size))


def triton_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why no kernel can serve a call; None if one can."""
    if choose_kernels(inputs, want_info) is not None:
        return None
    served = is_served(inputs.mechanism, SERVED)
    return threshold_refuses(inputs, want_info) if served else short_refuses(inputs, want_info)


def long_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why `long` cannot serve a call; None if it can."""
    mechanism = inputs.mechanism
    if not is_served(mechanism, SERVED):
        return _topk_only(inputs)
    by_score, fixed = min(mechanism.size or 0, inputs.num_keys), mechanism.num_sinks + mechanism.num_nearest
    if max(by_score, fixed) > MAX_KEPT_KEYS:
        return (
            f"it keeps at most {MAX_KEPT_KEYS} keys by score and {MAX_KEPT_KEYS} sinks and window keys, not {mechanism}"
        )
    pairs = inputs.lead.numel() * inputs.num_queries * (by_score + fixed)
    if pairs >= 2**31:
        return f"it numbers kept pairs by 32 bits, and there are {pairs}"
    return _refuses_row(inputs, MAX_HEAD_DIM)


def threshold_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why `threshold` cannot serve a call; None if it can."""
    if not is_served(inputs.mechanism, SERVED):
        return _topk_only(inputs)
    # Three products of float32 operands as wide as 256 would leave no registers for scores.
    wide = inputs.q.dtype == torch.float32
    return _refuses_row(inputs, MAX_HEAD_DIM if wide else MAX_THRESHOLD_HEAD_DIM)


def decode_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why `decode` cannot serve a call; None if it can."""
    if not is_served(inputs.mechanism, SERVED):
        return _topk_only(inputs)
    return "it has no backward pass" if _wants_grad(inputs) else _decode_refuses_sizes(inputs)


def _decode_refuses_sizes(inputs: AttentionInputs) -> str | None:
    """Why `decode` cannot serve a call of top-k attention, were no gradient wanted."""
    mechanism = inputs.mechanism
    if inputs.num_queries > MAX_DECODE_QUERIES:
        return f"it takes at most {MAX_DECODE_QUERIES} queries a head, not {inputs.num_queries}"
    if inputs.dropout_seed is not None:
        return "it has no dropout"
    if min(mechanism.size or 0, inputs.num_keys) > MAX_DECODE_KEPT_KEYS:
        return f"it keeps at most {MAX_DECODE_KEPT_KEYS} keys, not {mechanism}"
    if mechanism.num_sinks or mechanism.num_nearest:
        return f"it keeps keys by score alone, not the sinks or window of {mechanism}"
    return _refuses_row(inputs, MAX_HEAD_DIM)


def decode_bounds(inputs: AttentionInputs) -> tuple[int, int] | None:
    """From how many keys to how many a call like this one is for `decode`, all else being equal; None for none."""
    fitting = next(_fitting(inputs), None) if is_served(inputs.mechanism, SERVED) else None
    if fitting is None or fitting.kernels != "decode" or choose_kernels(inputs) != "decode":
        return None
    # Rows above in the table may fit at other numbers of keys; and with fewer than k another number is kept.
    above = [regime.max_keys + 1 for regime in REGIMES[: REGIMES.index(fitting)]]
    most = min(fitting.max_keys, MAX_LONG_LENGTH, (2**31 - 1) // inputs.lead.numel())
    return max(fitting.min_keys, inputs.mechanism.size or 0, *above), most


def _topk_only(inputs: AttentionInputs) -> str:
    rows = max(inputs.num_keys, inputs.num_queries)
    return f"in rows of {rows} it computes top-k attention only, not {inputs.mechanism}"


def _refuses_row(inputs: AttentionInputs, max_width: int) -> str | None:
    """Why no kernel for long rows can serve a call of top-k attention; None if one may."""
    rows, width = max(inputs.num_keys, inputs.num_queries), max(inputs.q.shape[-1], inputs.v.shape[-1])
    if width > max_width:
        return f"heads are at most {max_width} wide, not {width}"
    if rows > MAX_LONG_LENGTH or inputs.lead.numel() * rows >= 2**31:
        return f"rows are at most {MAX_LONG_LENGTH} long, and fewer than 2^31 in all"
    if not inputs.scale > 0:
        return f"scale = {inputs.scale!r} is not positive, so that the order of products is not that of scores"
    return refuses_call(inputs)


def serves_any_k(inputs: AttentionInputs) -> bool:
    """Whether the cost of the kernels hardly depends on how many keys a query keeps."""
    return is_served(inputs.mechanism, SERVED)


REFUSALS = {
    "short": short_refuses,
    "long": long_refuses,
    "threshold": threshold_refuses,
    "decode": decode_refuses,
}
