"""Attention over up to 1024 positions by Triton kernels, for whole cohorts of small models at once.

    out, info = short(inputs, want_info)        where short_refuses(inputs, want_info) is None

Full, banded and block-local attention; top-k and bottom-k with up to 16 keys (64 for up to 64 positions). Products have
float32 accuracy unless TF32 is allowed; the selection is exact on the scores that they give.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.chunked import listed_info, ordered
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.short.configs import MAX_HEAD_DIM, MAX_LISTED_KEYS, MAX_SHORT_LENGTH
from semfocus.attention.kernels.short.ops import plan, short_attention
from semfocus.attention.mechanisms import Mechanism, is_registered
from semfocus.attention.selection import in_functorch

SERVED = ("full", "banded", "block_local", "topk", "bottomk")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OLDEST_TRITON = (3, 6)


def short(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Attention of a call that `short_refuses` does not refuse."""
    lead, mechanism = inputs.lead, inputs.mechanism
    out, kept, lse, _ = short_attention(
        inputs.q.expand(*lead, *inputs.q.shape[-2:]),
        inputs.k,
        inputs.v,
        inputs.mask,
        inputs.lengths,
        inputs.dropout_seed,
        str(mechanism),
        inputs.causal,
        inputs.scale,
        inputs.dropout_p,
        not inputs.assume_finite,
        torch.backends.cuda.matmul.allow_tf32,
    )
    if not want_info:
        return out, None
    if plan(inputs.num_queries, inputs.num_keys, mechanism) == "whole":
        indices = _from_bits(kept, inputs.num_keys)
    else:
        indices = ordered(kept.transpose(-1, -2).long(), inputs.num_keys)
    return out, listed_info(inputs, indices[..., : mechanism.max_kept(inputs.num_keys)], lse)


def _from_bits(words: Tensor, keys: int) -> Tensor:
    """(*lead, Lq, Lk): the kept keys of words (*lead, words, Lq) in increasing order, then -1."""
    column = torch.arange(keys, device=words.device)
    bits = words.transpose(-1, -2).index_select(-1, column // 32) >> (column % 32).to(torch.int32) & 1
    return ordered(torch.where(bits != 0, column, -1), keys)


def is_served(mechanism: Mechanism, names: tuple[str, ...]) -> bool:
    """Whether a mechanism is the one registered under one of these names: a subclass may choose other keys."""
    return mechanism.name in names and is_registered(mechanism)


def short_refuses(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why these kernels cannot serve a call; None if they can."""
    return _refuses_mechanism(inputs, want_info) or _refuses_sizes(inputs) or refuses_call(inputs)


def _refuses_mechanism(inputs: AttentionInputs, want_info: bool) -> str | None:
    mechanism = inputs.mechanism
    long = max(inputs.num_queries, inputs.num_keys)
    if not is_served(mechanism, SERVED):
        return f"there is no kernel for {mechanism}"
    if mechanism.is_ranked:
        if plan(inputs.num_queries, inputs.num_keys, mechanism) == "listed":
            if min(mechanism.size or 0, inputs.num_keys) > MAX_LISTED_KEYS:
                return f"of rows of {long} it lists at most {MAX_LISTED_KEYS} keys a query, not {mechanism.size}"
            if mechanism.num_sinks or mechanism.num_nearest:
                return f"in rows of {long} it lists keys by score alone, not the sinks or window of {mechanism}"
    elif want_info:
        return "it cannot tell what it kept by position (return_info)"
    return None


def _refuses_sizes(inputs: AttentionInputs) -> str | None:
    if max(inputs.num_queries, inputs.num_keys) > MAX_SHORT_LENGTH:
        return f"rows are at most {MAX_SHORT_LENGTH} long, not {max(inputs.num_queries, inputs.num_keys)}"
    width = max(inputs.q.shape[-1], inputs.v.shape[-1])
    return f"heads are at most {MAX_HEAD_DIM} wide, not {width}" if width > MAX_HEAD_DIM else None


def refuses_call(inputs: AttentionInputs) -> str | None:
    """Why no kernel can serve a call, whatever its sizes; None if one may."""
    if not inputs.normaliser.is_softmax:
        return f"it computes softmax only, not {inputs.normaliser.name}"
    if inputs.straight_through:
        return "straight_through needs the weights of dropped keys"
    if inputs.bias is not None:
        return "a float mask is left to the dense backend"
    if in_functorch():
        return "torch.func needs plain tensor operations"
    if inputs.q.dtype not in DTYPES:
        return f"it computes float32, float16 and bfloat16, not {inputs.q.dtype}"
    if 0 in (inputs.num_keys, inputs.num_queries, inputs.lead.numel(), inputs.v.shape[-1]):
        return "there is nothing to compute"
    return refuses_device(inputs.q.device)


@torch.compiler.assume_constant_result
def refuses_device(device: torch.device) -> str | None:
    """Why no kernel runs on a device: Triton is missing or too old, or the device is unsupported; None if one may."""
    try:
        import triton
    except ImportError as missing:
        return f"Triton is not to be had ({missing}); install the extra semfocus[gpu]"
    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return f"its kernels need Triton {oldest} or newer, not {triton.__version__}; install the extra semfocus[gpu]"
    from semfocus.attention.kernels.shared import INTERPRETED

    if INTERPRETED.value:
        return None if device.type in ("cpu", "cuda") else f"Triton's interpreter does not reach {device.type}"
    if device.type != "cuda":
        return f"its kernels run on CUDA devices, not on {device.type} (with TRITON_INTERPRET=1, slowly, anywhere)"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 8 else f"its products need compute capability 8.0, not {major}.{minor}"
