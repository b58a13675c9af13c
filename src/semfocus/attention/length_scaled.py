"""Normalisers that sharpen the scores as sequences grow, so that attention to many keys does not flatten out.

Softmax over n keys has a largest weight of order 1 / n unless the scores grow with log n. n = the keys that the call
allows the query (mask, lengths, causality), kept or not: top-5 of 40 and top-5 of 400 keys differ in n.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semfocus.attention.base import SelectionInputs
from semfocus.attention.entmax import Entmax, entmax
from semfocus.attention.registry import register_normaliser
from semfocus.attention.weights import LayerSizes, Learned, Normaliser, softmax_over
from semfocus.errors import check_float

if TYPE_CHECKING:
    from torch import Tensor


class LengthScaled(Normaliser):
    """Weights that depend on the number n of allowed keys."""

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        """As `weigh`, where every allowed key is kept and nothing is learned."""
        return self._weights(scores, keep, keep.sum(dim=-1, keepdim=True), {})

    def weigh(self, scores: Tensor, keep: Tensor, call: SelectionInputs) -> Tensor:
        return self._weights(scores, keep, call.allowed.sum(dim=-1, keepdim=True), call.learned or {})

    @abstractmethod
    def _weights(self, scores: Tensor, keep: Tensor, count: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        """`count` (..., Lq, 1) is n; `learned` holds tensors (..., H, Lq or 1, 1)."""


@register_normaliser
@dataclass(frozen=True)
class SSMax(LengthScaled):
    """softmax(b log(n) s), b learned by each head (Scalable-Softmax, Nakanishi 2025, arXiv 2501.19399).

    `scale` is b where nothing is learned, and what a layer's b starts from: 0.43, the b of that paper's illustration.
    """

    name = "ssmax"
    learns = ("scale",)

    scale: float = 0.43

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_float("SSMax.scale", self.scale, -1e6, 1e6))

    def learned(self, sizes: LayerSizes) -> dict[str, Learned]:
        return {"scale": Learned((sizes.heads, 1), "constant", self.scale)}

    def _weights(self, scores: Tensor, keep: Tensor, count: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        import torch

        scale = learned.get("scale", self.scale) * count.clamp(min=1).to(scores.dtype).log()
        return softmax_over(torch.where(keep, scores, 0.0) * scale, keep)


@register_normaliser
@dataclass(frozen=True)
class ASEntmax(LengthScaled):
    """entmax((1 + b log(n + 1)^g) s): adaptive-scalable entmax (Vasylenko et al. 2025, arXiv 2506.16640).

    A layer learns two projections of each query's vector x, per head: b = softplus(x . w) and g = 2 tanh(x . u). The
    offset 1, the range 2 and log(n + 1), which is positive for n = 1 too, are those of the authors' code
    (deep-spin/asentmax). Where nothing is learned b = log 2 and g = 0, as for w = u = 0.
    """

    name = "asentmax"
    learns = ("beta", "gamma")

    alpha: float = 1.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", Entmax(self.alpha).alpha)

    def learned(self, sizes: LayerSizes) -> dict[str, Learned]:
        projection = Learned((sizes.d_model, sizes.heads), "uniform", sizes.d_model**-0.5)
        return {"beta": projection, "gamma": projection}

    def of_layer(self, parameters: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        return {name: (x @ weight).transpose(-1, -2) for name, weight in parameters.items()}

    def _weights(self, scores: Tensor, keep: Tensor, count: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        import torch
        from torch.nn.functional import softplus

        zero = scores.new_zeros(())
        beta, gamma = softplus(learned.get("beta", zero)), 2 * learned.get("gamma", zero).tanh()
        scale = 1 + beta * (count.to(scores.dtype) + 1).log().clamp(min=1e-6) ** gamma
        return entmax(torch.where(keep, scores, 0.0) * scale, keep, self.alpha)


@register_normaliser
@dataclass(frozen=True)
class LSSAR(LengthScaled):
    """softplus(log(n) s)^p, divided by its sum: length-scaled softplus attention, re-weighted (arXiv 2501.13428).

    Softplus grows linearly where exp explodes; the power p sharpens what the division by the sum left.
    """

    name = "lssar"

    exponent: float = 15.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", check_float("LSSAR.exponent", self.exponent, 1e-6, 1e6))

    def _weights(self, scores: Tensor, keep: Tensor, count: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        import torch
        from torch.nn.functional import softplus

        scaled = torch.where(keep, scores, 0.0) * count.clamp(min=1).to(scores.dtype).log()
        # Powers of tiny numbers underflow; their logarithms do not. softplus(x) is exp(x) far below zero.
        small = scaled < -20
        logs = torch.where(small, scaled, softplus(torch.where(small, 0.0, scaled)).log())
        return softmax_over(self.exponent * logs, keep)
