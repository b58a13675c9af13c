"""How much each kept key counts: frozen values beside the mechanisms, so that every pair of the two can be compared.

    Softmax()              softmax
    Sigmoid()              sigmoid
    Sigmoid(bias=-2.5)     sigmoid:-2.5

A new normaliser is one class derived from `Normaliser` with `@register_normaliser`. Nothing here imports torch when it
is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from semfocus.attention.registry import normaliser_names as normaliser_names
from semfocus.attention.registry import parse_normaliser as parse_normaliser
from semfocus.attention.registry import register_normaliser as register_normaliser
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Normaliser(ABC):
    """Turns scores into weights over the kept keys; a key that is not kept has weight zero and no gradient.

    A frozen dataclass with at most one number as a field, which has a default.
    """

    name: ClassVar[str]
    # Fused backends compute softmax by themselves. Not inherited: a subclass may compute other weights.
    is_softmax: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "is_softmax" not in vars(cls):
            cls.is_softmax = False

    @abstractmethod
    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        """(..., Lq, Lk) weights of scores (..., Lq, Lk), where the bool `keep` is True; a query without keys: zeros."""

    def __str__(self) -> str:
        changed = [f":{getattr(self, name)}" for name in self.__match_args__ if self != type(self)()]
        return self.name + "".join(changed[:1])


@register_normaliser
@dataclass(frozen=True)
class Softmax(Normaliser):
    """exp(score) / sum over the kept keys of exp(score)."""

    name = "softmax"
    is_softmax = True

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        import torch

        kept = torch.where(keep, scores, float("-inf")).softmax(dim=-1)
        # The outer choice turns the NaN of a query without keys into zeros; the inner one keeps its gradient away.
        return torch.where(keep, kept, 0.0)


@register_normaliser
@dataclass(frozen=True)
class Sigmoid(Normaliser):
    """1 / (1 + exp(-(score + bias))): keys do not compete. The default bias is minus the log of the keys kept."""

    name = "sigmoid"

    bias: float | None = None

    def __post_init__(self) -> None:
        if self.bias is not None and not (isinstance(self.bias, (int, float)) and abs(self.bias) < float("inf")):
            raise UsageError(f"Sigmoid.bias = {self.bias!r} must be a finite number, or None for -log(keys kept)")

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        import torch

        count = keep.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype)
        bias = -count.log() if self.bias is None else self.bias
        return torch.where(keep, torch.sigmoid(torch.where(keep, scores, 0.0) + bias), 0.0)


def log_sum_exp(scores: Tensor, keep: Tensor) -> Tensor:
    """(..., Lq): log of the sum of exp over the kept scores; -inf for a query without keys."""
    import torch

    return torch.where(keep, scores, float("-inf")).logsumexp(dim=-1)
