"""FAST: a polynomial in place of exp, which factorises, so that attention costs O(L) instead of O(L^2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semfocus.attention.base import Positional
from semfocus.attention.registry import register_mechanism, register_normaliser
from semfocus.attention.weights import Normaliser
from semfocus.errors import UsageError, check_int

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.attention.positions import Positions

MAX_DEGREE = 8


@register_normaliser
@dataclass(frozen=True)
class FastWeights(Normaliser):
    """f(s) / sum of f(s) over the kept keys, f(s) = 1 + s + s^2 / 2 + ... up to s^degree / degree!

    Fastmax (Gerami et al. 2024, arXiv 2402.07901): exp cut after a few terms, of scores of queries and keys that are
    standardised one by one. With an even degree every weight is positive. With an odd one a weight may be negative,
    and a query whose sum is near zero has large weights of both signs.
    """

    name = "fast"
    serves_lists = True

    degree: int = 2

    def __post_init__(self) -> None:
        given: Any = self.degree  # a text form holds a float
        whole = int(given) if isinstance(given, float) and given.is_integer() else given
        object.__setattr__(self, "degree", check_int("FastWeights.degree", whole, 1, MAX_DEGREE))

    def prepared(self, vectors: Tensor) -> Tensor:
        """Each vector with mean 0 and variance 1, in its own type."""
        import torch

        wide = vectors if vectors.dtype == torch.float64 else vectors.float()
        return torch.nn.functional.layer_norm(wide, wide.shape[-1:]).to(vectors.dtype)

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        import torch

        value = torch.where(keep, self.polynomial(torch.where(keep, scores, 0.0)), 0.0)
        total = value.sum(dim=-1, keepdim=True)
        return value / torch.where(keep.any(dim=-1, keepdim=True), total, 1.0)

    def pull_back(self, scores: Tensor, keep: Tensor, weights: Tensor, grad: Tensor) -> Tensor:
        import torch

        s = torch.where(keep, scores, 0.0)
        total = torch.where(keep, self.polynomial(s), 0.0).sum(dim=-1, keepdim=True)
        total = torch.where(keep.any(dim=-1, keepdim=True), total, 1.0)
        slope = torch.where(keep, self.polynomial(s, self.degree - 1), 0.0) / total
        return slope * (grad - (weights * grad).sum(dim=-1, keepdim=True))

    def __str__(self) -> str:
        return f"{self.name}:{self.degree}"

    def polynomial(self, s: Tensor, degree: int | None = None) -> Tensor:
        """1 + s + ... + s^degree / degree!, from the inside out; its derivative is that of one degree less."""
        value = s.new_ones(()).expand_as(s)
        for power in range(self.degree if degree is None else degree, 0, -1):
            value = 1 + s / power * value
        return value


@register_mechanism
@dataclass(frozen=True)
class Fast(Positional):
    """Every key, weighed by a polynomial of this degree: `fast:2`. See `FastWeights`, which it alone goes with."""

    name = "fast"
    keeps_all = True

    degree: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree > MAX_DEGREE:
            raise UsageError(f"Fast.degree = {self.degree} must be at most {MAX_DEGREE}")

    @property
    def normaliser(self) -> FastWeights:
        return FastWeights(self.degree)

    @property
    def uses_positions(self) -> bool:
        return False

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.key >= 0
