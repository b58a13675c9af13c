"""How much each kept key counts: frozen values beside the mechanisms, so that every pair of the two can be compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from semfocus.errors import UsageError


@dataclass(frozen=True)
class Normaliser(ABC):
    """Turns scores into weights over the kept keys; a key that is not kept has weight zero and no gradient."""

    name: ClassVar[str]

    @abstractmethod
    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        """(..., Lq, Lk) weights; a row without keys is all zero."""


@dataclass(frozen=True)
class Softmax(Normaliser):
    """exp(score) / sum over the kept keys of exp(score)."""

    name = "softmax"

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        kept = torch.where(keep, scores, float("-inf")).softmax(dim=-1)
        # The outer choice turns the NaN of a row without keys into zeros; the inner one keeps its gradient away.
        return torch.where(keep, kept, 0.0)


@dataclass(frozen=True)
class Sigmoid(Normaliser):
    """1 / (1 + exp(-(score + bias))): keys do not compete. The default bias is minus the log of the keys kept."""

    name = "sigmoid"

    bias: float | None = None

    def __post_init__(self) -> None:
        if self.bias is not None and not (isinstance(self.bias, (int, float)) and abs(self.bias) < float("inf")):
            raise UsageError(f"Sigmoid.bias = {self.bias!r} must be a finite number, or None for -log(keys kept)")

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        count = keep.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype)
        bias = -count.log() if self.bias is None else self.bias
        return torch.where(keep, torch.sigmoid(torch.where(keep, scores, 0.0) + bias), 0.0)


def log_sum_exp(scores: Tensor, keep: Tensor) -> Tensor:
    """(..., Lq): log of the sum of exp over the kept scores; -inf for a row without keys."""
    return torch.where(keep, scores, float("-inf")).logsumexp(dim=-1)
