"""Mechanisms and a normaliser of a user's own, as a module outside the package would define them.

None of them is registered here: tests do so, for as long as they run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from semfocus.attention import Mechanism, Normaliser, TopK
from semfocus.attention.mechanisms import ScoreRanked, SelectionInputs


@dataclass(frozen=True)
class LargestMagnitude(TopK):
    """The largest scores by absolute value."""

    name = "largest_magnitude"

    def priority(self, inputs):
        return inputs.scores.abs()


@dataclass(frozen=True)
class BestAndSelf(ScoreRanked):
    """The k best besides the query's own position."""

    name = "best_and_self"

    def priority(self, inputs):
        return inputs.scores

    def always_kept(self, positions, causal):
        return positions.key == positions.position

    def max_kept(self, keys):
        return min(self.k + 1, keys)


@dataclass(frozen=True)
class SignLSH(Mechanism):
    """Keeps the keys in the query's bucket: locality-sensitive hashing by the signs of `bits` projections."""

    name = "sign_lsh"

    bits: int

    def choose(self, inputs: SelectionInputs) -> Tensor:
        width = inputs.keys.shape[-1]
        planes = torch.arange(1, width * self.bits + 1, dtype=inputs.keys.dtype, device=inputs.keys.device)
        planes = planes.square().sin().view(width, self.bits)  # fixed directions, as good as random ones
        products = (inputs.queries @ planes).unsqueeze(-2) * (inputs.keys @ planes).unsqueeze(-3)  # (.., Lq, Lk, bits)
        return inputs.allowed & ~(products < 0).any(dim=-1)


@dataclass(frozen=True)
class NearestDirection(ScoreRanked):
    """Keeps the k keys whose direction is nearest to the query's: a ranking that scores alone cannot give."""

    name = "nearest_direction"

    def priority(self, inputs: SelectionInputs) -> Tensor:
        return normalize(inputs.queries, dim=-1) @ normalize(inputs.keys, dim=-1).transpose(-1, -2)


@dataclass(frozen=True)
class Softplus(Normaliser):
    """log(1 + exp(score)) divided by the number of keys kept."""

    name = "softplus"

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        count = keep.sum(dim=-1, keepdim=True).clamp(min=1)
        return torch.where(keep, softplus(torch.where(keep, scores, 0.0)) / count, 0.0)
