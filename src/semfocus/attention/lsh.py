"""Locality-sensitive hashing: a query sees the keys that point in nearly the same direction as it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semfocus.attention.base import Ranking, ScoreRanked, SelectionInputs
from semfocus.attention.registry import register_mechanism
from semfocus.attention.routing import unclear
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

AXES_STRIDE = 2**16  # between the random columns of two rounds: more axes than a hash ever has


@register_mechanism
@dataclass(frozen=True)
class LSH(ScoreRanked):
    """Of the keys that share a bucket with the query in any of `rounds` hashes, the k with the largest scores.

    The hash of Reformer (Kitaev, Kaiser and Levskaya 2020, arXiv 2001.04451): a vector x goes to the bucket
    argmax([xR, -xR]) of a random rotation R, so that the nearer two directions are, the likelier they share it. Each
    round rotates anew. Reformer hashes one vector a token, its query and key at once; here both are hashed as they
    are, so that a query may share no bucket with any key, and then keeps none. The cap k makes budgets comparable with
    top-k. Rotations follow from the seed of the call, as random choices do; all heads that share a seed share them.
    An odd number of buckets counts as the next even one.
    """

    name = "lsh"
    suffixes = {"h": "rounds", "b": "buckets", "r": "seed"}
    is_stochastic = True

    rounds: int = 2
    buckets: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, least, most in (("rounds", 1, 1024), ("buckets", 2, AXES_STRIDE)):
            if not least <= getattr(self, field) <= most:
                raise UsageError(f"LSH.{field} = {getattr(self, field)} must be a whole number from {least} to {most}")

    @property
    def uses_positions(self) -> bool:
        return False

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def priority(self, inputs: SelectionInputs) -> Tensor:
        return inputs.scores

    def ranking(self, inputs: SelectionInputs) -> Ranking:
        every = super().ranking(inputs)
        return replace(every, candidates=every.candidates & (self.share_a_bucket(inputs) | unclear(inputs.queries)))

    def share_a_bucket(self, inputs: SelectionInputs) -> Tensor:
        """(..., Lq, Lk) bool."""
        import torch

        from semfocus.counter_rng import standard_normal

        queries, keys = inputs.queries, inputs.keys
        if queries.shape[-1] != keys.shape[-1]:
            raise UsageError(
                f"{self}: queries are {queries.shape[-1]} wide and keys {keys.shape[-1]}; one rotation hashes both, so "
                "project them to one width"
            )
        seed, device, half = inputs.seed_or(self.seed), queries.device, -(-self.buckets // 2)
        rows = torch.arange(queries.shape[-1], dtype=torch.int32, device=device).unsqueeze(-1)
        shared = torch.zeros((), dtype=torch.bool, device=device)
        for number in range(self.rounds):
            columns = torch.arange(half, dtype=torch.int32, device=device) + number * AXES_STRIDE
            rotation = standard_normal(seed, rows, columns).to(queries.dtype)  # (..., D, buckets / 2)
            own, others = (self._bucket(vectors @ rotation) for vectors in (queries, keys))
            shared = shared | (own.unsqueeze(-1) == others.unsqueeze(-2))
        return shared

    @staticmethod
    def _bucket(rotated: Tensor) -> Tensor:
        """(...) int64: the nearest of the axes and their opposites."""
        import torch

        return torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
