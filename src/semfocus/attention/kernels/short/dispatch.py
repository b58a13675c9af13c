"""Attention over up to 1024 positions by Triton kernels, for whole cohorts of small models at once.

    out, info = short(inputs, want_info)        where short_refuses(inputs, want_info) is None

Full, banded and block-local attention; top-k and bottom-k with up to 16 keys (64 for up to 64 positions). Products have
float32 accuracy unless TF32 is allowed; the selection is exact on the scores that they give.

The kernels are torch custom operators with fake results and gradients, opaque to torch.compile and CUDA graphs. Nothing
here synchronises with the device or creates tensors on the host. Triton is imported at the first launch.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from semfocus.attention.chunked import listed_info
from semfocus.attention.inputs import AttentionInputs, common_lead
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kept_keys import ordered
from semfocus.attention.kernels.eager import choose_way
from semfocus.attention.kernels.short.arguments import empty_like_layout
from semfocus.attention.kernels.short.configs import MAX_HEAD_DIM, MAX_LISTED_KEYS, MAX_SHORT_LENGTH, MAX_WHOLE_LENGTH
from semfocus.attention.mechanisms import Mechanism, is_registered
from semfocus.attention.mechanisms import parse_mechanism as parse_any_mechanism
from semfocus.counter_rng import in_functorch

SERVED = ("full", "banded", "block_local", "topk", "bottomk")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OLDEST_TRITON = (3, 6)
parse_mechanism = lru_cache(maxsize=256)(parse_any_mechanism)  # several times a call, of the few names above


def short(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Attention of a call that `short_refuses` does not refuse."""
    lead, mechanism = inputs.lead, inputs.mechanism
    run = choose_way(short_attention, _Eager, launch_forward, inputs.q, inputs.k, inputs.v)
    out, kept, lse, _ = run(
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
    return short_refuses_form(inputs, want_info) or refuses_device(inputs.q.device)


def short_refuses_form(inputs: AttentionInputs, want_info: bool = False) -> str | None:
    """Why these kernels cannot serve a call on any device, nor on `meta`; None if on some they can."""
    return _refuses_mechanism(inputs, want_info) or _refuses_sizes(inputs) or _refuses_form(inputs)


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
    return _refuses_form(inputs) or refuses_device(inputs.q.device)


def _refuses_form(inputs: AttentionInputs) -> str | None:
    if not inputs.normaliser.is_softmax:
        return f"it computes softmax only, not {inputs.normaliser.name}"
    if inputs.straight_through:
        return "straight_through needs the weights of dropped keys"
    if inputs.softcap is not None:
        return "capped scores (softcap) are left to the other backends"
    if inputs.sinks is not None:
        return "sinks that take weight are left to the other backends"
    if inputs.bias is not None:
        return "a float mask is left to the dense backend"
    if inputs.k_positions is not None:
        return "explicit positions are left to the other backends"
    if in_functorch():
        return "torch.func needs plain tensor operations"
    if inputs.q.dtype not in DTYPES:
        return f"it computes float32, float16 and bfloat16, not {inputs.q.dtype}"
    if 0 in (inputs.num_keys, inputs.num_queries, inputs.lead.numel(), inputs.v.shape[-1]):
        return "there is nothing to compute"
    return None


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


def plan(queries: int, keys: int, mechanism: Mechanism) -> str:
    """Which kernels: whole (up to 64 positions), else listed (keys selected by score) or tiled (by position)."""
    if max(queries, keys) <= MAX_WHOLE_LENGTH:
        return "whole"
    return "listed" if mechanism.is_ranked else "tiled"


@torch.library.custom_op("semfocus::short_attention", mutates_args=())
def short_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, dropout_seed: Tensor | None,
    mechanism: str, causal: bool, scale: float, dropout_p: float, check_finite: bool, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (*lead, Lq, Dv), kept keys, log-sum-exp (*lead, Lq) and saved numbers; q has all the leading dimensions.

    whole     kept (*lead, words, Lq) int32: a bit for each key
    listed    kept (*lead, k, Lq) int32: indices, lowest first, -1 for none; saved: their weights before dropout
    tiled     saved (*lead, 2, Lq): the largest score, and one over the sum of exp(score - largest)
    Empty where a kernel keeps nothing. Output and log-sum-exp are differentiable.
    """
    return launch_forward(
        q, k, v, mask, lengths, dropout_seed, mechanism, causal, scale, dropout_p, check_finite, tf32
    )  # fmt: skip


def launch_forward(
    q, k, v, mask, lengths, dropout_seed, mechanism, causal, scale, dropout_p, check_finite, tf32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`short_attention` without the dispatcher."""
    from semfocus.attention.kernels.short import launch

    results = empty_results(q, k, v, parse_mechanism(mechanism))
    call = launch.Call(q, k, v, mask, lengths, dropout_seed, parse_mechanism(mechanism), causal, scale, dropout_p, tf32)
    call.forward(*results, check_finite)
    return results


@short_attention.register_fake
def _(q, k, v, mask, lengths, dropout_seed, mechanism, causal, scale, dropout_p, check_finite, tf32):
    return empty_results(q, k, v, parse_mechanism(mechanism))


def empty_results(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialised results of `short_attention`; the output has the dtype of q unless another is given."""
    return empty_like_layout(q, [*q.shape[:-1], v.shape[-1]], dtype), *empty_saved(q, k, mechanism)


def empty_saved(q: Tensor, k: Tensor, mechanism: Mechanism) -> tuple[Tensor, Tensor, Tensor]:
    """The same without the output."""
    lead, queries, keys = q.shape[:-2], q.shape[-2], k.shape[-2]
    kind = plan(queries, keys, mechanism)
    kept, saved = [0], [*lead, 2, queries] if kind == "tiled" else [0]
    if mechanism.is_ranked:
        entries = -(-keys // 32) if kind == "whole" else min(mechanism.size or 0, keys)
        kept = [*lead, entries, queries]
        saved = kept if kind == "listed" else saved
    return (
        q.new_empty(kept, dtype=torch.int32),
        q.new_empty([*lead, queries], dtype=torch.float32),
        q.new_empty(saved, dtype=torch.float32),
    )


@torch.library.custom_op("semfocus::short_attention_backward", mutates_args=())
def short_attention_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
    lengths: Tensor | None, dropout_seed: Tensor | None, out: Tensor, kept: Tensor, saved: Tensor,
    mechanism: str, causal: bool, scale: float, dropout_p: float, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v over the kept pairs."""
    return launch_backward(
        grad, grad_lse, q, k, v, mask, lengths, dropout_seed, out, kept, saved, mechanism, causal, scale, dropout_p,
        tf32,
    )  # fmt: skip


def launch_backward(
    grad, grad_lse, q, k, v, mask, lengths, dropout_seed, out, kept, saved, mechanism, causal, scale, dropout_p, tf32
) -> tuple[Tensor, Tensor, Tensor]:
    """`short_attention_backward` without the dispatcher."""
    from semfocus.attention.kernels.short import launch

    call = launch.Call(q, k, v, mask, lengths, dropout_seed, parse_mechanism(mechanism), causal, scale, dropout_p, tf32)
    lead = common_lead(q, k, v)
    # Keys that several heads share: a float32 gradient for each head, then their sum, in a fixed order.
    per_head = [
        empty_like_layout(tensor, tensor.shape)
        if tensor.shape[:-2] == lead
        else tensor.new_empty([*lead, *tensor.shape[-2:]], dtype=torch.float32)
        for tensor in (q, k, v)
    ]
    call.backward(grad, grad_lse, out, kept, saved, *per_head)
    dq, dk, dv = (
        grad if grad.shape == tensor.shape else grad.sum_to_size(tensor.shape).to(tensor.dtype)
        for grad, tensor in zip(per_head, (q, k, v), strict=True)
    )
    return dq, dk, dv


@short_attention_backward.register_fake
def _(
    grad, grad_lse, q, k, v, mask, lengths, dropout_seed, out, kept, saved, mechanism, causal, scale, dropout_p, tf32
):
    lead = common_lead(q, k, v)
    dq, dk, dv = (
        empty_like_layout(tensor, tensor.shape) if tensor.shape[:-2] == lead else tensor.new_empty(tensor.shape)
        for tensor in (q, k, v)
    )
    return dq, dk, dv


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, mask, lengths, dropout_seed, ctx.mechanism, ctx.causal, ctx.scale, ctx.dropout_p, _, ctx.tf32 = inputs
    out, kept, _, saved = output
    ctx.save_for_backward(q, k, v, mask, lengths, dropout_seed, out, kept, saved)


def _backward(ctx, grad, _grad_kept, grad_lse, _grad_saved):
    saved = ctx.saved_tensors
    grad = torch.zeros_like(saved[6]) if grad is None else grad
    grads = short_attention_backward(
        grad, grad_lse, *saved, ctx.mechanism, ctx.causal, ctx.scale, ctx.dropout_p, ctx.tf32
    )
    return *grads, *([None] * 9)


short_attention.register_autograd(_backward, setup_context=_setup_context)


class _Eager(torch.autograd.Function):
    """`short_attention` and its gradient without the dispatcher."""

    @staticmethod
    def forward(ctx, *inputs):
        results = launch_forward(*inputs)
        _setup_context(ctx, inputs, results)
        ctx.mark_non_differentiable(results[1], results[3])
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _grad_kept, grad_lse, _grad_saved):
        saved = ctx.saved_tensors
        grad = torch.zeros_like(saved[6]) if grad is None else grad
        grads = launch_backward(
            grad, grad_lse, *saved, ctx.mechanism, ctx.causal, ctx.scale, ctx.dropout_p, ctx.tf32
        )  # fmt: skip
        return *grads, *([None] * 9)
