"""Routing: queries and keys are clustered by direction, and a query sees the keys of its own cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semfocus.attention.base import Ranking, ScoreRanked, SelectionInputs
from semfocus.attention.registry import register_mechanism
from semfocus.attention.weights import LayerSizes, Learned
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

DECAY = 0.999  # of the centroids' moving average, as in the paper


@register_mechanism
@dataclass(frozen=True)
class Routing(ScoreRanked):
    """Of the keys in the query's cluster, the k with the largest scores.

    The clusters of the Routing Transformer (Roy et al. 2020, arXiv 2003.05997): queries and keys, scaled to unit
    length, belong to the centroid of largest dot product. A layer's centroids follow the mean of their queries and
    keys by a moving average in training and stand still in evaluation. Where nothing is learned they are random
    directions drawn from `seed`. The paper gives every cluster the same number of tokens; here a cluster has as many
    as fall to it, and the cap k makes budgets comparable with top-k. The paper advises sqrt(keys) clusters; their
    number is fixed here, so that padding changes nothing.
    """

    name = "routing"
    suffixes = {"c": "clusters", "r": "seed"}
    learns = ("centroids",)

    clusters: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters < 1:
            raise UsageError("Routing.clusters = 0 must be at least 1: every key belongs to a cluster")

    @property
    def uses_positions(self) -> bool:
        return False

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def refuses(self, queries: int, keys: int) -> str | None:
        if self.clusters <= keys or not keys:
            return None
        return f"it has {self.clusters} clusters for {keys} keys; choose at most {keys}"

    def learned(self, sizes: LayerSizes) -> dict[str, Learned]:
        shape = (sizes.heads, self.clusters, sizes.head_dim)
        return {"centroids": Learned(shape, "directions", average=1 - DECAY)}

    def gaps(
        self, learned: Mapping[str, Tensor], queries: Tensor, keys: Tensor, valid: Tensor | None
    ) -> dict[str, Tensor]:
        """Queries and keys count alike; padding neither way, where queries stand at the keys."""
        import torch

        square = queries.shape[-2] == keys.shape[-2]
        rows = [_together(part.detach()) for part in (queries, keys)]
        present = None
        if valid is not None:
            keys_valid = _together(valid.unsqueeze(-1).expand(*keys.shape[:-1], 1))
            present = torch.cat([keys_valid if square else torch.ones_like(rows[0][..., :1]) > 0, keys_valid], dim=-2)
        return {"centroids": cluster_gap(torch.cat(rows, dim=-2), present, learned["centroids"].detach())}

    def priority(self, inputs: SelectionInputs) -> Tensor:
        return inputs.scores

    def ranking(self, inputs: SelectionInputs) -> Ranking:
        every = super().ranking(inputs)
        centroids = self.centroids(inputs)
        own, others = (nearest(vectors, centroids) for vectors in (inputs.queries, inputs.keys))
        same = (own.unsqueeze(-1) == others.unsqueeze(-2)) | unclear(inputs.queries)
        return replace(every, candidates=every.candidates & same)

    def centroids(self, inputs: SelectionInputs) -> Tensor:
        """(..., C, D)."""
        import torch

        from semfocus.counter_rng import standard_normal

        if inputs.learned and "centroids" in inputs.learned:
            return inputs.learned["centroids"].detach().to(inputs.queries.dtype)
        device, keys = inputs.queries.device, inputs.keys
        seed = torch.full((), self.seed, dtype=torch.int64, device=device)
        rows = torch.arange(self.clusters, dtype=torch.int32, device=device).unsqueeze(-1)
        columns = torch.arange(keys.shape[-1], dtype=torch.int32, device=device)
        return unit(standard_normal(seed, rows, columns).to(keys.dtype))


def _together(tensor: Tensor) -> Tensor:
    """(*own, B, H, L, D) as (*own, H, B L, D): what all examples have at a head."""
    return tensor.movedim(-4, -3).flatten(-3, -2)


def unclear(queries: Tensor) -> Tensor:
    """(..., Lq, 1) bool: queries that are no numbers. They belong everywhere, so that they show in the output."""
    return queries.isnan().any(dim=-1, keepdim=True)


def unit(vectors: Tensor) -> Tensor:
    """Vectors (..., D) scaled to length 1."""
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    """(..., L) int64: the centroid (..., C, D) that each vector (..., L, D) points to. Its length does not matter."""
    return (vectors @ centroids.transpose(-1, -2)).argmax(dim=-1)


def cluster_gap(vectors: Tensor, valid: Tensor | None, centroids: Tensor) -> Tensor:
    """(..., C, D): each centroid minus the mean of the unit vectors (..., L, D) nearest to it; 0 where there are none.

    `valid` (..., L, 1) bool leaves padding out. A centroid moves towards that mean by a share of this gap.
    """
    import torch

    cluster = torch.arange(centroids.shape[-2], device=vectors.device)
    near = nearest(vectors, centroids).unsqueeze(-1) == cluster  # (..., L, C)
    near = (near if valid is None else near & valid).to(vectors.dtype)
    count = near.sum(dim=-2).unsqueeze(-1)  # (..., C, 1)
    mean = near.transpose(-1, -2) @ unit(vectors) / count.clamp(min=1)
    return torch.where(count > 0, centroids - mean, 0.0)
