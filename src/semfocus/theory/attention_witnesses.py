"""Tokens and weights whose attention moves as much as a search can make it, beside the bounds on it.

    steepest("full", "x", gamma=10.0, form="paper").ratio        # attained / bound: 1.07, so it is no bound
    steepest("heavy", "w", gamma=1.0, k=2, form="certified")

Tokens are columns, scaled so that the longest has norm 1 (xi = 1), W to spectral norm gamma, and V = 1 (upsilon = 1).
Dispersion, separation and sink ratio are measured on what the search proposes and put into the bound, so that each
ratio is a fair trial of it: above 1 it is refuted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import pick, plain
from semfocus.theory.lipschitz import lipschitz_w, lipschitz_x
from semfocus.theory.scores import dispersion, separation, sink_ratio
from semfocus.theory.witnesses import maximise


@dataclass(frozen=True)
class Steepest:
    """The largest ratio found of a measured slope to its bound, and what was measured there."""

    ratio: float
    slope: float
    bound: float
    delta: float
    separation: float
    sink_ratio: float


@dataclass(frozen=True)
class Shape:
    """What a search holds fixed: `length` tokens of `width`, |W| = gamma, k kept keys, the form of the bound."""

    length: int
    width: int
    gamma: float
    k: int
    form: str


class _Trial(NamedTuple):
    slope: torch.Tensor
    bound: torch.Tensor
    delta: torch.Tensor
    separation: torch.Tensor
    sink_ratio: torch.Tensor


class _Attention(NamedTuple):
    """Output columns (n, d, L) and what its masks look like (n,)."""

    output: torch.Tensor
    delta: torch.Tensor
    separation: torch.Tensor
    sink_ratio: torch.Tensor


def steepest(
    mechanism: str,
    of: str,
    *,
    gamma: float,
    k: int | None = None,
    form: str = "certified",
    length: int = 4,
    width: int = 2,
    seed: int = 0,
    steps: int = 300,
) -> Steepest:
    """Search `mechanism` ("full": its derivative at a point; "heavy": two points, whose masks may differ) in w or x."""
    trial_of = pick("search", f"{mechanism} {of}", _TRIALS)
    kept = length if k is None else k
    if not 1 <= kept <= length:
        raise UsageError(f"k = {k} must lie between 1 and length = {length}")
    shape = Shape(length, width, plain("gamma", gamma), kept, form)

    def ratio(z: torch.Tensor) -> torch.Tensor:
        trial = trial_of(z, shape)
        return trial.slope / trial.bound

    size = 2 * width * length + 2 * width * width
    found = maximise(ratio, size, seed=seed, name=f"{mechanism}/{of}/{shape}", steps=steps, starts=64)
    best = trial_of(found.point[None], shape)
    return Steepest(found.value, *(value.item() for value in best))


def _full_w(z: torch.Tensor, shape: Shape) -> _Trial:
    """|Cov_i| |x_i|: the derivative in W of column i, for the worst unit change of W."""
    x, w, _, _ = _parts(z, shape)
    x, w = _within(x), _weights(w, shape)
    here = _attend(x, w, shape.length)
    p = (x.mT @ w @ x).softmax(-1)
    mean = x @ p.mT
    second = torch.einsum("nij,naj,nbj->niab", p, x, x)
    covariance = second - torch.einsum("nai,nbi->niab", mean, mean)
    slope = (torch.linalg.eigvalsh(covariance)[..., -1] * x.norm(dim=-2)).amax(-1)
    bound = lipschitz_w(here.delta, xi=1.0, upsilon=1.0, form=shape.form)
    return _Trial(slope, torch.as_tensor(bound), *here[1:])


def _full_x(z: torch.Tensor, shape: Shape) -> _Trial:
    """The derivative in X along one direction."""
    x, w, direction, _ = _parts(z, shape)
    x, w = _within(x), _weights(w, shape)
    here = _attend(x, w, shape.length)
    p = (x.mT @ w @ x).softmax(-1)
    moved = direction.mT @ w @ x + x.mT @ w @ direction
    change = p * (moved - (p * moved).sum(-1, keepdim=True))
    slope = _summed(direction @ p.mT + x @ change.mT) / _summed(direction)
    bound = lipschitz_x(here.delta, gamma=shape.gamma, xi=1.0, upsilon=1.0, k=shape.length, form=shape.form)
    return _Trial(slope, torch.as_tensor(bound), *here[1:])


def _heavy_w(z: torch.Tensor, shape: Shape) -> _Trial:
    x, w, _, other = _parts(z, shape)
    x, w, other = _within(x), _weights(w, shape), _weights(other, shape)
    first, second = _attend(x, w, shape.k), _attend(x, other, shape.k)
    delta, gap, sinks = _both(first, second)
    slope = (first.output - second.output).norm(dim=-2).amax(-1) / torch.linalg.matrix_norm(w - other, ord=2)
    bound = lipschitz_w(delta, xi=1.0, upsilon=1.0, separation=gap, form=shape.form)
    return _Trial(slope, torch.as_tensor(bound), delta, gap, sinks)


def _heavy_x(z: torch.Tensor, shape: Shape) -> _Trial:
    x, w, other, _ = _parts(z, shape)
    x, other = _within(torch.cat([x, other], dim=-1)).split(shape.length, dim=-1)
    w = _weights(w, shape)
    first, second = _attend(x, w, shape.k), _attend(other, w, shape.k)
    delta, gap, sinks = _both(first, second)
    slope = _summed(first.output - second.output) / _summed(x - other)
    bound = lipschitz_x(
        delta, gamma=shape.gamma, xi=1.0, upsilon=1.0, sink_ratio=sinks, separation=gap, k=shape.k, form=shape.form
    )
    return _Trial(slope, torch.as_tensor(bound), delta, gap, sinks)


_TRIALS: dict[str, Callable[[torch.Tensor, Shape], _Trial]] = {
    "full w": _full_w,
    "full x": _full_x,
    "heavy w": _heavy_w,
    "heavy x": _heavy_x,
}


def _attend(x: torch.Tensor, w: torch.Tensor, k: int) -> _Attention:
    scores = x.mT @ w @ x
    keep = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(k, dim=-1).indices, True)
    p = torch.where(keep, scores, -torch.inf).softmax(-1)
    return _Attention(x @ p.mT, dispersion(scores, keep).amax(-1), separation(scores, keep).amin(-1), sink_ratio(keep))


def _both(first: _Attention, second: _Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Dispersion, separation and sink ratio that hold at both points."""
    return (
        torch.maximum(first.delta, second.delta),
        torch.minimum(first.separation, second.separation),
        torch.maximum(first.sink_ratio, second.sink_ratio),
    )


def _parts(z: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two matrices of tokens (d, L) and two of weights (d, d)."""
    tokens, weights = shape.width * shape.length, shape.width * shape.width
    x, w, other_x, other_w = z.split([tokens, weights, tokens, weights], dim=-1)
    square, wide = (shape.width, shape.width), (shape.width, shape.length)
    return x.unflatten(-1, wide), w.unflatten(-1, square), other_x.unflatten(-1, wide), other_w.unflatten(-1, square)


def _within(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-2).amax(-1)[..., None, None]


def _weights(w: torch.Tensor, shape: Shape) -> torch.Tensor:
    return shape.gamma * w / torch.linalg.matrix_norm(w, ord=2)[..., None, None]


def _summed(columns: torch.Tensor) -> torch.Tensor:
    return columns.norm(dim=-2).sum(-1)
