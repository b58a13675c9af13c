"""Diagnoses with calls batched as on a GPU, compared with those of the same calls one by one."""

from __future__ import annotations

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


def gathered(work: Callable[[], Any], scores: int = 2**24) -> Any:
    """The result of `work` with calls batched as on a GPU."""
    with limited(launch_bound=frozenset({"cpu"}), scores_per_launch=scores):
        return work()


def facts(summary: Summary) -> dict[str, Any]:
    names = ("queries", "keys", "fewest_keys", "empty", "not_finite", "uneven", "exact")
    return {name: getattr(summary, name) for name in names} | {"spreads": dict(summary.spreads)}


def told(diagnosis: Diagnosis) -> list[Any]:
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
    together = gathered(lambda: diagnose(model, given, k=k), scores)
    expected = flat(told(alone))
    if rounding:
        expected = [pytest.approx(leaf, rounding, rounding) if isinstance(leaf, float) else leaf for leaf in expected]
    assert flat(told(together)) == expected
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
