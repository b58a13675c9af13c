"""Reference results: statistics in float64 from whole score matrices, and diagnoses of calls one by one.

`assert_same` compares the latter with calls batched as on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus import attend
from semfocus.attention import parse_mechanism
from semfocus.diagnostics import diagnose
from semfocus.diagnostics.aggregate import Summary
from semfocus.diagnostics.diagnosing import Diagnosis
from semfocus.diagnostics.scores import limited
from semfocus.theory import dispersion, in_degree, separation, softmax_jacobian_norm


def batched(work: Callable[[], Any], scores: int = 2**24) -> Any:
    """The result of `work` with calls batched as on a GPU."""
    with limited(launch_bound=frozenset({"cpu"}), scores_per_launch=scores):
        return work()


def facts(summary: Summary) -> dict[str, Any]:
    names = ("queries", "keys", "fewest_keys", "empty", "not_finite", "uneven", "exact")
    return {name: getattr(summary, name) for name in names} | {"spreads": dict(summary.spreads)}


def as_lists(diagnosis: Diagnosis) -> list[Any]:
    layers = [(layer.name, facts(layer.whole), [facts(head) for head in layer.heads]) for layer in diagnosis.layers]
    return [layers, facts(diagnosis.whole), diagnosis.longest]


def flat(nested: Any) -> list[Any]:
    if isinstance(nested, dict):
        return flat(list(nested.items()))
    return [leaf for part in nested for leaf in flat(part)] if isinstance(nested, (list, tuple)) else [nested]


def assert_same(
    model: nn.Module, batches: Iterable[Any], k: int = 3, scores: int = 2**24, rounding: float = 0.0
) -> Diagnosis:
    """`rounding`: matrix products of other shapes and strides may differ in their last bits."""
    given = list(batches)
    alone = diagnose(model, given, k=k)
    together = batched(lambda: diagnose(model, given, k=k), scores)
    expected = flat(as_lists(alone))
    if rounding:
        expected = [pytest.approx(leaf, rounding, rounding) if isinstance(leaf, float) else leaf for leaf in expected]
    assert flat(as_lists(together)) == expected
    return alone


class Given(nn.Module):
    """Attention over queries and keys that come as arguments, by torch or, with a mechanism, by us."""

    def __init__(self, mechanism: str | None = None, **options: Any) -> None:
        super().__init__()
        self.mechanism, self.options = mechanism and parse_mechanism(mechanism), options

    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.mechanism is None:
            return functional.scaled_dot_product_attention(q, k, k, attn_mask=mask, **self.options)
        return attend(q, k, k, self.mechanism, **({"mask": mask} | self.options))


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Multiples of a quarter, whose products and their sums are exact however they are computed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(12).round().div(4)


def pairs(count: int, queries: tuple[int, ...], keys: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    return [(draw(*queries, seed=2 * i), draw(*keys, seed=2 * i + 1)) for i in range(count)]


def plain_statistics(scores: Tensor, valid: Tensor, k: int, keep: Tensor | None = None) -> dict[str, list[float]]:
    """The statistics of one head from scores and valid keys (Lq, Lk). Queries without a valid key are left out."""
    scores = scores.double()
    keep = valid if keep is None else keep & valid
    heavy = torch.zeros_like(valid)
    statistics: dict[str, list[float]] = {name: [] for name in ("entropy", "top_share", "k95", "k99")}
    rows = [i for i in range(len(scores)) if valid[i].any()]
    received = torch.zeros(scores.shape[-1], dtype=torch.float64)
    for i in rows:
        order = sorted(torch.where(valid[i])[0].tolist(), key=lambda j: (-float(scores[i, j]), j))
        heavy[i, order[:k]] = True
        weights = torch.where(valid[i], scores[i], -math.inf).softmax(-1)
        received += weights
        falling = [float(weights[j]) for j in order]
        statistics["entropy"].append(-sum(w * math.log(w) for w in falling if w > 0))
        statistics["top_share"].append(sum(falling[:k]))
        for name, share in (("k95", 0.95), ("k99", 0.99)):
            count, total = 0, 0.0
            while total < share * sum(falling):
                total += falling[count]
                count += 1
            statistics[name].append(float(count))
    statistics["delta"] = dispersion(scores, keep)[rows].tolist()
    statistics["delta_full"] = dispersion(scores, valid)[rows].tolist()
    statistics["delta_heavy"] = dispersion(scores, heavy)[rows].tolist()
    statistics["separation"] = separation(scores, heavy, valid)[rows].tolist()
    statistics["jacobian"] = softmax_jacobian_norm(scores, valid, norm=1)[rows].tolist()
    statistics["in_degree"] = [float(d) for d, seen in zip(in_degree(heavy), valid.any(0), strict=True) if seen]
    statistics["sink_share"] = [float(received.max()) / max(len(rows), 1)] if rows else []
    return statistics


def quantile(values: list[float], level: float) -> float:
    """Linear between neighbours; infinite neighbours give infinity."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if place == math.floor(place) else (1 - (place % 1)) * low + (place % 1) * high
