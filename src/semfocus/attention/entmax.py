"""Entmax: softmax's sparse relatives, which give keys of low score a weight of exactly zero.

    p_j = [(alpha - 1) s_j - tau]_+ ^ (1 / (alpha - 1)),   tau such that p sums to 1

alpha = 1 would be softmax, alpha = 2 is sparsemax (Martins and Astudillo 2016, arXiv 1602.02068); 1.5 lies between
(Peters, Niculae and Martins 2019, arXiv 1905.05702). For 1.5 and 2 the threshold follows from the support, which
sorting gives; for others it is bisected. The gradient is known in closed form (Peters et al., section 3): with
g = p^(2 - alpha) on the support, ds = g (dp - <g, dp> / <g, 1>).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semfocus.attention.registry import register_normaliser
from semfocus.attention.weights import Normaliser
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

BISECTIONS = {32: 40, 64: 70}  # by the bits of the type: more do not change the threshold
NEWTON_STEPS = 2  # after bisection: the first makes the gradient exact, the second the gradient of the gradient
LARGEST_EXPONENT = 80.0  # exp of it is finite in float32


@register_normaliser
@dataclass(frozen=True)
class Entmax(Normaliser):
    """Weights that are exactly zero below a threshold, and sum to 1: `entmax:1.5`. Larger alpha, fewer keys."""

    name = "entmax"
    serves_lists = True

    alpha: float = 1.5

    def __post_init__(self) -> None:
        number = isinstance(self.alpha, (int, float)) and not isinstance(self.alpha, bool)
        if not number or not 1 < self.alpha < float("inf"):
            raise UsageError(
                f"Entmax.alpha = {self.alpha!r} must be a number above 1 and finite: at 1 it is softmax (write "
                "'softmax'), at infinity the largest score alone (write 'topk:1')"
            )
        object.__setattr__(self, "alpha", float(self.alpha))

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        return entmax(scores, keep, self.alpha)

    def pull_back(self, scores: Tensor, keep: Tensor, weights: Tensor, grad: Tensor) -> Tensor:
        return entmax_gradient(weights, grad, self.alpha)

    def __str__(self) -> str:
        return f"{self.name}:{repr(self.alpha).removesuffix('.0')}"


@register_normaliser
@dataclass(frozen=True)
class Sparsemax(Normaliser):
    """The nearest point of the simplex to the scores: `entmax:2` by its own name."""

    name = "sparsemax"
    serves_lists = True

    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        return entmax(scores, keep, 2.0)

    def pull_back(self, scores: Tensor, keep: Tensor, weights: Tensor, grad: Tensor) -> Tensor:
        return entmax_gradient(weights, grad, 2.0)


def entmax(scores: Tensor, keep: Tensor, alpha: float) -> Tensor:
    """(..., n) weights of scores (..., n) over the keys where `keep`, by plain tensor operations."""
    import torch

    masked = torch.where(keep, scores, float("-inf"))
    if not masked.shape[-1]:
        return masked
    top = masked.detach().amax(dim=-1, keepdim=True)
    # A constant shift changes neither weights nor gradients. At most 0, and finite also for a query without keys.
    below = torch.where(keep, scores - torch.where(top == float("-inf"), 0.0, top), 0.0)
    by_support: dict[float, Callable[[Tensor, Tensor], Tensor]] = {1.5: _entmax15, 2.0: _sparsemax}
    if alpha in by_support:
        weights = by_support[alpha](below * (alpha - 1), keep)
    else:
        weights = _by_bisection(below * (alpha - 1), keep, alpha)
    return torch.where(keep & ~(top < float("inf")), float("nan"), weights)


def entmax_gradient(weights: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """The gradient of the scores (..., n) from the weights and their gradient."""
    import torch

    support = weights > 0
    slope = torch.where(support, torch.where(support, weights, 1.0) ** (2 - alpha), 0.0)
    total = slope.sum(dim=-1, keepdim=True)
    mean = (slope * grad).sum(dim=-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return slope * (grad - mean)


def _sorted_candidates(z: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted z (largest first), which of them can be in the support, and how many there are up to each."""
    import torch

    with torch.no_grad():
        # The largest z is 0 and its weight at most 1: the threshold is not below -1, and neither is the support.
        ordered = torch.where(keep, z, float("-inf")).sort(dim=-1, descending=True).values
        candidate = ordered > -1
        count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        return torch.where(candidate, ordered, 0.0), candidate, count


def _entmax15(z: Tensor, keep: Tensor) -> Tensor:
    import torch

    with torch.no_grad():
        ordered, candidate, count = _sorted_candidates(z.detach(), keep)
        mean = ordered.cumsum(dim=-1) / count
        variance = ordered.square().cumsum(dim=-1) / count - mean.square()
        tau = mean - (1 / count - variance).clamp(min=0).sqrt()
        size = (candidate & (tau <= ordered)).sum(dim=-1, keepdim=True)
        support = keep & (z > tau.gather(-1, (size - 1).clamp(min=0)))
        size = support.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = torch.where(support, z, 0.0).sum(dim=-1, keepdim=True) / size
    spread = torch.where(support, z - mean, 0.0).square().sum(dim=-1, keepdim=True)
    # On the support (1 - spread) / size >= 1 / size^2, since the weights sum to 1 and none is larger than 1.
    tau = mean - ((1 - spread) / size).clamp(min=1e-30).sqrt()
    return torch.where(support, z - tau, 0.0).square()


def _sparsemax(z: Tensor, keep: Tensor) -> Tensor:
    import torch

    with torch.no_grad():
        ordered, candidate, count = _sorted_candidates(z.detach(), keep)
        size = (candidate & (1 + count * ordered > ordered.cumsum(dim=-1))).sum(dim=-1, keepdim=True)
        tau = (ordered.cumsum(dim=-1).gather(-1, (size - 1).clamp(min=0)) - 1) / size.clamp(min=1)
        support = keep & (z > tau)
        size = support.sum(dim=-1, keepdim=True).clamp(min=1)
    tau = (torch.where(support, z, 0.0).sum(dim=-1, keepdim=True) - 1) / size
    return torch.where(support, z - tau, 0.0)


def _by_bisection(z: Tensor, keep: Tensor, alpha: float) -> Tensor:
    """Any alpha. With c = -log(largest weight), in [0, log n]:

        p_j = exp(-c + log1p(z_j exp((alpha - 1) c)) / (alpha - 1)),

    which keeps its digits from alpha near 1, where c becomes the log-sum-exp, to large ones.
    """
    import torch

    def parts(c: Tensor, support: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The weights, 1 + z exp((alpha - 1) c), and the support."""
        ratio = 1 + z * ((alpha - 1) * c).clamp(max=LARGEST_EXPONENT).exp()
        support = keep & (ratio > 0) if support is None else support
        ratio = torch.where(support, ratio, 1.0)
        return torch.where(support, (ratio.log() / (alpha - 1) - c).exp(), 0.0), ratio, support

    with torch.no_grad():
        low = torch.zeros_like(z[..., :1])
        high = keep.sum(dim=-1, keepdim=True).clamp(min=1).to(z.dtype).log().expand_as(low)
        for _ in range(BISECTIONS[torch.finfo(z.dtype).bits]):
            middle = (low + high) / 2
            too_much = parts(middle)[0].sum(dim=-1, keepdim=True) > 1
            low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
        c = (low + high) / 2
        support = parts(c)[2]
    for _ in range(NEWTON_STEPS):
        p, ratio, _ = parts(c, support)
        slope = torch.where(support, p / ratio, 0.0).sum(dim=-1, keepdim=True)
        missing = p.sum(dim=-1, keepdim=True) - 1
        c = c + torch.where(slope > 0, missing / torch.where(slope > 0, slope, 1.0), 0.0)
    # With a large alpha one rounding of c moves a small weight by much: what is left over is shared out.
    p = parts(c, support)[0]
    total = p.sum(dim=-1, keepdim=True)
    return p / torch.where(total > 0, total, 1.0)
