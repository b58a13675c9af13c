"""Bounds on the Lipschitz constant of a softmax: |softmax(x) - softmax(x')| <= xi |x - x'|.

    stability(delta=0.05, k=5)                     fixed mask (full attention is k = L)
    stability(delta=0.05, k=5, separation=4.0)     heavy hitters: the mask may change between x and x'
    softmax_jacobian_norm(scores, keep)            the exact value at one point

Both inputs have dispersion <= delta and, where given, separation >= `separation`. Proofs: docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from semfocus.theory.arguments import Number, aligned, fitting, like, norm_order, number, pick

_HALVINGS = 64  # of an interval inside [0, 1]: below the last bit of a float64


def weight_bound(delta: Number, k: Number, form: str = "paper") -> Number:
    """No attention weight over k keys of dispersion <= delta exceeds this.

    "paper": e^delta / k, vacuous above 1. "tight": 1 / (1 + (k-1) e^-delta), attained by one
    key delta above k-1 equal ones.
    """
    bound = pick("form", form, {"paper": _loose_weight, "tight": _tight_weight})
    spread, kept = _delta(delta), _k(k)
    fitting(delta=spread, k=kept)
    return like(bound(spread, kept), delta, k)


def stability(
    delta: Number, k: Number, separation: Number | None = None, norm: int = 2, form: str = "certified"
) -> Number:
    """The constant xi of a masked softmax over k keys, in the 1-norm or the 2-norm.

    Without `separation` the mask is fixed; with it each input keeps its own k heaviest keys. Forms:

    "certified"  the smallest constant that is proved: the minimum of "simple" and "sharp", with the tight weight bound
    "simple"     2-norm (e^delta/k) max(1, 1/sep), 1-norm (e^delta/k) max(2, 1 + 1/sep); at most 1/2 if fixed
    "sharp"      a term for moved scores plus a term for the changed mask, instead of their product: smaller where
                 the separation is small and the dispersion is not; at a separation >= 1 "simple" is smaller
    "paper"      (e^delta/k), times (1 + 1/separation) for heavy hitters. The sources do not say in which norm: in the
                 2-norm it is a bound, in the 1-norm not when the mask is fixed or separation > 1

    A separation of 0 gives inf; at +inf the mask cannot change. Only NaN arguments give NaN.
    """
    fixed, heavy = pick("form", form, _FORMS)
    order, spread, kept = norm_order(norm), _delta(delta), _k(k)
    if separation is None:
        fitting(delta=spread, k=kept)
        return like(fixed(spread, kept, order), delta, k)
    gap = number(
        "separation",
        separation,
        at_least=0,
        why=" (a mask that does not keep the heaviest keys is a fixed mask: separation=None)",
    )
    fitting(delta=spread, k=kept, separation=gap)
    return like(heavy(spread, kept, gap, order), delta, k, separation)


def softmax_jacobian_norm(scores: torch.Tensor, keep: torch.Tensor | None = None, norm: int = 2) -> torch.Tensor:
    """The operator norm of diag(p) - pp', the softmax's Jacobian, for each query: (..., Lq), exact.

    1-norm: max 2 p (1-p). 2-norm: the largest eigenvalue. A query with no kept key gives 0; keys at +inf share the
    weight evenly.
    """
    if keep is None:
        keep = torch.ones(torch.as_tensor(scores).shape[-1:], dtype=torch.bool)
    order = norm_order(norm)
    scores, keep = aligned(scores, keep=keep)
    kept = torch.where(keep, scores, -torch.inf)
    top = kept.amax(-1, keepdim=True)
    below = torch.where(kept == top, 0.0, kept - top)  # inf - inf would be NaN
    mass = torch.where(kept == -torch.inf, 0.0, below.exp())
    total = mass.sum(-1, keepdim=True)
    p = mass / torch.where(total == 0, 1.0, total)
    return (2 * p * (1 - p)).amax(-1) if order == 1 else _largest_eigenvalue(p)


def _largest_eigenvalue(p: torch.Tensor) -> torch.Tensor:
    """Of diag(p) - pp': the root of sum p_i^2 / (p_i - z) = 1 between the two largest p (it is p if they agree).

    The sum grows from -inf to +inf on that interval, so bisection finds the root in O(L) per step.
    """
    if p.shape[-1] == 1:
        return torch.where(p[..., 0].isnan(), torch.nan, 0.0)
    pair = p.topk(2, dim=-1).values
    high, low = pair[..., 0].clone(), pair[..., 1].clone()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        gaps = p - middle[..., None]
        # A gap of 0 is the end of the interval to float precision; 0/0 arises there only for keys of weight 0.
        above = torch.where(p == 0, 0.0, p * p / gaps).sum(-1) >= 1
        high, low = torch.where(above, middle, high), torch.where(above, low, middle)
    return (low + high) / 2


def _delta(delta: Number) -> torch.Tensor:
    return number("delta", delta, at_least=0)


def _k(k: Number) -> torch.Tensor:
    return number("k", k, at_least=1, finite=True)


def _loose_weight(delta: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return delta.exp() / k


def _tight_weight(delta: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + (k - 1) * (-delta).exp())


def _paper_fixed(delta: torch.Tensor, k: torch.Tensor, norm: int) -> torch.Tensor:
    return _loose_weight(delta, k)


def _paper_heavy(delta: torch.Tensor, k: torch.Tensor, gap: torch.Tensor, norm: int) -> torch.Tensor:
    return _loose_weight(delta, k) * (1 + 1 / gap)


def _simple_fixed(delta: torch.Tensor, k: torch.Tensor, norm: int) -> torch.Tensor:
    return ((3 - norm) * _loose_weight(delta, k)).clamp(max=0.5)


def _simple_heavy(delta: torch.Tensor, k: torch.Tensor, gap: torch.Tensor, norm: int) -> torch.Tensor:
    factor = (1 / gap).clamp(min=1) if norm == 2 else (1 + 1 / gap).clamp(min=2)
    return _loose_weight(delta, k) * factor


def _sharp_heavy(delta: torch.Tensor, k: torch.Tensor, gap: torch.Tensor, norm: int) -> torch.Tensor:
    moving, jump = delta.exp(), _jump(delta, gap)
    return (torch.hypot(moving, jump) if norm == 2 else 2 * moving + jump) / k


def _certified_fixed(delta: torch.Tensor, k: torch.Tensor, norm: int) -> torch.Tensor:
    p = _tight_weight(delta, k).clamp(max=0.5)
    bound = p if norm == 2 else 2 * p * (1 - p)
    return torch.where(k == 1, 0.0, bound)


def _certified_heavy(delta: torch.Tensor, k: torch.Tensor, gap: torch.Tensor, norm: int) -> torch.Tensor:
    p, fixed = _tight_weight(delta, k), _certified_fixed(delta, k, norm)
    jump = _jump(delta, gap) / k
    if norm == 2:
        return torch.minimum(torch.maximum(fixed, p / gap), torch.hypot(fixed, jump))
    product = torch.maximum(fixed, fixed / 2 + p / gap)
    return torch.minimum(torch.minimum(product, fixed + jump), torch.maximum(fixed, 1 / gap))


def _jump(delta: torch.Tensor, gap: torch.Tensor) -> torch.Tensor:
    """max of e^w / (w + gap) over w in [0, delta], which lies at an end; 0 at an infinite gap, whatever delta."""
    far = torch.where(delta.isinf(), delta, delta.exp() / (delta + gap))
    # At an infinite gap no two inputs at finite distance have different masks. NaN stays NaN.
    return torch.where(gap.isinf() & ~delta.isnan(), 0.0, torch.maximum(1 / gap, far))


_Fixed = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
_Heavy = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
_FORMS: dict[str, tuple[_Fixed, _Heavy]] = {
    "paper": (_paper_fixed, _paper_heavy),
    "simple": (_simple_fixed, _simple_heavy),
    "sharp": (_simple_fixed, _sharp_heavy),
    "certified": (_certified_fixed, _certified_heavy),
}
