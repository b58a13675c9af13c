"""Calls of `attend` like an earlier one: what was decided for that one serves again.

A step of decoding calls `attend` in each layer with the same few shapes, token after token, and to check arguments and
choose kernels takes longer than the kernels do. So plain calls with few queries are looked up by all that decides; only
the number of keys may differ, within bounds, as it grows with the cache. A call that differs in anything else takes
the long way, which finds what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from semfocus.attention.backends import BACKENDS, Backend
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.kernels.backend import decode_bounds, triton
from semfocus.attention.kernels.regimes import MAX_DECODE_QUERIES
from semfocus.attention.mechanisms import Mechanism, TopK
from semfocus.attention.normalisers import Normaliser, Softmax
from semfocus.counter_rng import is_traced

MAX_KNOWN = 256
WHOLE = (torch.int32, torch.int64)

Direct = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor | None]
_known: dict[Hashable, tuple[Backend, Direct]] = {}


def key_of(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism | str, normaliser: Normaliser | str, causal: bool,
    mask: Tensor | None, lengths: Tensor | None, scale: float | None, enable_gqa: bool, backend: str | None,
) -> Hashable | None:  # fmt: skip
    """What decides about a call beside the number of keys; None for calls that are not looked up."""
    if torch.compiler.is_compiling() or not (_is_plain(q) and _is_plain(k) and _is_plain(v)) or is_traced():
        return None
    shape, of_keys, of_values, device, dtype = q.shape, k.shape, v.shape, q.device, q.dtype
    if shape[2] > MAX_DECODE_QUERIES or of_keys[:3] != of_values[:3] or of_keys[0] != shape[0]:
        return None
    if not (k.device == v.device == device) or not (k.dtype == v.dtype == dtype):
        return None
    if type(normaliser) is not Softmax or type(mechanism) not in (TopK, str):
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return None
    if device.type not in ("cuda", "cpu") or torch.is_autocast_enabled(device.type):
        return None
    if mask is not None and (
        type(mask) is not Tensor or mask.dtype != torch.bool or mask.dim() != 4 or mask.device != device
        or mask.is_nested or mask.layout is not torch.strided
    ):  # fmt: skip
        return None
    if lengths is not None and (
        type(lengths) is not Tensor or lengths.dtype not in WHOLE or lengths.shape != shape[:1]
        or lengths.device != device
    ):  # fmt: skip
        return None
    return (
        shape, of_keys[1], of_keys[3], of_values[3], dtype, device, mechanism, causal, scale, enable_gqa, backend,
        mask is None, lengths is None,
    )  # fmt: skip


def _is_plain(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor with heads, in the order of its memory."""
    return (
        type(tensor) is Tensor and not tensor.is_nested and tensor.layout is torch.strided and tensor.dim() == 4
        and tensor.is_contiguous()
    )  # fmt: skip


def recalled(
    key: Hashable, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None
) -> Tensor | None:
    """The answer to a call like an earlier one; None where it has to take the long way."""
    known = _known.get(key)
    if known is None or BACKENDS.get("triton") is not known[0]:
        return None
    return known[1](q, k, v, mask, lengths)


def remember(key: Hashable, inputs: AttentionInputs) -> None:
    """Keep what was decided for a call that ran by the backend `triton`, if calls like it may be recalled."""
    bounds = decode_bounds(inputs)
    if bounds is None or BACKENDS["triton"].run is not triton:
        return
    from semfocus.attention.kernels.decode.direct import DirectCall

    if len(_known) >= MAX_KNOWN:
        _known.clear()
    _known[key] = BACKENDS["triton"], DirectCall.of(inputs, *bounds)
