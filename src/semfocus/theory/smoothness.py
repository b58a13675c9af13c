"""How the Lipschitz constant of attention grows with the number of tokens n, in the Frobenius norm over tokens.

    sqrt_n_bound(n, gamma=2.0)             of arXiv 2312.14820, for every input whose tokens are no longer than xi
    frobenius_bound(n, gamma=2.0)          the certified constants of docs/theory.md in the same norm: never larger
    lone_tokens(n, gamma=2.0)              attained by an input that can be written down: a lower bound
    local_constant(f, x)                   of a function of tokens at x, exactly, by power iteration on its Jacobian

As in `lipschitz`: tokens |x_i| <= xi, scores x_i'W x_j with |W| <= gamma, outputs V X p_i with |V| <= upsilon. Write
g = gamma xi^2. The bound of *How Smooth Is Attention?* (Castin, Ablin, Peyre, ICML 2024),

    sqrt(3) upsilon sqrt(g^2 (4 n + 1) + n),

adds three parts: a token as a value moves every output that attends to it (sqrt(n)), as a key it moves their weights
(2 g sqrt(n)), as a query it moves its own output (g). docs/theory.md proves it anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from semfocus.errors import UsageError, check_int
from semfocus.randomness import stream
from semfocus.theory.arguments import plain
from semfocus.theory.lipschitz import lipschitz_x
from semfocus.theory.witnesses import maximise

STEPS, TOLERANCE = 300, 1e-6  # of the power iteration


def sqrt_n_bound(n: int, *, gamma: float, xi: float = 1.0, upsilon: float = 1.0) -> float:
    """The bound of arXiv 2312.14820, theorem 3.3, for full attention over n tokens: it grows like sqrt(n)."""
    count, g = check_int("n", n, at_least=1), plain("gamma", gamma) * plain("xi", xi) ** 2
    return math.sqrt(3) * plain("upsilon", upsilon) * math.sqrt(g * g * (4 * count + 1) + count)


def frobenius_bound(
    n: int,
    *,
    gamma: float,
    xi: float = 1.0,
    upsilon: float = 1.0,
    delta: float | None = None,
    k: int | None = None,
    in_degree: float | None = None,
) -> float:
    """The root of the certified constants for the largest move and for the summed moves of tokens.

    Full attention, or a fixed choice of `k` keys of which none is kept by more than `in_degree` queries (without it, by
    all n). No dispersion exceeds 2 g, which counts where `delta` is not given.
    """
    count, g = check_int("n", n, at_least=1), plain("gamma", gamma) * plain("xi", xi) ** 2
    spread = 2 * g if delta is None else min(plain("delta", delta), 2 * g)
    shared = {"gamma": gamma, "xi": xi, "upsilon": upsilon}
    if k is None:
        summed = lipschitz_x(spread, **shared, k=count)
    else:
        kept = min(check_int("k", k, at_least=1), count)
        keepers = count if in_degree is None else min(plain("in_degree", in_degree), count)
        summed = lipschitz_x(spread, **shared, k=kept, sink_ratio=keepers / kept)
    return math.sqrt(upsilon * (1 + 2 * g) * float(summed))


class Witness(NamedTuple):
    """A lower bound, and how many of the tokens are lone."""

    constant: float
    lone: int


def lone_tokens(n: int, *, gamma: float, xi: float = 1.0, upsilon: float = 1.0) -> Witness:
    """n - m tokens at +xi e1, m at -xi e1, W = -gamma e1 e1': the m lone ones move together along e1; the best m.

    The others give them the weight p = m e^(2g) / (m e^(2g) + n - m) in all, and each moves by p + 2 g p (1 - p) times
    their step. While n stays below e^(2g), one lone token is best and the constant grows like sqrt(n); beyond, m grows
    with n, and the constant stays near e^g (1 + g) / 2.
    """
    count, g = check_int("n", n, at_least=2), plain("gamma", gamma) * plain("xi", xi) ** 2
    lone = torch.arange(1, count, dtype=torch.float64)
    share = torch.sigmoid(2 * g + lone.log() - (count - lone).log())
    moved = ((count - lone) / lone).sqrt() * share * (1 + 2 * g * (1 - share))
    best = int(moved.argmax())
    return Witness(plain("upsilon", upsilon) * moved[best].item(), best + 1)


class Local(NamedTuple):
    """The spectral norms of Jacobians, one for each example, and whether the iteration has settled."""

    constant: Tensor  # (B,)
    settled: Tensor  # (B,) bool


def local_constant(
    f: Callable[[Tensor], Tensor], x: Tensor, *, steps: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0
) -> Local:
    """The largest |J v| / |v| of f at each of the examples x (B, ...), in the Frobenius norm of an example.

    f must treat each example on its own. Power iteration on J'J, by products with J and J' alone, in float64; the norm
    approaches the truth from below, until it changes by less than `tolerance`, relatively, or after `steps`.
    """
    if x.dim() < 2 or not len(x):
        raise UsageError(f"x has shape {tuple(x.shape)}; it must be (B, ...), with an example at least")
    x = x.detach().double().requires_grad_()
    with torch.enable_grad():
        out = f(x)
        weights = torch.zeros_like(out, requires_grad=True)
        # J'w is linear in w: its derivative in w, times v, is J v. One graph serves all steps.
        pulled = torch.autograd.grad(out, x, weights, create_graph=True)[0]
    uniform = torch.from_numpy(stream(seed, "theory/smoothness").uniform(tuple(x.shape)))
    v = _unit(uniform.to(x.device) - 0.5)
    largest = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    settled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(steps):
        moved = torch.autograd.grad(pulled, weights, v, retain_graph=True)[0]
        size = _sizes(moved)
        settled = (size - largest).abs() <= tolerance * size
        largest = size
        if bool(settled.all()):
            break
        v = _unit(torch.autograd.grad(out, x, moved, retain_graph=True)[0])
    return Local(largest, settled)


def steepest_frobenius(n: int, *, gamma: float, width: int = 2, seed: int = 0, steps: int = 300) -> float:
    """The largest local constant of full attention that a search over tokens, W and directions finds (xi = 1, V = 1).

    Gradient ascent from seeded starts, as in `witnesses`; it starts from random inputs and knows no `lone_tokens`.
    """
    count, strength = check_int("n", n, at_least=2), plain("gamma", gamma)

    def attained(z: Tensor) -> Tensor:
        x, direction, w = z.split([count * width, count * width, width * width], dim=-1)
        x, direction = x.unflatten(-1, (count, width)), direction.unflatten(-1, (count, width))
        x = x / x.norm(dim=-1).amax(-1)[..., None, None].clamp(min=1e-30)
        w = w.unflatten(-1, (width, width))
        w = strength * w / torch.linalg.matrix_norm(w, ord=2)[..., None, None]
        p = (x @ w @ x.mT).softmax(-1)
        change = direction @ w @ x.mT + x @ w @ direction.mT
        moved = p @ direction + (p * (change - (p * change).sum(-1, keepdim=True))) @ x
        return moved.flatten(-2).norm(dim=-1) / direction.flatten(-2).norm(dim=-1)

    size = 2 * count * width + width * width
    return maximise(attained, size, seed=seed, name=f"frobenius/{count}/{strength}", steps=steps, starts=32).value


def _sizes(values: Tensor) -> Tensor:
    return values.flatten(1).norm(dim=1)


def _unit(values: Tensor) -> Tensor:
    """Each example divided by its norm; zeros stay zeros."""
    return values / _sizes(values).clamp(min=1e-300).view(-1, *(1,) * (values.dim() - 1))
