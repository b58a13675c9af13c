"""The short kernels as torch custom operators: fake results, gradients, opaque to torch.compile and CUDA graphs.

    out, kept, lse, saved = short_attention(q, k, v, mask, lengths, dropout_seed, "topk:5", ...)

`plan` tells which kernels run, from sizes and mechanism. Nothing here synchronises with the device or creates tensors
on the host. Triton is imported at the first launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.inputs import common_lead
from semfocus.attention.kernels.short.arguments import empty_like_layout
from semfocus.attention.kernels.short.configs import MAX_WHOLE_LENGTH
from semfocus.attention.mechanisms import Mechanism, parse_mechanism


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
    lead, queries, keys = q.shape[:-2], q.shape[-2], k.shape[-2]
    kind = plan(queries, keys, mechanism)
    kept, saved = [0], [*lead, 2, queries] if kind == "tiled" else [0]
    if mechanism.is_ranked:
        entries = -(-keys // 32) if kind == "whole" else min(mechanism.size or 0, keys)
        kept = [*lead, entries, queries]
        saved = kept if kind == "listed" else saved
    return (
        empty_like_layout(q, [*lead, queries, v.shape[-1]], dtype),
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
