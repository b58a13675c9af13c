"""Attention over short lists of keys: memory O(L k), and a backward pass that touches kept pairs only.

A chunk of queries at a time: scores against all keys, the k best as indices, the rest forgotten. Saved for the
backward pass are the indices (int32) alone. Mechanisms whose keys follow from the position skip
the scores: they cost O(L w). Registered with torch.library, so that compile sees one opaque operation.

Shapes: lead, C queries of a chunk, n keys kept by a query, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.attention.base import SelectionInputs
from semfocus.attention.info import AttentionInfo
from semfocus.attention.inputs import AttentionInputs, rows_of
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.attention.normalisers import Softmax, log_sum_exp
from semfocus.attention.positions import Positions
from semfocus.attention.selection import best_indices, can_sync

# Scores, or gathered numbers, held at once: in float32 16 MiB near a CPU's caches, 512 MiB that keep a GPU busy.
CHUNK_ELEMENTS, GPU_CHUNK_ELEMENTS = 2**22, 2**27


def chunked(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Softmax attention for mechanisms that give, or choose, a short list of keys."""
    lead = inputs.lead
    out, indices, lse = gathered(
        inputs.q.expand(*lead, *inputs.q.shape[-2:]),
        inputs.k,
        inputs.v,
        inputs.mask,
        inputs.bias,
        inputs.lengths,
        inputs.choice_seed,
        inputs.dropout_seed,
        str(inputs.mechanism),
        inputs.causal,
        inputs.scale,
        inputs.dropout_p,
    )
    return out, listed_info(inputs, indices.long(), lse) if want_info else None


@torch.library.custom_op("semfocus::gathered", mutates_args=())
def gathered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    choice_seed: Tensor | None,
    dropout_seed: Tensor | None,
    mechanism: str,
    causal: bool,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (*lead, Lq, Dv), kept keys (*lead, Lq, n) int32 and log-sum-exp (*lead, Lq)."""
    inputs = AttentionInputs(
        q, k, v, parse_mechanism(mechanism), Softmax(), causal, mask, bias, lengths, scale, dropout_p, dropout_seed,
        choice_seed,
    )  # fmt: skip
    out, indices, lse = _empty_results(inputs)
    keys = _Rows.of(k, inputs)
    values = _Rows.of(v, inputs)
    listed = indices.shape[-1] * max(k.shape[-1], v.shape[-1])
    for positions in _chunks(inputs, listed if inputs.mechanism.is_local else max(inputs.num_keys, listed)):
        rows = slice(positions.first, positions.first + positions.queries)
        q_rows = q[..., rows, :].to(inputs.compute_dtype)
        kept, scores = _select(inputs, positions, q_rows, keys)
        present = kept >= 0
        weights = inputs.dropout(inputs.normaliser.weights(scores, present), positions, kept)
        picked = values.pick(kept)
        out[..., rows, :] = _mixed(weights, picked).to(out.dtype)
        indices[..., rows, :] = kept.to(torch.int32)
        lse[..., rows] = log_sum_exp(scores, present)
    return out, indices, lse


@gathered.register_fake
def _(q, k, v, mask, bias, lengths, choice_seed, dropout_seed, mechanism, causal, scale, dropout_p):
    return _empty_results(AttentionInputs(q, k, v, parse_mechanism(mechanism), Softmax()))


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
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v for the kept set: p = softmax(score), ds = p (dp - sum p dp + dlse).

    Not exp(score - lse): a log-sum-exp in the tens has lost the digits that small weights need.
    """
    inputs = AttentionInputs(
        q, k, v, parse_mechanism(mechanism), Softmax(), bias=bias, scale=scale, dropout_p=dropout_p,
        dropout_seed=dropout_seed,
    )  # fmt: skip
    keys, values = _Rows.of(k, inputs), _Rows.of(v, inputs)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = keys.zeros(), values.zeros()
    for positions in _chunks(inputs, indices.shape[-1] * (k.shape[-1] + v.shape[-1])):
        rows = slice(positions.first, positions.first + positions.queries)
        kept = indices[..., rows, :].long()
        q_rows = q[..., rows, :].to(inputs.compute_dtype)
        grad_rows = grad[..., rows, :].to(inputs.compute_dtype)
        present = kept >= 0
        k_picked, v_picked = keys.pick(kept), values.pick(kept)
        scores = _pair_scores(inputs, positions, q_rows, k_picked, kept)
        p = inputs.normaliser.weights(scores, present)
        dropped = inputs.dropout(torch.ones_like(p), positions, kept)
        dp = (v_picked * grad_rows.unsqueeze(-2)).sum(dim=-1) * dropped
        total = (grad_rows * out[..., rows, :]).sum(dim=-1, keepdim=True)
        if grad_lse is not None:
            total = total - grad_lse[..., rows].unsqueeze(-1)
        ds = torch.where(present, p * (dp - total), 0.0) * scale
        dq[..., rows, :] = (ds.unsqueeze(-1) * k_picked).sum(dim=-2).to(dq.dtype)
        keys.add(dk, kept, ds.unsqueeze(-1) * q_rows.unsqueeze(-2))
        values.add(dv, kept, (p * dropped).unsqueeze(-1) * grad_rows.unsqueeze(-2))
    return dq, dk.view(k.shape).to(k.dtype), dv.view(v.shape).to(v.dtype)


@gathered_backward.register_fake
def _(grad, grad_lse, q, k, v, bias, dropout_seed, out, indices, mechanism, scale, dropout_p):
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))


def _remember(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, _, bias, _, _, dropout_seed, ctx.mechanism, _, ctx.scale, ctx.dropout_p = inputs
    out, indices, _ = output
    ctx.save_for_backward(q, k, v, bias, dropout_seed, out, indices)


def _differentiate(ctx, grad, _grad_indices, grad_lse):
    q, k, v, bias, dropout_seed, out, indices = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    grads = gathered_backward(
        grad, grad_lse, q, k, v, bias, dropout_seed, out, indices, ctx.mechanism, ctx.scale, ctx.dropout_p
    )
    return *grads, *([None] * 9)


gathered.register_autograd(_differentiate, setup_context=_remember)


@dataclass(frozen=True)
class _Rows:
    """The rows of k or v as one long list, and where the list of each batch row and head begins."""

    flat: Tensor  # (M * Lk, D) in the dtype of computation
    base: Tensor  # (*lead, 1, 1) int64

    @staticmethod
    def of(tensor: Tensor, inputs: AttentionInputs) -> _Rows:
        lead = tensor.shape[:-2]
        flat = tensor.reshape(-1, tensor.shape[-1]).to(inputs.compute_dtype)
        lists = torch.arange(lead.numel(), device=tensor.device).view(*lead, 1, 1)
        return _Rows(flat, (lists * tensor.shape[-2]).expand(*inputs.lead, 1, 1))

    def pick(self, kept: Tensor) -> Tensor:
        """(*lead, C, n, D): the rows that `kept` names, zeros where it is -1."""
        absent = kept < 0
        positions = (kept.clamp(min=0) + self.base).reshape(-1)
        picked = self.flat.index_select(0, positions).view(*kept.shape, self.flat.shape[-1])
        if not can_sync(absent) or bool(absent.any()):
            picked.masked_fill_(absent.unsqueeze(-1), 0.0)  # not by multiplication: the row may hold NaN
        return picked

    def zeros(self) -> Tensor:
        return torch.zeros_like(self.flat)

    def add(self, total: Tensor, kept: Tensor, rows: Tensor) -> None:
        """Add `rows` (*lead, C, n, D), zero where `kept` is -1, to the rows of `total` that `kept` names."""
        positions = (kept.clamp(min=0) + self.base).reshape(-1)
        rows = rows.reshape(-1, rows.shape[-1])
        if total.is_cuda:
            total.index_put_((positions,), rows, accumulate=True)  # sorts: the order of the sum does not vary
        else:
            total.scatter_add_(0, positions.unsqueeze(-1).expand_as(rows), rows)


def _chunks(inputs: AttentionInputs, elements_per_query: int):
    """Positions of successive queries, as many at a time as keep the largest intermediate within bounds."""
    held = GPU_CHUNK_ELEMENTS if inputs.q.is_cuda else CHUNK_ELEMENTS
    step = max(1, held // max(1, inputs.lead.numel() * elements_per_query))
    for first in range(0, inputs.num_queries if inputs.lead.numel() else 0, step):
        yield inputs.positions(first, min(step, inputs.num_queries - first))


def _select(inputs: AttentionInputs, positions: Positions, q_rows: Tensor, keys: _Rows) -> tuple[Tensor, Tensor]:
    """The kept keys (*lead, C, n), in increasing order with -1 last, and their scores."""
    mechanism = inputs.mechanism
    if mechanism.is_local:
        kept = mechanism.indices(positions, inputs.causal)
        allowed = _allowed(inputs, positions, kept)
        kept = torch.where(allowed, kept, -1).expand(*inputs.lead, *kept.shape[-2:])
        bias = rows_of(inputs.bias, positions.first, positions.queries)
        if bias is not None:  # a bias of -inf is a mask
            kept = torch.where(_look_up(bias, kept) == float("-inf"), -1, kept)
        kept = ordered(kept, inputs.num_keys)[..., : inputs.num_keys]
        scores = _pair_scores(inputs, positions, q_rows, keys.pick(kept), kept)
        return torch.where(scores == float("-inf"), -1, kept), scores
    all_keys = keys.flat.view(*inputs.k.shape)
    scores = (q_rows @ all_keys.transpose(-1, -2)).mul_(inputs.scale)
    bias = rows_of(inputs.bias, positions.first, positions.queries)
    if bias is not None:
        scores = scores + bias
    kept = _chosen(inputs, inputs.selection(scores, q_rows, all_keys, positions))
    return kept, scores.gather(-1, kept.clamp(min=0))


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
        held, extra = ranking.always_kept.to(torch.int8).topk(mechanism.max_kept(inputs.num_keys), dim=-1)
        extra = torch.where(held > 0, extra, -1).expand(*kept.shape[:-1], -1)
        kept = torch.cat([kept, extra], dim=-1)
    return ordered(kept, inputs.num_keys)[..., : mechanism.max_kept(inputs.num_keys)]


def ordered(kept: Tensor, num_keys: int) -> Tensor:
    """In increasing order, with the -1s last."""
    ordered = torch.where(kept < 0, num_keys, kept).sort(dim=-1).values
    return torch.where(ordered == num_keys, -1, ordered)


def _allowed(inputs: AttentionInputs, positions: Positions, kept: Tensor) -> Tensor:
    """Which entries of a list (C, n) of positions survive causality, mask and lengths."""
    allowed = kept >= 0
    if inputs.causal:
        allowed = allowed & (kept <= positions.position)
    mask = rows_of(inputs.mask, positions.first, positions.queries)
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
    inputs: AttentionInputs, positions: Positions, q_rows: Tensor, k_picked: Tensor, kept: Tensor
) -> Tensor:
    # Products and sums, not a batched product of tiny matrices: CPU runs those one by one.
    scores = (k_picked * q_rows.unsqueeze(-2)).sum(dim=-1) * inputs.scale
    bias = rows_of(inputs.bias, positions.first, positions.queries)
    return scores if bias is None else scores + _look_up(bias, kept)


def _mixed(weights: Tensor, picked: Tensor) -> Tensor:
    """Sum of weight times value; a kept value that is not finite makes its channel NaN, whatever its weight."""
    if can_sync(picked) and bool(picked.sum().isfinite()):
        return (weights.unsqueeze(-1) * picked).sum(dim=-2)
    finite = picked.isfinite()
    mixed = (weights.unsqueeze(-1) * torch.where(finite, picked, 0.0)).sum(dim=-2)
    return torch.where(finite.all(dim=-2), mixed, float("nan"))


def _empty_results(inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
    rows = (*inputs.lead, inputs.num_queries)
    most = inputs.mechanism.max_listed(inputs.num_keys)  # global queries, which keep all, are not computed here
    return (
        inputs.q.new_empty(*rows, inputs.v.shape[-1]),
        inputs.q.new_empty(*rows, most, dtype=torch.int32),
        inputs.q.new_empty(rows, dtype=inputs.compute_dtype),
    )


def listed_info(inputs: AttentionInputs, indices: Tensor, lse: Tensor) -> AttentionInfo:
    """Weights from the kept scores, and in-degrees by counting."""
    positions = inputs.positions()
    q_rows = inputs.q.expand(*inputs.lead, *inputs.q.shape[-2:]).to(inputs.compute_dtype)
    scores = _pair_scores(inputs, positions, q_rows, _Rows.of(inputs.k, inputs).pick(indices), indices)
    weights = inputs.normaliser.weights(scores, indices >= 0)
    counts = lse.new_zeros(*inputs.lead, inputs.num_keys, dtype=torch.int64)
    flat = indices.flatten(-2)
    counts.scatter_add_(-1, flat.clamp(min=0), (flat >= 0).long())
    return AttentionInfo(indices, weights, lse, counts)
