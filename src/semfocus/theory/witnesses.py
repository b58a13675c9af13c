"""Witnesses: inputs that come near a bound, from a deterministic search.

    nearest_softmax_pair(delta=0.05, k=5, separation=4.0, norm=1).ratio     # attained, of |p - p'| / |x - x'|

The search is gradient ascent from many seeded starts and returns the best point. It proves a lower bound only: a better
point may exist. Every witness is feasible by construction: the search moves free parameters, and a smooth map turns
them into inputs whose dispersion is at most delta and whose separation is at least the given one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from semfocus.errors import UsageError
from semfocus.randomness import stream
from semfocus.theory.arguments import norm_order, plain

Objective = Callable[[torch.Tensor], torch.Tensor]  # (starts, size) -> (starts,), differentiable


@dataclass(frozen=True, eq=False)
class Maximum:
    """The largest value of a search, and the point (size,) where it was attained."""

    value: float
    point: torch.Tensor


def maximise(
    objective: Objective,
    size: int,
    *,
    seed: int,
    name: str,
    starts: int = 32,
    steps: int = 300,
    rate: float = 0.1,
) -> Maximum:
    """Gradient ascent (Adam) from `starts` points drawn from a normal distribution, by the stream `name` of this seed.

    Values that are not finite are ignored; a UsageError if there is no other.
    """
    if min(size, starts, steps) < 1:
        raise UsageError(f"size = {size}, starts = {starts} and steps = {steps} must all be at least 1")
    draws = torch.from_numpy(stream(seed, f"theory/search/{name}").uniform((starts, size)))
    points = torch.special.ndtri(draws.clamp(1e-12, 1 - 1e-12)).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=rate, maximize=True)
    best = Maximum(-torch.inf, points[0].detach())
    for step in range(steps):
        # The learning rate falls: large steps leave poor starts, small ones converge.
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        values = objective(points)
        usable = values.detach().isfinite()
        if usable.any():
            place = int(torch.where(usable, values.detach(), -torch.inf).argmax())
            if values[place].item() > best.value:
                best = Maximum(values[place].item(), points[place].detach().clone())
            torch.where(usable, values, 0.0).sum().backward()
        points.grad = None if points.grad is None else points.grad.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
    if best.value == -torch.inf:
        raise UsageError(f"the objective {name!r} was finite nowhere: starts = {starts}, steps = {steps}")
    return best


@dataclass(frozen=True, eq=False)
class SoftmaxPair:
    """Two score vectors, their masks, and the ratio of the distance of their softmaxes to their own distance."""

    ratio: float
    scores: torch.Tensor  # (2, keys)
    keep: torch.Tensor  # (2, keys)


def nearest_softmax_pair(
    delta: float, k: int, separation: float | None = None, norm: int = 2, *, seed: int = 0, steps: int = 300
) -> SoftmaxPair:
    """The pair of inputs with the largest ratio of the search; a fixed mask without `separation`.

    With it, 0 to k keys differ between the masks: two heavy-hitter inputs may keep the same keys.
    """
    order, spread = norm_order(norm), plain("delta", delta)
    pairs = [_fixed_pair(spread, k, order, seed, steps)]
    if separation is not None:
        gap = plain("separation", separation)
        pairs += [_swapped_pair(spread, k, gap, swaps, order, seed, steps) for swaps in range(1, k + 1)]
    return max(pairs, key=lambda pair: pair.ratio)


def softmax_ratio(scores: torch.Tensor, keep: torch.Tensor, norm: int) -> torch.Tensor:
    """|p - p'| / |x - x'| for scores (..., 2, keys)."""
    weights = torch.where(keep, scores, -torch.inf).softmax(-1)
    moved = torch.linalg.vector_norm(weights[..., 0, :] - weights[..., 1, :], ord=norm, dim=-1)
    return moved / torch.linalg.vector_norm(scores[..., 0, :] - scores[..., 1, :], ord=norm, dim=-1)


def _fixed_pair(delta: float, k: int, norm: int, seed: int, steps: int) -> SoftmaxPair:
    """The steepest point, and a neighbour of it in the steepest direction, both with dispersion <= delta."""

    def steepest(z: torch.Tensor) -> torch.Tensor:
        p = (delta * _unit(z)).softmax(-1)
        if norm == 1:
            return (2 * p * (1 - p)).amax(-1)
        return torch.linalg.eigvalsh(torch.diag_embed(p) - p[..., :, None] * p[..., None, :])[..., -1]

    highest = maximise(steepest, k, seed=seed, name=f"fixed/{delta}/{k}/{norm}", steps=steps)
    # Scores are scaled down a little, so that the neighbour does not exceed delta.
    inside = delta * _unit(highest.point) * (1 - 1e-6)
    p = inside.softmax(-1)
    direction = torch.zeros_like(p)
    if norm == 1:
        direction[(p * (1 - p)).argmax()] = 1.0
    else:
        direction = torch.linalg.eigh(torch.diag(p) - p[:, None] * p[None, :]).eigenvectors[:, -1]
    scores = torch.stack([inside, inside + min(delta, 1.0) * 4e-7 * direction])
    keep = torch.ones_like(scores, dtype=torch.bool)
    ratio = softmax_ratio(scores, keep, norm).item() if delta else 0.0
    return SoftmaxPair(ratio, scores, keep)


def _swapped_pair(delta: float, k: int, gap: float, swaps: int, norm: int, seed: int, steps: int) -> SoftmaxPair:
    """Keys 0 .. swaps-1 are kept by the first input alone, the last `swaps` by the second alone."""
    keys = k + swaps
    keep = torch.ones(2, keys, dtype=torch.bool)
    keep[0, k:], keep[1, :swaps] = False, False

    def pair(z: torch.Tensor) -> torch.Tensor:
        shift, free = z[..., :1], z[..., 1:].unflatten(-1, (2, keys))
        kept = delta * _unit(free)
        floor = torch.where(keep, kept, torch.inf).amin(-1, keepdim=True)
        scores = torch.where(keep, kept, floor - gap - free**2)
        return torch.stack([scores[..., 0, :], scores[..., 1, :] + shift], dim=-2)

    highest = maximise(
        lambda z: softmax_ratio(pair(z), keep, norm),
        1 + 2 * keys,
        seed=seed,
        name=f"swapped/{delta}/{k}/{gap}/{swaps}/{norm}",
        steps=steps,
    )
    return SoftmaxPair(highest.value, pair(highest.point), keep)


def _unit(z: torch.Tensor) -> torch.Tensor:
    """Into [0, 1], ends included: worst cases lie in corners."""
    return (1 + torch.sin(z)) / 2
