"""Doubly normalised attention: no key is explained away by others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semfocus.attention.base import SelectionInputs
from semfocus.attention.registry import register_normaliser
from semfocus.attention.weights import Normaliser, softmax_over

if TYPE_CHECKING:
    from torch import Tensor


@register_normaliser
@dataclass(frozen=True)
class Doubly(Normaliser):
    """exp(s) divided by its sum over queries, for each key; then by the sum over keys, for each query.

    The attention of Ding et al. 2020 (arXiv 2009.14308). Every key hands out a total weight of 1 before queries
    normalise, so that none goes unseen. Only queries that keep a key count for it, and no padding: a query that stands
    at a masked key of its own row. The sum over queries looks ahead, hence there is no causal form. A score that is not
    a number shows in every query that keeps the same key.
    """

    name = "doubly"
    serves_causal = False

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        """As `weigh`, where every query counts."""
        return self._weights(scores, keep, keep)

    def weigh(self, scores: Tensor, keep: Tensor, call: SelectionInputs) -> Tensor:
        present = call.valid_queries
        return self._weights(scores, keep, keep if present is None else keep & present)

    def _weights(self, scores: Tensor, keep: Tensor, counted: Tensor) -> Tensor:
        import torch

        kept = torch.where(keep, scores, 0.0)
        if not kept.numel():
            return kept
        # The log-sum-exp over queries; a key that no query counts for keeps its scores, which only padding sees.
        top = torch.where(counted, kept.detach(), float("-inf")).amax(dim=-2, keepdim=True)
        top = torch.where(top == float("-inf"), 0.0, top)
        total = torch.where(counted, (torch.where(counted, kept, 0.0) - top).exp(), 0.0).sum(dim=-2, keepdim=True)
        return softmax_over(kept - (torch.where(total > 0, total, 1.0).log() + top), keep)
