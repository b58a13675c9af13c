"""Scores and sums over listed pairs: a query and the n keys it keeps, by their indices, -1 for none.

Shapes: *lead batch dimensions and heads, C queries of a chunk, n keys kept by a query, D and Dv head widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs, slice_queries
from semfocus.attention.positions import Positions
from semfocus.attention.selection import can_sync


@dataclass(frozen=True)
class Vectors:
    """The vectors of k or v, of all M batch entries and heads, as one matrix."""

    flat: Tensor  # (M * Lk, D) in the dtype of computation
    base: Tensor  # (*lead, 1, 1) int64: where in `flat` the keys of each batch entry and head begin

    @staticmethod
    def of(tensor: Tensor, inputs: AttentionInputs) -> Vectors:
        lead = tensor.shape[:-2]
        flat = tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).to(inputs.compute_dtype)
        entries = torch.arange(lead.numel(), device=tensor.device).view(*lead, 1, 1)
        return Vectors(flat, (entries * tensor.shape[-2]).expand(*inputs.lead, 1, 1))

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


def pair_scores(inputs: AttentionInputs, positions: Positions, q_chunk: Tensor, k_kept: Tensor, kept: Tensor) -> Tensor:
    """(*lead, C, n): the scores of the kept pairs."""
    return with_bias(inputs, positions, pair_products(inputs, q_chunk, k_kept), kept)


def pair_products(inputs: AttentionInputs, q_chunk: Tensor, k_kept: Tensor) -> Tensor:
    """(*lead, C, n): the scaled and capped products of the kept pairs, before a float mask is added."""
    # Products and sums, not a batched product of tiny matrices, which a CPU runs one by one.
    return inputs.capped((k_kept * q_chunk.unsqueeze(-2)).sum(dim=-1) * inputs.scale)


def with_bias(inputs: AttentionInputs, positions: Positions, scores: Tensor, kept: Tensor) -> Tensor:
    bias = slice_queries(inputs.bias, positions.first, positions.queries)
    return scores if bias is None else scores + look_up(bias, kept)


def look_up(table: Tensor, kept: Tensor) -> Tensor:
    """Entries of a (.., C or 1, Lk or 1) table at the keys `kept` (.., C, n)."""
    if table.shape[-1] == 1:
        return table
    lead = torch.broadcast_shapes(table.shape[:-1], kept.shape[:-1])
    return table.expand(*lead, -1).gather(-1, kept.clamp(min=0).expand(*lead, -1))


def listed_scores(inputs: AttentionInputs, kept: Tensor) -> Tensor:
    """(*lead, Lq, n): the scores of the kept pairs of all queries."""
    q = inputs.q.expand(*inputs.lead, *inputs.q.shape[-2:]).to(inputs.compute_dtype)
    return pair_scores(inputs, inputs.positions(), q, Vectors.of(inputs.k, inputs).gather(kept), kept)


def finite_channels(values: Tensor, grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values (.., n, Dv) as zeros where they are not finite, and gradient and output (.., Dv) of channels with such."""
    if can_sync(values) and bool(values.sum().isfinite()):
        return values, grad, out
    finite = values.isfinite()
    channel = finite.all(dim=-2)
    return torch.where(finite, values, 0.0), torch.where(channel, grad, 0.0), torch.where(channel, out, 0.0)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """(*lead, C, Dv) of weights (*lead, C, n); a kept value that is not finite makes its channel NaN."""
    if can_sync(values) and bool(values.detach().sum().isfinite()):
        return (weights.unsqueeze(-1) * values).sum(dim=-2)
    finite = values.isfinite()
    total = (weights.unsqueeze(-1) * torch.where(finite, values, 0.0)).sum(dim=-2)
    return torch.where(finite.all(dim=-2), total, float("nan"))
