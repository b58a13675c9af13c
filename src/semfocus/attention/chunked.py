"""Attention over short lists of keys: memory O(L k), and a backward pass over the kept pairs only.

Queries are processed in chunks: scores against all keys, the indices of the k best, then the scores are freed. Only
the indices (int32) are saved for the backward pass. Mechanisms whose keys follow from the position need no scores of
other keys and cost O(L w). The operation is registered with torch.library, so that compile sees it as one opaque call.

Shapes: *lead batch dimensions and heads, C queries of a chunk, n keys kept by a query, D and Dv head widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from semfocus.attention.base import SelectionInputs
from semfocus.attention.inputs import AttentionInputs, shared_product, slice_queries
from semfocus.attention.inspection import AttentionInfo, check_listed
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.attention.normalisers import log_sum_exp, parse_normaliser
from semfocus.attention.positions import Positions
from semfocus.attention.scoring import cap_slope, leave_to_sinks, share_of_keys
from semfocus.attention.selection import best_indices, can_sync
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
    keys, values = _Vectors.of(k, inputs), _Vectors.of(v, inputs)
    listed = indices.shape[-1] * max(k.shape[-1], v.shape[-1])
    for positions in _chunks(inputs, listed if _is_listed(inputs) else max(inputs.num_keys, listed)):
        chunk = slice(positions.first, positions.first + positions.queries)
        q_chunk = q[..., chunk, :].to(inputs.compute_dtype)
        kept, scores = _select(inputs, positions, q_chunk, keys)  # (*lead, C, n)
        present = kept >= 0
        weights = inputs.dropout(inputs.normaliser.weights(scores, present), positions, kept)
        out[..., chunk, :] = _weighted_sum(weights, values.gather(kept)).to(out.dtype)
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
    keys, values = _Vectors.of(k, inputs), _Vectors.of(v, inputs)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = torch.zeros_like(keys.flat), torch.zeros_like(values.flat)
    for positions in _chunks(inputs, indices.shape[-1] * (k.shape[-1] + v.shape[-1])):
        chunk = slice(positions.first, positions.first + positions.queries)
        kept = indices[..., chunk, :].long()  # (*lead, C, n)
        q_chunk = q[..., chunk, :].to(inputs.compute_dtype)
        present = kept >= 0
        k_kept, v_kept = keys.gather(kept), values.gather(kept)  # (*lead, C, n, D or Dv)
        v_kept, grad_chunk, out_chunk = _finite_channels(
            v_kept, grad[..., chunk, :].to(inputs.compute_dtype), out[..., chunk, :].to(inputs.compute_dtype)
        )
        products = _pair_products(inputs, q_chunk, k_kept)
        scores = _with_bias(inputs, positions, products, kept)
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
    scores, present = _listed_scores(inputs, kept), kept >= 0
    weights = inputs.dropout(inputs.normaliser.weights(scores, present), inputs.positions(), kept)
    results = [_weighted_sum(weights, _Vectors.of(inputs.v, inputs).gather(kept)).to(grad.dtype)]
    if grad_lse is not None:
        results.append(log_sum_exp(scores, present))
    leaves = [tensor for tensor in (inputs.q, inputs.k, inputs.v) if tensor.requires_grad]
    given = [grad] if grad_lse is None else [grad, grad_lse]
    grads = iter(torch.autograd.grad(results, leaves, given, create_graph=True, materialize_grads=True))
    return [next(grads) if tensor.requires_grad else None for tensor in (inputs.q, inputs.k, inputs.v)]


gathered.register_autograd(_backward, setup_context=_setup_context)


@dataclass(frozen=True)
class _Vectors:
    """The vectors of k or v, of all M batch entries and heads, as one matrix."""

    flat: Tensor  # (M * Lk, D) in the dtype of computation
    base: Tensor  # (*lead, 1, 1) int64: where in `flat` the keys of each batch entry and head begin

    @staticmethod
    def of(tensor: Tensor, inputs: AttentionInputs) -> _Vectors:
        lead = tensor.shape[:-2]
        flat = tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).to(inputs.compute_dtype)
        entries = torch.arange(lead.numel(), device=tensor.device).view(*lead, 1, 1)
        return _Vectors(flat, (entries * tensor.shape[-2]).expand(*inputs.lead, 1, 1))

    def gather(self, kept: Tensor) -> Tensor:
        """(*lead, C, n, D): the vectors at the indices `kept` (*lead, C, n), zeros where it is -1."""
        absent = kept < 0
        index = (kept.clamp(min=0) + self.base).reshape(-1)
        vectors = self.flat.index_select(0, index).view(*kept.shape, self.flat.shape[-1])
        if not can_sync(absent) or bool(absent.any()):
            vectors.masked_fill_(absent.unsqueeze(-1), 0.0)  # not by multiplication: the vector may hold NaN
        return vectors

    def scatter_add(self, total: Tensor, kept: Tensor, vectors: Tensor) -> None:
        """Add `vectors` (*lead, C, n, D), zero where `kept` is -1, to `total` (M * Lk, D) at the indices `kept`."""
        index = (kept.clamp(min=0) + self.base).reshape(-1)
        vectors = vectors.reshape(index.numel(), vectors.shape[-1])
        if total.is_cuda:
            total.index_put_((index,), vectors, accumulate=True)  # sorts, so that the order of summation is fixed
        else:
            total.scatter_add_(0, index.unsqueeze(-1).expand_as(vectors), vectors)


def _chunks(inputs: AttentionInputs, elements_per_query: int):
    """Positions of successive queries: chunks whose largest intermediate tensor stays within bounds."""
    elements = GPU_CHUNK_ELEMENTS if inputs.q.is_cuda else CHUNK_ELEMENTS
    step = max(1, elements // max(1, inputs.lead.numel() * elements_per_query))
    for first in range(0, inputs.num_queries if inputs.lead.numel() else 0, step):
        yield inputs.positions(first, min(step, inputs.num_queries - first))


def _select(inputs: AttentionInputs, positions: Positions, q_chunk: Tensor, keys: _Vectors) -> tuple[Tensor, Tensor]:
    """The kept keys (*lead, C, n), in increasing order with -1 last, and their scores."""
    if inputs.mechanism.is_local:
        kept = _near(inputs, positions)
        kept = kept.expand(*inputs.lead, *kept.shape[-2:])
        kept = ordered(kept, inputs.num_keys)[..., : inputs.num_keys]
        scores = _pair_scores(inputs, positions, q_chunk, keys.gather(kept), kept)
        return torch.where(scores == float("-inf"), -1, kept), scores
    all_keys = keys.flat.view(*inputs.k.shape)
    if _is_plain_causal(inputs):
        kept, scores = _select_before(inputs, positions, q_chunk, all_keys)
        return kept, scores.gather(-1, kept.clamp(min=0))
    scores = inputs.capped(shared_product(q_chunk, all_keys.transpose(-1, -2)).mul_(inputs.scale))  # (*lead, C, Lk)
    bias = slice_queries(inputs.bias, positions.first, positions.queries)
    if bias is not None:
        scores = scores + bias
    kept = _chosen(inputs, inputs.selection(scores, q_chunk, all_keys, positions))
    return kept, scores.gather(-1, kept.clamp(min=0))


def _is_listed(inputs: AttentionInputs) -> bool:
    """Whether positions alone give the list of keys of a query, without a look at all keys."""
    return inputs.mechanism.is_local and inputs.k_positions is None


def _near(inputs: AttentionInputs, positions: Positions) -> Tensor:
    """(.., C, n): the keys that a local mechanism keeps, -1 for none."""
    mechanism = inputs.mechanism
    if _is_listed(inputs):
        kept = mechanism.indices(positions, inputs.causal)
        return torch.where(_allowed(inputs, positions, kept), kept, -1)
    valid = inputs.valid(positions.first - inputs.first_query, positions.queries)
    unused = torch.zeros((), device=inputs.q.device).expand(positions.queries, inputs.num_keys)  # scores
    keep = mechanism.choose(SelectionInputs(unused, positions, valid, inputs.causal))
    check_listed(keep.sum(dim=-1), mechanism.max_listed(inputs.num_keys))
    return _listed(keep, mechanism.max_listed(inputs.num_keys))


def _listed(keep: Tensor, most: int) -> Tensor:
    """(.., C, most): the keys of a mask (.., C, Lk), -1 for none."""
    held, indices = keep.to(torch.int8).topk(most, dim=-1)
    return torch.where(held > 0, indices, -1)


def _is_plain_causal(inputs: AttentionInputs) -> bool:
    """Whether queries keep their k best of all keys up to their own, and nothing else matters."""
    others = (inputs.mask, inputs.bias, inputs.lengths, inputs.k_positions)
    plain = inputs.causal and all(tensor is None for tensor in others) and inputs.num_queries <= inputs.num_keys
    return plain and inputs.mechanism.keeps_largest is not None


def _select_before(
    inputs: AttentionInputs, positions: Positions, q_chunk: Tensor, all_keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The kept keys (*lead, C, n), and scores (*lead, C, P) of the P keys up to the last query's, masked in place."""
    k, queries = inputs.mechanism.keeps_largest, positions.queries
    assert k is not None
    end = positions.first + queries + positions.keys - positions.total
    scores = inputs.capped(shared_product(q_chunk, all_keys[..., :end, :].transpose(-1, -2)).mul_(inputs.scale))
    later = torch.ones(queries, queries, dtype=torch.bool, device=scores.device).triu(1)
    scores[..., end - queries :].masked_fill_(later, float("-inf"))
    kept = ordered(best_indices(scores, None, k), end)
    return pad(kept, (0, inputs.mechanism.max_kept(inputs.num_keys) - kept.shape[-1]), value=-1), scores


def _chosen(inputs: AttentionInputs, selection: SelectionInputs) -> Tensor:
    """(*lead, C, n): the keys that a ranked mechanism keeps, in increasing order with -1 last."""
    mechanism = inputs.mechanism
    k = mechanism.keeps_largest
    if k is not None and not inputs.restricted:
        kept = best_indices(selection.scores, None, k)  # a score of -inf ranks last by itself
        return ordered(kept, inputs.num_keys)
    ranking = mechanism.ranking(selection)
    kept = best_indices(ranking.priority, ranking.candidates, ranking.k)
    if ranking.always_kept is not None:
        most = mechanism.max_kept(inputs.num_keys)
        kept = torch.cat([kept, _listed(ranking.always_kept, most).expand(*kept.shape[:-1], -1)], dim=-1)
        if inputs.k_positions is not None:
            check_listed((kept >= 0).sum(dim=-1), most)
    return ordered(kept, inputs.num_keys)[..., : mechanism.max_kept(inputs.num_keys)]


def ordered(kept: Tensor, num_keys: int) -> Tensor:
    """Indices in increasing order, -1 last."""
    in_order = torch.where(kept < 0, num_keys, kept).sort(dim=-1).values
    return torch.where(in_order == num_keys, -1, in_order)


def _allowed(inputs: AttentionInputs, positions: Positions, kept: Tensor) -> Tensor:
    """Which indices of a list (C, n) causality, mask and lengths leave."""
    allowed = kept >= 0
    if inputs.causal:
        allowed = allowed & (kept <= positions.position)
    mask = slice_queries(inputs.mask, positions.first, positions.queries)
    if mask is not None:
        allowed = allowed & _look_up(mask, kept)
    if inputs.lengths is not None:
        allowed = allowed & (kept < inputs.lengths)
    return allowed


def _look_up(table: Tensor, kept: Tensor) -> Tensor:
    """Entries of a (.., C or 1, Lk or 1) table at the keys `kept` (.., C, n)."""
    if table.shape[-1] == 1:
        return table
    lead = torch.broadcast_shapes(table.shape[:-1], kept.shape[:-1])
    return table.expand(*lead, -1).gather(-1, kept.clamp(min=0).expand(*lead, -1))


def _pair_scores(
    inputs: AttentionInputs, positions: Positions, q_chunk: Tensor, k_kept: Tensor, kept: Tensor
) -> Tensor:
    """(*lead, C, n): the scores of the kept pairs."""
    return _with_bias(inputs, positions, _pair_products(inputs, q_chunk, k_kept), kept)


def _pair_products(inputs: AttentionInputs, q_chunk: Tensor, k_kept: Tensor) -> Tensor:
    """(*lead, C, n): the scaled and capped products of the kept pairs, before a float mask is added."""
    # Products and sums, not a batched product of tiny matrices, which a CPU runs one by one.
    return inputs.capped((k_kept * q_chunk.unsqueeze(-2)).sum(dim=-1) * inputs.scale)


def _with_bias(inputs: AttentionInputs, positions: Positions, scores: Tensor, kept: Tensor) -> Tensor:
    bias = slice_queries(inputs.bias, positions.first, positions.queries)
    return scores if bias is None else scores + _look_up(bias, kept)


def _listed_scores(inputs: AttentionInputs, kept: Tensor) -> Tensor:
    """(*lead, Lq, n): the scores of the kept pairs of all queries."""
    q = inputs.q.expand(*inputs.lead, *inputs.q.shape[-2:]).to(inputs.compute_dtype)
    return _pair_scores(inputs, inputs.positions(), q, _Vectors.of(inputs.k, inputs).gather(kept), kept)


def _finite_channels(values: Tensor, grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values (.., n, Dv) as zeros where they are not finite, and gradient and output (.., Dv) of channels with such."""
    if can_sync(values) and bool(values.sum().isfinite()):
        return values, grad, out
    finite = values.isfinite()
    channel = finite.all(dim=-2)
    return torch.where(finite, values, 0.0), torch.where(channel, grad, 0.0), torch.where(channel, out, 0.0)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """(*lead, C, Dv) of weights (*lead, C, n); a kept value that is not finite makes its channel NaN."""
    if can_sync(values) and bool(values.detach().sum().isfinite()):
        return (weights.unsqueeze(-1) * values).sum(dim=-2)
    finite = values.isfinite()
    total = (weights.unsqueeze(-1) * torch.where(finite, values, 0.0)).sum(dim=-2)
    return torch.where(finite.all(dim=-2), total, float("nan"))


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
    scores = _listed_scores(inputs, indices)
    weights = inputs.normaliser.weights(scores, indices >= 0)
    if inputs.sinks is not None:
        weights = weights * share_of_keys(lse, inputs.sinks)
    counts = lse.new_zeros(*inputs.lead, inputs.num_keys, dtype=torch.int64)
    flat = indices.flatten(-2)
    counts.scatter_add_(-1, flat.clamp(min=0), (flat >= 0).long())
    return AttentionInfo(indices, weights, lse, counts)
