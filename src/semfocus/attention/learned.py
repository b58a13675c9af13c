"""What a layer learns for its mechanism and normaliser: SSMax's scales, ASEntmax's projections, routing's centroids.

Most are parameters like others. Centroids follow the mean of what they attract by a moving average: a step against the
gap between the two, as if it were a gradient, with the average's rate in place of a learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from semfocus.attention.base import Mechanism
from semfocus.attention.weights import LayerSizes, Learned, Normaliser


def learned_by(mechanism: Mechanism, normaliser: Normaliser, sizes: LayerSizes) -> dict[str, Learned]:
    """All that a layer of these sizes learns for the pair, by name."""
    return {**mechanism.learned(sizes), **normaliser.learned(sizes)}


def starting_value(part: Learned, uniform: Callable[[int], Tensor]) -> Tensor:
    """What a parameter starts from; `uniform(n)` draws n numbers from [0, 1)."""
    size = math.prod(part.shape)
    if part.start == "constant":
        return torch.full(part.shape, part.value)
    if part.start == "uniform":
        return ((2 * uniform(size) - 1) * part.value).float().view(part.shape)
    radius, angle = (uniform(2 * size)).view(2, *part.shape)
    normal = (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()  # a normal vector points anywhere
    return (normal / normal.norm(dim=-1, keepdim=True).clamp(min=1e-12)).float()


def of_call(
    mechanism: Mechanism, normaliser: Normaliser, parameters: Mapping[str, Tensor], x: Tensor
) -> dict[str, Tensor] | None:
    """What `attend` takes as `learned`, from a layer's parameters and the vectors x (..., Lq, d) of its queries."""
    if not parameters:
        return None
    own = {name: value for name, value in parameters.items() if name not in mechanism.learns}
    return normaliser.of_layer(own, x) | {name: parameters[name] for name in mechanism.learns}


class LearnedParameters(nn.Module):
    """What `Attention` learns for its mechanism and normaliser; averaged parameters are buffers."""

    def __init__(
        self,
        mechanism: Mechanism,
        normaliser: Normaliser,
        sizes: LayerSizes,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mechanism, self.normaliser = mechanism, normaliser
        self.parts = learned_by(mechanism, normaliser, sizes)
        for name, part in self.parts.items():
            value = starting_value(part, lambda count: torch.rand(count, dtype=torch.float64)).to(device, dtype)
            if part.average is None:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def of_call(self, x: Tensor) -> dict[str, Tensor] | None:
        """What `attend` takes as `learned`, for the vectors x (..., Lq, d) of the queries."""
        return of_call(self.mechanism, self.normaliser, self._values(), x)

    @torch.no_grad()
    def follow(self, queries: Tensor, keys: Tensor, valid: Tensor | None) -> None:
        """Move averaged parameters towards what they follow, in training. (..., H, L, D); `valid` (..., Lk) bool."""
        if not self.training or all(part.average is None for part in self.parts.values()):
            return
        q, k = (self.normaliser.prepared(part).reshape(-1, *part.shape[-3:]) for part in (queries, keys))
        values = self._values()
        present = None if valid is None else valid.reshape(-1, 1, valid.shape[-1])
        for name, gap in self.mechanism.gaps(values, q, k, present).items():
            values[name].sub_((self.parts[name].average or 0.0) * gap)

    def _values(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.parts}


class Follow(torch.autograd.Function):
    """x as it is; in the backward pass the averaged parameter gets `gap` as its gradient, whatever becomes of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor, gap: Tensor) -> Tensor:
        ctx.save_for_backward(gap)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], ctx.saved_tensors[0], None
