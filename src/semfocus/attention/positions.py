"""Positions of queries and keys, and the masks that follow from them.

Shapes: Q queries at hand, K keys. Query i of `total` has position p = i + K - total, so that the last query stands at
the last key, unless positions are given: then masks have their leading dimensions (...), otherwise none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.counter_rng import row_ids


@dataclass(frozen=True)
class Positions:
    """The queries `first` .. `first + queries - 1` of `total`, and all `keys`.

    `given` are positions (..., Q, 1) of these queries and (..., 1, K) of the keys; a negative one belongs to no token.
    """

    queries: int
    keys: int
    device: torch.device
    first: int
    total: int
    given: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(scores: Tensor) -> Positions:
        """All the queries of a (..., Lq, Lk) tensor."""
        return Positions(scores.shape[-2], scores.shape[-1], scores.device, 0, scores.shape[-2])

    @property
    def position(self) -> Tensor:
        """(..., Q, 1) the position of each query among the keys; negative when there are more queries than keys."""
        if self.given is not None:
            return self.given[0]
        start = self.first + self.keys - self.total
        return torch.arange(start, start + self.queries, device=self.device).unsqueeze(-1)

    @property
    def at_the_end(self) -> bool:
        """Whether every query is known to stand at the last key or behind it, so that no key is ahead of it."""
        return self.given is None and self.first >= self.total - 1

    @property
    def key(self) -> Tensor:
        """(..., 1, K) the position of each key."""
        return self.key_index if self.given is None else self.given[1]

    @property
    def key_index(self) -> Tensor:
        """(1, K) the number of each key, which random draws follow."""
        return torch.arange(self.keys, device=self.device).unsqueeze(0)

    @property
    def length(self) -> Tensor:
        """(..., 1, 1) the number of positions: one more than the last key's."""
        if self.given is None or not self.keys:
            return torch.full((1, 1), self.keys, device=self.device)
        return self.given[1].amax(dim=-1, keepdim=True) + 1

    def row_ids(self, lead: torch.Size, seed: Tensor) -> Tensor:
        """(*lead, Q, 1): a number for each query, unique among the batch entries and heads that share a seed.

        Along a dimension where seeds differ, the numbers start anew.
        """
        offset = seed.dim() - 2 - len(lead)  # a seed has the dimensions of the scores, aligned at the right
        owns = [i + offset >= 0 and seed.shape[i + offset] > 1 for i in range(len(lead))]
        shared = tuple(1 if own else size for own, size in zip(owns, lead, strict=True))
        return row_ids(shared, self.queries, self.device, self.first, self.total)

    def past(self) -> Tensor:
        """(..., Q, K): keys at or before the query."""
        return self.key <= self.position

    def window_start(self, width: int, num_globals: int, causal: bool) -> Tensor:
        """(..., Q, 1): the first position of each query's window."""
        if causal:
            return self.position - (width - 1)
        start = self.position - (width - 1) // 2
        if self.given is None:
            return start.clamp(0, max(self.keys - num_globals - width, 0))
        return torch.minimum(start, self.length - num_globals - width).clamp(min=0)

    def window(self, width: int, num_globals: int, causal: bool) -> Tensor:
        """(..., Q, K): the `width` keys around the query; at the borders of the non-global keys it moves inward."""
        key, start = self.key, self.window_start(width, num_globals, causal)
        inside = (key >= start) & (key < start + width)
        if self.given is None and not num_globals:
            return inside  # no key stands behind the last one
        return inside & (key < self.length - num_globals)

    def block(self, width: int) -> Tensor:
        """(..., Q, K): keys in the query's aligned block."""
        return self.key // width == self.position // width

    def run(self, start: Tensor, width: int, num_globals: int) -> Tensor:
        """(Q, width + num_globals): `width` keys from `start` on, -1 for global or missing ones, then global keys."""
        border = self.keys - num_globals  # the first global key
        own = start + torch.arange(width, device=self.device)
        own = torch.where((own >= 0) & (own < border), own, -1)
        return self._with_globals(own, border)

    def ring_run(self, start: Tensor, width: int, num_globals: int) -> Tensor:
        """(Q, width + num_globals): as `run`, where the keys that are not global are a ring; none is listed twice."""
        border = self.keys - num_globals
        place = torch.arange(width, device=self.device)
        own = torch.where(place < border, (start + place) % max(border, 1), -1)
        return self._with_globals(own, border)

    def _with_globals(self, own: Tensor, border: int) -> Tensor:
        shared = torch.arange(max(border, 0), self.keys, device=self.device).expand(self.queries, -1)
        return torch.cat([own, shared], dim=-1)

    def touches_global(self, num_globals: int) -> Tensor:
        """(..., Q, K): pairs of which one side is among the last `num_globals`; none stands behind the last key."""
        length = self.length
        border = length - num_globals
        return (self.key >= border) | ((self.position >= border) & (self.position < length))

    def allowed(self, pattern: Tensor, valid: Tensor | None, causal: bool) -> Tensor:
        """The part of a pattern (.., Q, K) that `valid` and, if causal, the order of positions allow."""
        if self.given is not None:
            pattern = pattern & (self.position >= 0) & (self.key >= 0)
        if valid is not None:
            pattern = pattern & valid
        return pattern & self.past() if causal and not self.at_the_end else pattern
