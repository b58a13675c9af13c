"""Lipschitz constants of one attention layer in its weights and in its tokens, and the paper's two conditions.

Tokens are the columns of X with |x_i| <= xi, scores X'WX with |W| <= gamma, output column i is V X p_i with
|V| <= upsilon (spectral norms); p_i is the softmax of query i over the keys it keeps. Changes are measured as

    lipschitz_w    the largest change of an output column, relative to the spectral norm of the change of W
    lipschitz_x    the summed changes of the output columns, relative to the summed changes of the tokens

Form "paper" is the one that arXiv 2506.14095 compares; "certified" is the smallest constant proved in docs/theory.md.
The paper sets 2 gamma xi^2 equal to the dispersion of full attention: gamma = delta_full / 2, xi = 1 gives its
numbers.

`region` evaluates both conditions over the plane c1 = delta_heavy / delta_full, c2 = separation / delta_full (the
paper's figures 21 and 22). The scores of one query satisfy delta_heavy + separation <= delta_full, so one model lies in
the triangle c1 + c2 <= 1 (`reachable`). The paper takes the two dispersions from two models, which may lie outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import Number, fitting, like, number, pick, product

_INF = float("inf")


def lipschitz_w(
    delta: Number, *, xi: Number, upsilon: Number, separation: Number | None = None, form: str = "certified"
) -> Number:
    """The constant in W: of full attention or any fixed mask, or of heavy hitters where `separation` is given.

    "paper": upsilon xi^3 e^delta, times 2 (1 + 1/separation) for heavy hitters. "certified": upsilon xi^3,
    times max(1, 2/separation), for any dispersion. A separation of 0 gives inf.
    """
    is_paper = pick("form", form, {"paper": True, "certified": False})
    spread, gap = number("delta", delta, at_least=0), _gap(separation)
    values, tokens = number("upsilon", upsilon, at_least=0), number("xi", xi, at_least=0)
    fitting(delta=spread, xi=tokens, upsilon=values, separation=gap)
    size = product(values, tokens**3)
    if is_paper:
        factor = spread.exp() * (1.0 if separation is None else 2 * (1 + 1 / gap))
    else:
        # The bound does not depend on the dispersion, but keeps its shape and its NaN.
        factor = torch.where(spread.isnan(), spread, (2 / gap).clamp(min=1))
    return like(product(size, factor), delta, xi, upsilon, separation)


def lipschitz_x(
    delta: Number,
    *,
    gamma: Number,
    xi: Number,
    upsilon: Number,
    sink_ratio: Number | None = None,
    separation: Number | None = None,
    k: Number | None = None,
    form: str = "certified",
) -> Number:
    """The constant in X. Full attention: no `sink_ratio`; a fixed mask: `sink_ratio`; heavy hitters: both options.

    With g = gamma xi^2, beta = sink_ratio, form "paper" is upsilon e^delta (g (1 + beta) + beta), beta = 1 for full
    attention, and upsilon e^delta (2 g (1 + beta)(1 + 1/separation) + beta) for heavy hitters. For full attention
    it is not a bound: three tokens at +1, one at -1 and equal scores exceed it from g = 4 on. `delta`, `sink_ratio`
    and `separation` hold at both inputs; `k` (L for full attention) sharpens the certified form.

    The bound assumes that every query keeps k keys: a key is then kept by at most sink_ratio k queries, each of which
    gives it at most the weight bound for k. For full attention it assumes that all queries see the same keys and are
    no more than these. A causal mask violates both (with equal scores the first key receives 1 + 1/2 + 1/3 + ...).
    """
    is_paper = pick("form", form, {"paper": True, "certified": False})
    if separation is not None and sink_ratio is None:
        raise UsageError(f"separation = {separation} is for heavy hitters, whose bound needs sink_ratio too")
    spread, gap = number("delta", delta, at_least=0), _gap(separation)
    beta = number("sink_ratio", 1.0 if sink_ratio is None else sink_ratio, at_least=0)
    weights, tokens = number("gamma", gamma, at_least=0), number("xi", xi, at_least=0)
    size, keys = number("upsilon", upsilon, at_least=0), _keys(k)
    fitting(delta=spread, gamma=weights, xi=tokens, upsilon=size, sink_ratio=beta, separation=gap, k=keys)
    g = product(weights, tokens**2)
    if is_paper:
        score = product(g, 1 + beta) if separation is None else product(2 * product(g, 1 + beta), 1 + 1 / gap)
        factor = product(spread.exp(), score + beta)
    elif sink_ratio is None:
        factor = _certified_full(spread, g, _column_mass(spread, beta, keys))
    else:
        factor = _certified_sparse(spread, g, beta, gap, keys)
    return like(product(size, factor), delta, gamma, xi, upsilon, sink_ratio, separation, k)


def condition_w(delta_full: Number, delta_heavy: Number, separation: Number) -> Number:
    """W of the paper: W < 1 where its constant in the weights is smaller for heavy hitters than for full attention.

    W = (delta_heavy + ln(2 (1 + 1/separation))) / delta_full. It compares two loose bounds: the
    certified one of heavy hitters is never the smaller. Equal scores (delta_full = 0) or a separation of 0: inf.
    """
    full, heavy, gap = _condition_arguments(delta_full, delta_heavy, separation)
    result = (heavy + (2 * (1 + 1 / gap)).log()) / full
    return like(result, delta_full, delta_heavy, separation)


def condition_x(delta_full: Number, delta_heavy: Number, separation: Number, sink_ratio: Number) -> Number:
    """X of the paper: X < 1 where its constant in the tokens is smaller for heavy hitters than for full attention.

    X = (delta_heavy + ln(delta_full (1 + beta)(1 + 1/separation) + beta) - ln(delta_full + 1)) / delta_full with
    beta = sink_ratio. Where every query keeps k keys the mean in-degree is k, so beta >= 1. Smaller values are
    accepted, since the paper's table takes beta from a percentile of the in-degrees.
    """
    full, heavy, gap = _condition_arguments(delta_full, delta_heavy, separation)
    beta = number("sink_ratio", sink_ratio, at_least=0)
    fitting(delta_full=full, delta_heavy=heavy, separation=gap, sink_ratio=beta)
    slope = (1 + beta) * (1 + 1 / gap)
    gain = heavy + (product(full, slope) + beta).log() - full.log1p()
    # At delta_full = 0 the sign of the difference counts; where that is 0 too, or the gap is 0, its limit.
    result = torch.where((full == 0) & ((gain == 0) | (gap == 0)), slope - 1, gain / full)
    return like(result, delta_full, delta_heavy, separation, sink_ratio)


def _certified_full(delta: torch.Tensor, g: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """mass + g max over m of [mass min(2, 1 + m + eta) + 1 - m^2]: m = |mean token| / xi under one query."""
    eta = 2 * torch.tanh(delta / 2)  # largest distance of the weights of two queries, in the 1-norm
    m = torch.minimum(mass / 2, (1 - eta).clamp(min=0))
    return mass + product(g, mass * (1 + m + eta).clamp(max=2) + 1 - m * m)


def _certified_sparse(
    delta: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, gap: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Fixed mask (gap = inf) or heavy hitters: the smaller of two bounds; the second needs k if masks can change."""
    mass = _column_mass(delta, beta, keys)
    union = delta.exp() * (2 * (1 + beta) * (1 + 1 / gap).clamp(min=2))
    flips = torch.where(gap.isinf(), 0.0, product(product(beta, keys), 1 / gap))
    rows = (2 / gap).clamp(min=1) + 2 * torch.maximum(mass, flips)
    return mass + product(g, torch.minimum(union, rows))


def _column_mass(delta: torch.Tensor, beta: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The largest sum of the weights that one key receives: beta k keepers, each giving at most the weight bound.

    k times the tight weight bound is 1 / (1/k + (1 - 1/k) e^-delta), and e^delta for k = inf.
    """
    return product(beta, 1 / (1 / keys + (1 - 1 / keys) * (-delta).exp()))


def _keys(k: Number | None) -> torch.Tensor:
    """k; any number of keys where it is not given."""
    return torch.tensor(_INF, dtype=torch.float64) if k is None else number("k", k, at_least=1, finite=True)


def _condition_arguments(full: Number, heavy: Number, gap: Number) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    whole = number("delta_full", full, at_least=0, finite=True)
    kept = number("delta_heavy", heavy, at_least=0, finite=True)
    apart = number("separation", gap, at_least=0)
    fitting(delta_full=whole, delta_heavy=kept, separation=apart)
    return whole, kept, apart


def _gap(separation: Number | None) -> torch.Tensor:
    """The separation; inf for a fixed mask, which no change of the scores can flip."""
    return number("separation", _INF if separation is None else separation, at_least=0)


_STEPS = 201


@dataclass(frozen=True, eq=False)
class Region:
    """W and X over a grid: row i of `w`, `x` and `reachable` belongs to c2[i], column j to c1[j]."""

    delta_full: float
    sink_ratio: float
    c1: torch.Tensor
    c2: torch.Tensor
    w: torch.Tensor
    x: torch.Tensor
    reachable: torch.Tensor


def region(delta_full: float, sink_ratio: float = 1.0, *, c1: Any = None, c2: Any = None) -> Region:
    """W and X for one delta_full and one sink ratio, over the given axes (default: 0 to 1 in steps of 1/200)."""
    full, beta = _one("delta_full", delta_full), _one("sink_ratio", sink_ratio)
    across, up = _axis("c1", c1), _axis("c2", c2)
    heavy, gap = full * across[None, :], full * up[:, None]
    spread = torch.full_like(heavy, full)
    return Region(
        delta_full=full,
        sink_ratio=beta,
        c1=across,
        c2=up,
        w=torch.as_tensor(condition_w(spread, heavy, gap)),
        x=torch.as_tensor(condition_x(spread, heavy, gap, beta)),
        reachable=across[None, :] + up[:, None] <= 1,
    )


def _one(name: str, value: float) -> float:
    checked = number(name, value, at_least=0, finite=True)
    if checked.ndim:
        raise UsageError(f"{name} must be one number, not a tensor of shape {tuple(checked.shape)}: call once each")
    return checked.item()


def _axis(name: str, values: Any) -> torch.Tensor:
    if values is None:
        return torch.linspace(0, 1, _STEPS, dtype=torch.float64)
    axis = number(name, values, at_least=0, finite=True)
    if axis.ndim != 1 or not len(axis):
        raise UsageError(f"{name} must be a list of numbers, not of shape {tuple(axis.shape)}")
    return axis
