"""One call of `attend` in the form that every backend takes; `attention.arguments` makes it.

Shapes: `lead` = batch dimensions and heads, broadcast together; with grouped heads it ends in (Hkv, G).
    q (*lead, Lq, D)    k (.., Lk, D)    v (.., Lk, Dv)    mask, bias (.., Lq or 1, Lk or 1)    lengths (.., 1, 1)
    q_positions (.., Lq, 1)    k_positions (.., 1, Lk)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from semfocus.attention.base import Mechanism, SelectionInputs
from semfocus.attention.normalisers import Normaliser
from semfocus.attention.pairs import broadcasts
from semfocus.attention.positions import Positions
from semfocus.attention.scoring import capped, softmax_with_sinks
from semfocus.counter_rng import dropped


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values, which keys are allowed, and how they are chosen and weighted."""

    q: Tensor
    k: Tensor
    v: Tensor
    mechanism: Mechanism
    normaliser: Normaliser
    causal: bool = False
    mask: Tensor | None = None  # bool, True = allowed
    bias: Tensor | None = None  # added to the scaled scores
    lengths: Tensor | None = None  # keys from this one on are padding
    scale: float = 1.0
    dropout_p: float = 0.0
    dropout_seed: Tensor | None = None
    choice_seed: Tensor | None = None
    straight_through: bool = False
    first_query: int = 0  # where q holds only some of the queries: the index of the first, and how many there are
    total_queries: int | None = None
    q_positions: Tensor | None = None  # both or none: where queries and keys stand; negative: no token
    k_positions: Tensor | None = None
    assume_finite: bool = False  # the caller guarantees finite values: nothing guards against others
    learned: Mapping[str, Tensor] | None = None  # (.., Lq or 1, 1) of a normaliser, (.., C, D) of a mechanism
    softcap: float | None = None  # scores are capped before the bias is added
    sinks: Tensor | None = None  # (.., 1, 1) logits that take part of the weight

    @property
    def lead(self) -> torch.Size:
        """The batch dimensions and heads of the output."""
        return common_lead(self.q, self.k, self.v)

    @property
    def num_queries(self) -> int:
        return self.q.shape[-2]

    @property
    def num_keys(self) -> int:
        return self.k.shape[-2]

    @property
    def compute_dtype(self) -> torch.dtype:
        """At least float32 for scores and weights: a half-precision score can overflow, and distinct scores can tie."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def restricted(self) -> bool:
        """Whether causality, a mask, lengths or positions exclude keys."""
        given = (self.mask, self.bias, self.lengths, self.k_positions)
        return self.causal or any(tensor is not None for tensor in given)

    def positions(self, first: int = 0, queries: int | None = None) -> Positions:
        """Positions of `queries` queries (default: all) from number `first` of q on."""
        count = self.num_queries if queries is None else queries
        total = self.num_queries if self.total_queries is None else self.total_queries
        given = None
        if self.q_positions is not None and self.k_positions is not None:
            given = self.q_positions[..., first : first + count, :], self.k_positions
        return Positions(count, self.num_keys, self.q.device, self.first_query + first, total, given)

    def vectors(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """(.., C, D) the queries at `positions` and (.., Lk, D) all keys, in the dtype of computation."""
        first = positions.first - self.first_query
        queries = self.q[..., first : first + positions.queries, :]
        return queries.to(self.compute_dtype), self.k.to(self.compute_dtype)

    def last(self, queries: int) -> AttentionInputs:
        """The same inputs for the last `queries` queries alone."""
        first = self.num_queries - queries
        return replace(
            self,
            q=self.q[..., first:, :],
            mask=slice_queries(self.mask, first, queries),
            bias=slice_queries(self.bias, first, queries),
            q_positions=slice_queries(self.q_positions, first, queries),
            first_query=first,
            total_queries=self.num_queries,
        )

    def valid(self, first: int = 0, queries: int | None = None) -> Tensor | None:
        """Bool: the keys that mask and lengths allow these queries; None for all. Causality is applied elsewhere."""
        valid = slice_queries(self.mask, first, queries)
        if self.lengths is not None:
            inside = torch.arange(self.num_keys, device=self.q.device) < self.lengths
            valid = inside if valid is None else valid & inside
        return valid

    def selection(self, scores: Tensor, queries: Tensor, keys: Tensor, positions: Positions) -> SelectionInputs:
        """What the mechanism sees: scores (.., C, Lk), queries (.., C, D) and keys (.., Lk, D) of the C `positions`."""
        valid = self.valid(positions.first - self.first_query, positions.queries)
        return SelectionInputs(
            scores.detach(), positions, valid, self.causal, self.choice_seed, (queries, keys), self.learned
        )

    def capped(self, scores: Tensor) -> Tensor:
        """Scaled scores, before the bias, as the call caps them."""
        return capped(scores, self.softcap)

    def weigh(self, scores: Tensor, keep: Tensor, call: SelectionInputs) -> Tensor:
        """The weights of the kept keys, by the normaliser of the call; sinks take their part."""
        if self.sinks is not None:
            return softmax_with_sinks(scores, keep, self.sinks)
        return self.normaliser.weigh(scores, keep, call)

    def dropout(self, weights: Tensor, positions: Positions, columns: Tensor) -> Tensor:
        """Drop weights and scale up the rest. `columns` are their keys: every backend drops the same pairs."""
        if self.dropout_seed is None:
            return weights
        query_ids = positions.row_ids(self.lead, self.dropout_seed)
        return dropped(weights, self.dropout_seed, query_ids, columns.to(torch.int32), self.dropout_p)


def common_lead(q: Tensor, k: Tensor, v: Tensor) -> torch.Size:
    """The batch dimensions and heads of q, k and v, broadcast together."""
    lead, shared = q.shape[:-2], k.shape[:-2] == v.shape[:-2]
    if shared and lead == k.shape[:-2]:  # torch.broadcast_shapes costs as much as a small attention
        return lead
    if shared and k.dim() == q.dim() and broadcasts(k.shape[:-2], lead):
        return lead
    return torch.broadcast_shapes(lead, k.shape[:-2], v.shape[:-2])


def shared_product(a: Tensor, b: Tensor) -> Tensor:
    """a (..., G, L, M) @ b (..., 1, M, N): heads that share keys as one product; torch would copy b for each."""
    if a.dim() < 3 or a.dim() != b.dim() or b.shape[-3] != 1 or a.shape[-3] == 1:
        return a @ b
    return (a.flatten(-3, -2) @ b.squeeze(-3)).unflatten(-2, a.shape[-3:-1])


def slice_queries(tensor: Tensor | None, first: int, queries: int | None) -> Tensor | None:
    """The part of a mask or bias (.., Lq or 1, Lk or 1) that belongs to these queries."""
    if tensor is None or queries is None or tensor.shape[-2] == 1:
        return tensor
    return tensor[..., first : first + queries, :]
