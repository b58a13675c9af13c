"""A small deterministic optimiser: many seeded starts, climbed together by gradient, the best point kept.

    found = maximise(lambda z: -((z - 1) ** 2).sum(-1), size=3, seed=0, name="demo")
    found.value, found.point

It looks for inputs that come near a bound, so that we know how loose the bound is. It proves nothing: what it finds
is attained, what it does not find may still exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from semfocus.errors import UsageError
from semfocus.randomness import stream

Objective = Callable[[torch.Tensor], torch.Tensor]  # (starts, size) -> (starts,), differentiable


@dataclass(frozen=True, eq=False)
class Found:
    """The largest value met, and the point (size,) where it was."""

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
) -> Found:
    """Climb from `starts` points drawn from a normal distribution, by the stream `name` of this seed.

    Values that are not finite are passed over; if there is no other, that is a UsageError.
    """
    if min(size, starts, steps) < 1:
        raise UsageError(f"size = {size}, starts = {starts} and steps = {steps} must all be at least 1")
    draws = torch.from_numpy(stream(seed, f"theory/search/{name}").uniform((starts, size)))
    points = torch.special.ndtri(draws.clamp(1e-12, 1 - 1e-12)).requires_grad_()
    climb = torch.optim.Adam([points], lr=rate, maximize=True)
    best = Found(-torch.inf, points[0].detach())
    for step in range(steps):
        # A long stride first, to leave poor starts; a short one at the end, to settle.
        for group in climb.param_groups:
            group["lr"] = rate * (1 - step / steps)
        climb.zero_grad()
        values = objective(points)
        usable = values.detach().isfinite()
        if usable.any():
            place = int(torch.where(usable, values.detach(), -torch.inf).argmax())
            if values[place].item() > best.value:
                best = Found(values[place].item(), points[place].detach().clone())
            torch.where(usable, values, 0.0).sum().backward()
        points.grad = None if points.grad is None else points.grad.nan_to_num(0.0, 0.0, 0.0)
        climb.step()
    if best.value == -torch.inf:
        raise UsageError(f"the objective {name!r} was finite nowhere: starts = {starts}, steps = {steps}")
    return best
