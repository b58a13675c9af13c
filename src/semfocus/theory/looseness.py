"""The looseness of each bound: the value that a search attains, as a share of every form of the bound.

    python -m semfocus.theory.looseness      # about two minutes on one core; prints the tables of docs/theory.md
    steepest("full", "x", gamma=10.0, form="paper").ratio    # attained / bound: 1.07, so it is no bound

Tokens are columns, scaled so that the longest has norm 1 (xi = 1), W to spectral norm gamma, and V = 1 (upsilon = 1).
Dispersion, separation and sink ratio are measured at the points of the search and put into the bound. A ratio above 1
refutes the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import pick, plain
from semfocus.theory.lipschitz import lipschitz_w, lipschitz_x
from semfocus.theory.scores import dispersion, separation, sink_ratio
from semfocus.theory.softmax import stability
from semfocus.theory.witnesses import maximise, nearest_softmax_pair

SOFTMAX_FORMS = ("paper", "simple", "sharp", "certified")
ATTENTION_FORMS = ("paper", "certified")
NORMS, DELTAS, KS, SEPARATIONS = (2, 1), (0.05, 1.0, 3.0), (5,), (None, 0.1, 0.5, 1.0, 4.0)  # of the softmax
ATTENTION_SETTINGS = (  # mechanism, argument, gamma, k
    ("full", "w", 1.0, 4), ("full", "x", 0.1, 4), ("full", "x", 1.0, 4), ("full", "x", 10.0, 4),
    ("heavy", "w", 1.0, 2), ("heavy", "x", 0.1, 2), ("heavy", "x", 1.0, 2), ("heavy", "x", 10.0, 2),
)  # fmt: skip


@dataclass(frozen=True)
class SoftmaxRow:
    """One setting of `stability`: the largest ratio attained, and attained / bound for each form (1 = tight)."""

    norm: int
    delta: float
    k: int
    separation: float | None
    attained: float
    shares: dict[str, float]


@dataclass(frozen=True)
class AttentionRow:
    """One setting of `lipschitz_w` or `lipschitz_x`: attained / bound for each form, each searched on its own."""

    mechanism: str
    of: str
    gamma: float
    k: int
    shares: dict[str, float]


@dataclass(frozen=True)
class Looseness:
    """The results of all searches."""

    softmax: list[SoftmaxRow]
    attention: list[AttentionRow]

    def largest_shares(self) -> dict[str, float]:
        """The largest share of each form that was attained anywhere."""
        largest: dict[str, float] = {}
        for row in (*self.softmax, *self.attention):
            for form, share in row.shares.items():
                largest[form] = max(largest.get(form, 0.0), share)
        return largest


def search_looseness(*, seed: int = 0, steps: int = 300, progress: Callable[[int, int], None]) -> Looseness:
    """Search every setting of both tables; `progress` takes the settings done and the settings wanted."""
    looseness = Looseness([], [])
    wanted = len(NORMS) * len(DELTAS) * len(KS) * len(SEPARATIONS) + len(ATTENTION_SETTINGS)
    for row in softmax_looseness(seed=seed, steps=steps):
        looseness.softmax.append(row)
        progress(len(looseness.softmax), wanted)
    for row in attention_looseness(seed=seed, steps=steps):
        looseness.attention.append(row)
        progress(len(looseness.softmax) + len(looseness.attention), wanted)
    return looseness


def softmax_looseness(
    norms: Sequence[int] = NORMS,
    deltas: Sequence[float] = DELTAS,
    ks: Sequence[int] = KS,
    separations: Sequence[float | None] = SEPARATIONS,
    *,
    seed: int = 0,
    steps: int = 300,
) -> Iterator[SoftmaxRow]:
    """Search every combination."""
    for norm in norms:
        for delta in deltas:
            for k in ks:
                for gap in separations:
                    attained = nearest_softmax_pair(delta, k, gap, norm, seed=seed, steps=steps).ratio
                    shares = {form: attained / float(stability(delta, k, gap, norm, form)) for form in SOFTMAX_FORMS}
                    yield SoftmaxRow(norm, delta, k, gap, attained, shares)


def attention_looseness(*, seed: int = 0, steps: int = 300) -> Iterator[AttentionRow]:
    """Search four tokens of width 2: all four kept (full), or two of them (heavy hitters)."""
    for mechanism, of, gamma, k in ATTENTION_SETTINGS:
        shares = {
            form: steepest(mechanism, of, gamma=gamma, k=k, form=form, seed=seed, steps=steps).ratio
            for form in ATTENTION_FORMS
        }
        yield AttentionRow(mechanism, of, gamma, k, shares)


@dataclass(frozen=True)
class Steepest:
    """The largest ratio of a measured slope to its bound in a search, and what was measured there."""

    ratio: float
    slope: float
    bound: float
    delta: float
    separation: float
    sink_ratio: float


@dataclass(frozen=True)
class Shape:
    """The constants of a search: `length` tokens of `width`, |W| = gamma, k kept keys, the form of the bound."""

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
    """Output columns (n, d, L), and the dispersion, separation and sink ratio (n,) of its mask."""

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
    highest = maximise(ratio, size, seed=seed, name=f"{mechanism}/{of}/{shape}", steps=steps, starts=64)
    best = trial_of(highest.point[None], shape)
    return Steepest(highest.value, *(value.item() for value in best))


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
    gap = torch.minimum(first.separation, second.separation)
    return torch.maximum(first.delta, second.delta), gap, torch.maximum(first.sink_ratio, second.sink_ratio)


def _parts(z: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two matrices of tokens (d, L) and two of weights (d, d)."""
    tokens, weights = shape.width * shape.length, shape.width * shape.width
    x, w, other_x, other_w = z.split([tokens, weights, tokens, weights], dim=-1)
    x, other_x = (part.unflatten(-1, (shape.width, shape.length)) for part in (x, other_x))
    return x, w.unflatten(-1, (shape.width, shape.width)), other_x, other_w.unflatten(-1, (shape.width, shape.width))


def _within(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-2).amax(-1)[..., None, None]


def _weights(w: torch.Tensor, shape: Shape) -> torch.Tensor:
    return shape.gamma * w / torch.linalg.matrix_norm(w, ord=2)[..., None, None]


def _summed(columns: torch.Tensor) -> torch.Tensor:
    return columns.norm(dim=-2).sum(-1)


def print_tables(softmax: Iterable[SoftmaxRow], attention: Iterable[AttentionRow]) -> None:
    """Print both tables as Markdown, each line as soon as its search ends."""
    _print_line("norm", "delta", "k", "separation", "attained", *SOFTMAX_FORMS)
    print("|---" * (5 + len(SOFTMAX_FORMS)) + "|")
    for row in softmax:
        gap = "fixed mask" if row.separation is None else f"{row.separation:g}"
        shares = (f"{row.shares[form]:.3f}" for form in SOFTMAX_FORMS)
        _print_line(row.norm, f"{row.delta:g}", row.k, gap, f"{row.attained:.4f}", *shares)
    print()
    _print_line("attention", "in", "gamma", "k of 4", *ATTENTION_FORMS)
    print("|---" * (4 + len(ATTENTION_FORMS)) + "|")
    for row in attention:
        shares = (f"{row.shares[form]:.3f}" for form in ATTENTION_FORMS)
        _print_line(row.mechanism, row.of, f"{row.gamma:g}", row.k, *shares)


def _print_line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    print_tables(softmax_looseness(), attention_looseness())
