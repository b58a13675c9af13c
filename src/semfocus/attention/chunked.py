"""Attention over short lists of keys: memory O(L k), and a backward pass over the kept pairs only.

Queries are processed in chunks: scores against all keys, the indices of the k best, then the scores are freed. Only
the indices (int32) are saved for the backward pass. Mechanisms whose keys follow from the position need no scores of
other keys and cost O(L w). The operation is registered with torch.library, so that compile sees it as one opaque call.

Shapes: *lead batch dimensions and heads, C queries of a chunk, n keys kept by a query, D and Dv head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kept_keys import is_listed_by_position, select_keys
from semfocus.attention.kept_pairs import (
    Vectors,
    finite_channels,
    listed_scores,
    pair_products,
    weighted_sum,
    with_bias,
)
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.attention.normalisers import log_sum_exp, parse_normaliser
from semfocus.attention.scoring import cap_slope, leave_to_sinks, share_of_keys
from semfocus.attention.weights import softmax_over

# Scores, or gathered numbers, held at once: 4 MiB of float32 stay in the caches of a CPU and its allocator, 512 MiB
# keep a GPU busy.
CHUNK_ELEMENTS, GPU_CHUNK_ELEMENTS = 2**20, 2**27


def chunked(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Attention for mechanisms that keep a short list of keys, by position or by rank."""
    lead = inputs.lead
    out, indices, lse = gathered(
        inputs.q.expand(*lead, *inputs.q.shape[-2:]),
        inputs.k, inputs.v, inputs.mask, inputs.bias, inputs.lengths, inputs.q_positions, inputs.k_positions,
        inputs.choice_seed, inputs.dropout_seed, str(inputs.mechanism), str(inputs.normaliser),
        inputs.causal, inputs.scale, inputs.dropout_p, inputs.softcap,
    )  # fmt: skip
    if inputs.sinks is not None:
        out = leave_to_sinks(out, lse, inputs.sinks)
    return out, listed_info(inputs, indices.long(), lse) if want_info else None


@torch.library.custom_op("semfocus::gathered", mutates_args=())
def gathered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    choice_seed: Tensor | None,
    dropout_seed: Tensor | None,
    mechanism: str,
    normaliser: str,
    causal: bool,
    scale: float,
    dropout_p: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (*lead, Lq, Dv), kept keys (*lead, Lq, n) int32 and log-sum-exp (*lead, Lq)."""
    inputs = AttentionInputs(
        q, k, v, parse_mechanism(mechanism), parse_normaliser(normaliser), causal, mask, bias, lengths, scale,
        dropout_p, dropout_seed, choice_seed, q_positions=q_positions, k_positions=k_positions, softcap=softcap,
    )  # fmt: skip
    out, indices, lse = _empty_results(inputs)
    keys, values = Vectors.of(k, inputs), Vectors.of(v, inputs)
    listed = indices.shape[-1] * max(k.shape[-1], v.shape[-1])
    for positions in _chunks(inputs, listed if is_listed_by_position(inputs) else max(inputs.num_keys, listed)):
        chunk = slice(positions.first, positions.first + positions.queries)
        q_chunk = q[..., chunk, :].to(inputs.compute_dtype)
        kept, scores = select_keys(inputs, positions, q_chunk, keys)  # (*lead, C, n)
        present = kept >= 0
        weights = inputs.dropout(inputs.normaliser.weights(scores, present), positions, kept)
        out[..., chunk, :] = weighted_sum(weights, values.gather(kept)).to(out.dtype)
        indices[..., chunk, :] = kept.to(torch.int32)
        lse[..., chunk] = log_sum_exp(scores, present)
    return out, indices, lse


@gathered.register_fake
def _(
    q, k, v, mask, bias, lengths, q_positions, k_positions, choice_seed, dropout_seed, mechanism, normaliser, *others
):
    return _empty_results(AttentionInputs(q, k, v, parse_mechanism(mechanism), parse_normaliser(normaliser)))


@torch.library.custom_op("semfocus::gathered_backward", mutates_args=())
def gathered_backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    dropout_seed: Tensor | None,
    out: Tensor,
    indices: Tensor,
    mechanism: str,
    normaliser: str,
    scale: float,
    dropout_p: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v for the kept set. Of softmax: p = softmax(score), ds = p (dp - sum p dp + dlse).

    p is computed anew, not as exp(score - lse): a log-sum-exp in the tens lacks the digits that small weights need.
    """
    inputs = AttentionInputs(
        q, k, v, parse_mechanism(mechanism), parse_normaliser(normaliser), bias=bias, scale=scale,
        dropout_p=dropout_p, dropout_seed=dropout_seed, softcap=softcap,
    )  # fmt: skip
    keys, values = Vectors.of(k, inputs), Vectors.of(v, inputs)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = torch.zeros_like(keys.flat), torch.zeros_like(values.flat)
    for positions in _chunks(inputs, indices.shape[-1] * (k.shape[-1] + v.shape[-1])):
        chunk = slice(positions.first, positions.first + positions.queries)
        kept = indices[..., chunk, :].long()  # (*lead, C, n)
        q_chunk = q[..., chunk, :].to(inputs.compute_dtype)
        present = kept >= 0
        k_kept, v_kept = keys.gather(kept), values.gather(kept)  # (*lead, C, n, D or Dv)
        v_kept, grad_chunk, out_chunk = finite_channels(
            v_kept, grad[..., chunk, :].to(inputs.compute_dtype), out[..., chunk, :].to(inputs.compute_dtype)
        )
        products = pair_products(inputs, q_chunk, k_kept)
        scores = with_bias(inputs, positions, products, kept)
        p = inputs.normaliser.weights(scores, present)
        dropped = inputs.dropout(torch.ones_like(p), positions, kept)
        dp = (v_kept * grad_chunk.unsqueeze(-2)).sum(dim=-1) * dropped
        dlse = None if grad_lse is None else grad_lse[..., chunk].unsqueeze(-1)
        if inputs.normaliser.is_softmax:
            total = (grad_chunk * out_chunk).sum(dim=-1, keepdim=True)
            ds = p * (dp - (total if dlse is None else total - dlse))
        else:
            ds = inputs.normaliser.pull_back(scores, present, p, dp)
            ds = ds if dlse is None else ds + dlse * softmax_over(scores, present)
        ds = torch.where(present, ds if softcap is None else ds * cap_slope(products, softcap), 0.0) * scale
        dq[..., chunk, :] = (ds.unsqueeze(-1) * k_kept).sum(dim=-2).to(dq.dtype)
        keys.scatter_add(dk, kept, ds.unsqueeze(-1) * q_chunk.unsqueeze(-2))
        values.scatter_add(dv, kept, (p * dropped).unsqueeze(-1) * grad_chunk.unsqueeze(-2))
    return dq, dk.view(k.shape).to(k.dtype), dv.view(v.shape).to(v.dtype)


@gathered_backward.register_fake
def _(grad, grad_lse, q, k, v, bias, dropout_seed, out, indices, mechanism, normaliser, scale, dropout_p, softcap):
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, _, bias, _, _, _, _, dropout_seed, ctx.mechanism, ctx.normaliser, _, *ctx.numbers = inputs
    out, indices, _ = output
    ctx.save_for_backward(q, k, v, bias, dropout_seed, out, indices)


def _backward(ctx, grad, _grad_indices, grad_lse):
    q, k, v, bias, dropout_seed, out, indices = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    if torch.is_grad_enabled():  # the gradient is itself to be differentiated
        scale, dropout_p, softcap = ctx.numbers
        inputs = AttentionInputs(
            q, k, v, parse_mechanism(ctx.mechanism), parse_normaliser(ctx.normaliser), bias=bias, scale=scale,
            dropout_p=dropout_p, dropout_seed=dropout_seed, softcap=softcap,
        )  # fmt: skip
        return *_differentiable_grads(inputs, indices.long(), grad, grad_lse), *([None] * 13)
    grads = gathered_backward(
        grad, grad_lse, q, k, v, bias, dropout_seed, out, indices, ctx.mechanism, ctx.normaliser, *ctx.numbers
    )
    return *grads, *([None] * 13)


def _differentiable_grads(
    inputs: AttentionInputs, kept: Tensor, grad: Tensor, grad_lse: Tensor | None
) -> list[Tensor | None]:
    """Gradients of q, k and v by plain operations on all kept pairs at once: memory O(L k D)."""
    scores, present = listed_scores(inputs, kept), kept >= 0
    weights = inputs.dropout(inputs.normaliser.weights(scores, present), inputs.positions(), kept)
    results = [weighted_sum(weights, Vectors.of(inputs.v, inputs).gather(kept)).to(grad.dtype)]
    if grad_lse is not None:
        results.append(log_sum_exp(scores, present))
    leaves = [tensor for tensor in (inputs.q, inputs.k, inputs.v) if tensor.requires_grad]
    given = [grad] if grad_lse is None else [grad, grad_lse]
    grads = iter(torch.autograd.grad(results, leaves, given, create_graph=True, materialize_grads=True))
    return [next(grads) if tensor.requires_grad else None for tensor in (inputs.q, inputs.k, inputs.v)]


gathered.register_autograd(_backward, setup_context=_setup_context)


def _chunks(inputs: AttentionInputs, elements_per_query: int):
    """Positions of successive queries: chunks whose largest intermediate tensor stays within bounds."""
    elements = GPU_CHUNK_ELEMENTS if inputs.q.is_cuda else CHUNK_ELEMENTS
    step = max(1, elements // max(1, inputs.lead.numel() * elements_per_query))
    for first in range(0, inputs.num_queries if inputs.lead.numel() else 0, step):
        yield inputs.positions(first, min(step, inputs.num_queries - first))


def _empty_results(inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*inputs.lead, inputs.num_queries)
    most = inputs.mechanism.max_listed(inputs.num_keys)  # global queries, which keep all, are not computed here
    return (
        inputs.q.new_empty(*shape, inputs.v.shape[-1]),
        inputs.q.new_empty(*shape, most, dtype=torch.int32),
        inputs.q.new_empty(shape, dtype=inputs.compute_dtype),
    )


def listed_info(inputs: AttentionInputs, indices: Tensor, lse: Tensor) -> AttentionInfo:
    """`AttentionInfo` of the kept keys `indices` (*lead, Lq, n)."""
    scores = listed_scores(inputs, indices)
    weights = inputs.normaliser.weights(scores, indices >= 0)
    if inputs.sinks is not None:
        weights = weights * share_of_keys(lse, inputs.sinks)
    return counted_info(inputs, indices, weights, lse)


def counted_info(inputs: AttentionInputs, indices: Tensor, weights: Tensor, lse: Tensor) -> AttentionInfo:
    """`AttentionInfo` of the kept keys (*lead, Lq, n) and their weights."""
    counts = lse.new_zeros(*inputs.lead, inputs.num_keys, dtype=torch.int64)
    flat = indices.flatten(-2)
    counts.scatter_add_(-1, flat.clamp(min=0), (flat >= 0).long())
    return AttentionInfo(indices, weights, lse, counts)
