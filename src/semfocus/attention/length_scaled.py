"""Normalisers that sharpen the scores as sequences grow, so that attention to many keys does not flatten out.

Softmax over n keys has a largest weight of order 1 / n unless the scores grow with log n. n = the keys that the call
allows the query (mask, lengths, causality), kept or not: top-5 of 40 and top-5 of 400 keys differ in n.
"""

from __future__ import annotations

import math
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

FEW = 3  # keys, up to which LSSAR subtracts nothing


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
    """Length-scaled softplus attention, re-weighted, in two stages (Gao et al. 2025, arXiv 2501.13428):

        a = softplus(log(D) log(n) cos(q, k)), divided by its sum        cosines, not products: D is the head width
        p = relu(m a - 1)^15, divided by its sum                         m keys are kept: what is below the mean drops

    Softplus grows linearly where exp explodes; the power sharpens what the first sum left. Queries of three keys or
    fewer subtract nothing, as published; if all weights are equal they stay so, where the published form gives zeros.
    A `scale` of the call other than 1 / sqrt(D) multiplies the cosines by its ratio to that.
    """

    name = "lssar"

    exponent: float = 15.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", check_float("LSSAR.exponent", self.exponent, 1.0, 1e6))

    def prepared(self, vectors: Tensor) -> Tensor:
        """Each vector at a length such that the scaled product of two is log(D) times their cosine."""
        import torch

        wide = vectors if vectors.dtype == torch.float64 else vectors.float()
        width = wide.shape[-1]
        length = (width**0.5 * math.log(width)) ** 0.5
        return (length * torch.nn.functional.normalize(wide, dim=-1)).to(vectors.dtype)

    def _weights(self, scores: Tensor, keep: Tensor, count: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        import torch

        logs = _log_softplus(torch.where(keep, scores, 0.0) * count.clamp(min=1).to(scores.dtype).log())
        top = _largest_kept(logs, keep)
        below = torch.where(keep, torch.expm1(logs - torch.where(top == float("-inf"), 0.0, top)), 0.0)  # -1 .. 0
        number = keep.sum(dim=-1, keepdim=True)
        mean = below.sum(dim=-1, keepdim=True) / number.clamp(min=1)
        above = below - torch.where(number > FEW, mean, -1.0)  # (m a - 1, or a) in a unit of its own
        best = _largest_kept(above, keep)
        is_level = best == 0
        kept = keep & (is_level | ~(above <= 0))  # NaN stays, so that it shows
        share = torch.where(kept, torch.where(is_level, 1.0, above / torch.where(is_level, 1.0, best)), 1.0)
        power = torch.where(kept, share**self.exponent, 0.0)
        return power / torch.where(number > 0, power.sum(dim=-1, keepdim=True), 1.0)


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + exp(x))), which is x far below zero, where softplus itself underflows."""
    import torch
    from torch.nn.functional import softplus

    small = x < -20
    return torch.where(small, x, softplus(torch.where(small, 0.0, x)).log())


def _largest_kept(values: Tensor, keep: Tensor) -> Tensor:
    """(..., Lq, 1): a constant for the gradient; -inf for a query without keys."""
    import torch

    kept = torch.where(keep, values.detach(), float("-inf"))
    return kept.amax(dim=-1, keepdim=True) if kept.shape[-1] else kept.new_full((*kept.shape[:-1], 1), float("-inf"))
