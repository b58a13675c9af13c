"""How much each kept key counts: frozen values beside the mechanisms, so that every pair of the two can be compared.

    Softmax()              softmax
    Sigmoid(bias=-2.5)     sigmoid:-2.5
    Entmax(1.5)            entmax:1.5        exact zeros; sparsemax is entmax:2
    SSMax()                ssmax             softmax, sharper in longer sequences; asentmax and lssar likewise
    Doubly()               doubly            over queries, then over keys
    FastWeights(2)         fast:2            a polynomial in place of exp

A new normaliser is one class derived from `Normaliser` with `@register_normaliser`. Nothing here imports torch when it
is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semfocus.attention.doubly import Doubly as Doubly
from semfocus.attention.entmax import Entmax as Entmax
from semfocus.attention.entmax import Sparsemax as Sparsemax
from semfocus.attention.fast import FastWeights as FastWeights
from semfocus.attention.length_scaled import LSSAR as LSSAR
from semfocus.attention.length_scaled import ASEntmax as ASEntmax
from semfocus.attention.length_scaled import SSMax as SSMax
from semfocus.attention.registry import normaliser_names as normaliser_names
from semfocus.attention.registry import parse_normaliser as parse_normaliser
from semfocus.attention.registry import register_normaliser as register_normaliser
from semfocus.attention.weights import Normaliser as Normaliser
from semfocus.attention.weights import log_sum_exp as log_sum_exp
from semfocus.attention.weights import softmax_over
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@register_normaliser
@dataclass(frozen=True)
class Softmax(Normaliser):
    """exp(score) / sum over the kept keys of exp(score)."""

    name = "softmax"
    is_softmax = True

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        return softmax_over(scores, keep)


@register_normaliser
@dataclass(frozen=True)
class Sigmoid(Normaliser):
    """1 / (1 + exp(-(score + bias))): keys do not compete. The default bias is minus the log of the keys kept.

    Sigmoid self-attention (Ramapuram et al. 2024, arXiv 2409.04431).
    """

    name = "sigmoid"
    serves_lists = True

    bias: float | None = None

    def __post_init__(self) -> None:
        if self.bias is not None and not (isinstance(self.bias, (int, float)) and abs(self.bias) < float("inf")):
            raise UsageError(f"Sigmoid.bias = {self.bias!r} must be a finite number, or None for -log(keys kept)")

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        import torch

        count = keep.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype)
        bias = -count.log() if self.bias is None else self.bias
        return torch.where(keep, torch.sigmoid(torch.where(keep, scores, 0.0) + bias), 0.0)

    def pull_back(self, scores: Tensor, keep: Tensor, weights: Tensor, grad: Tensor) -> Tensor:
        return weights * (1 - weights) * grad
