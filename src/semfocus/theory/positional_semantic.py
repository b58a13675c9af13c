"""A solvable model of one attention layer that can learn by position or by meaning (arXiv 2402.03902), full and top-k.

    world = World.draw(Setup(), alpha=1.0, seed=0)
    for trained in train(world, ("full", "topk:2")):
        print(trained.mechanism, trained.start, trained.loss, trained.m, trained.theta)

Data. An example has L tokens: noise x_1 .. x_L of variance sigma^2 in d dimensions, and position adds +p to the first
half and -p to the second, |p| = 1. The target mixes the noise by meaning and by position,

    y = (1 - omega) softmax(s s') x + omega A x,    s_i = x_i q* / sqrt(d),    A: 0.6 to the own half, 0.4 to the other.

The layer. Queries and keys are tied and of rank one, one vector q: s_i = (x_i + position) q / sqrt(d), and the output
is softmax(s s') over the kept keys times the tokens with positions. What it learns is read off two overlaps,

    m = |q p| / sqrt(d)          it attends by position           theta = |q q*| / d          it attends by meaning.

The loss is the squared error over all alpha d examples, divided by 2 d, plus lambda |q|^2 / 2. It has minima of both
kinds. Training starts once at each (q = q*, q = sqrt(d) p), and the one that ends lower counts. The source has L = 2,
where top-1 attends to one token with weight one and cannot learn; so the comparison takes L = 4 and k = 2 and 3. There
the softmax of the target may keep fewer keys, too (`target="topk:2"`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from semfocus.errors import UsageError, check_int
from semfocus.randomness import stream

Start = Literal["semantic", "positional"]
STARTS: tuple[Start, Start] = ("semantic", "positional")
FULL = "full"
OWN_HALF = 0.6  # the weight that the positional part of the target gives to a token's own half
MOMENTUM = 0.9
TOKENS = 4


@dataclass(frozen=True)
class Setup:
    """The sizes of the model and of its training."""

    width: int = 256  # d
    tokens: int = TOKENS  # L
    sigma: float = 0.5
    omega: float = 0.3
    decay: float = 0.01  # lambda
    target: str = FULL  # the keys that the semantic part of the target keeps
    steps: int = 2500
    lr: float = 0.03
    test_rows: int = 2000

    def __post_init__(self) -> None:
        check_int("tokens", self.tokens, at_least=2)
        check_int("width", self.width, at_least=2)
        check_int("steps", self.steps, at_least=1)
        check_int("test_rows", self.test_rows, at_least=1)
        kept_keys(self.target, self.tokens)
        if self.tokens % 2:
            raise UsageError(f"tokens = {self.tokens} must be even: each half has a position of its own")
        if not 0 <= self.omega <= 1:
            raise UsageError(f"omega = {self.omega} is the share of the positional part; choose 0 .. 1")


@dataclass(frozen=True)
class Trained:
    """Where one training ended. `mechanism` is full or topk:k."""

    mechanism: str
    start: Start
    alpha: float
    seed: int
    loss: float  # of training, with the decay
    error: float  # of prediction: squared error of a test example, divided by 2 d
    m: float
    theta: float


@dataclass(frozen=True, eq=False)
class World:
    """The data of one seed and sample ratio."""

    setup: Setup
    alpha: float
    seed: int
    target: Tensor  # (d,) q*
    position: Tensor  # (d,) sqrt(d) p
    train: Examples
    test: Examples

    @staticmethod
    def draw(setup: Setup, alpha: float, seed: int) -> World:
        """Draw alpha d examples, at least one; every seed has its own q*."""
        rows = max(1, round(alpha * setup.width))
        target = _normal(seed, "target", (setup.width,))
        position = torch.ones(setup.width)
        parts = [
            Examples.of(_normal(seed, name, (count, setup.tokens, setup.width)), target, setup)
            for name, count in ((f"train/{rows}", rows), ("test", setup.test_rows))
        ]
        return World(setup, alpha, seed, target, position, parts[0], parts[1])


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples as the loss needs them: |P x - y|^2 = sum of P (x x') P' - 2 P (x y') over all pairs, + |y|^2."""

    tokens: Tensor  # (n, L, d), with positions
    gram: Tensor  # (n, L, L) x x'
    cross: Tensor  # (n, L, L) y x'
    square: Tensor  # (n,) |y|^2, float64
    plain: tuple[Tensor, Tensor]  # (L, L) sums of x x' and y x', without positions, float64

    @staticmethod
    def of(noise: Tensor, target: Tensor, setup: Setup) -> Examples:
        x = setup.sigma * noise
        scores = x @ target / math.sqrt(setup.width)
        semantic = _weights(scores[:, :, None] * scores[:, None, :], kept_keys(setup.target, setup.tokens)) @ x
        y = (1 - setup.omega) * semantic + setup.omega * positional_weights(setup.tokens) @ x
        shifted = x + half_signs(setup.tokens)[:, None] / math.sqrt(setup.width)
        exact, own = x.double(), y.double()  # a linear fit leaves differences of large sums
        plain = (exact @ exact.mT).sum(0), (own @ exact.mT).sum(0)
        return Examples(shifted, shifted @ shifted.mT, y @ shifted.mT, (own * own).sum((-1, -2)), plain)

    def errors(self, q: Tensor, kept: Sequence[int]) -> Tensor:
        """(B,) the summed squared errors of the layers q (B, d), of which each keeps so many keys."""
        n, length, width = self.tokens.shape
        scores = (self.tokens.reshape(-1, width) @ q.T / math.sqrt(width)).view(n, length, -1).movedim(-1, 0)
        products = scores[..., :, None] * scores[..., None, :]  # (B, n, L, L)
        weights = torch.stack([_weights(own, k) for own, k in zip(products, kept, strict=True)])
        predicted = ((weights @ self.gram) * weights).sum((-1, -2)) - 2 * (weights * self.cross).sum((-1, -2))
        return (predicted + self.square).sum(-1)


def half_signs(tokens: int) -> Tensor:
    """+1 at the first half of the tokens, -1 at the second."""
    return torch.where(torch.arange(tokens) < tokens // 2, 1.0, -1.0)


def positional_weights(tokens: int) -> Tensor:
    """(L, L) A: each half shares its weight equally among its tokens."""
    signs = half_signs(tokens)
    return torch.where(signs[:, None] == signs, OWN_HALF, 1 - OWN_HALF) / (tokens // 2)


def kept_keys(mechanism: str, tokens: int) -> int:
    """How many keys full or topk:k keeps."""
    name, colon, number = mechanism.partition(":")
    if mechanism == FULL:
        return tokens
    if name == "topk" and colon and number.isascii() and number.isdigit() and 1 < int(number) <= tokens:
        return int(number)
    raise UsageError(f"mechanism {mechanism!r} must be full, or topk:k with k from 2 to {tokens}, the number of tokens")


def train(world: World, mechanisms: Sequence[str]) -> list[Trained]:
    """Train every mechanism from both starts, by gradient descent with momentum over all examples."""
    setup = world.setup
    kept = [kept_keys(mechanism, setup.tokens) for mechanism in mechanisms for _ in STARTS]
    starts = torch.stack([world.target, world.position]).repeat(len(mechanisms), 1)
    q = starts.clone().requires_grad_()
    optimizer = torch.optim.SGD([q], lr=setup.lr, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setup.steps)
    for _ in range(setup.steps):
        optimizer.zero_grad()
        _losses(world, q, kept).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        losses = _losses(world, q, kept)
        errors = world.test.errors(q, kept) / (2 * setup.width * setup.test_rows)
        m, theta = ((q @ own).abs() / setup.width for own in (world.position, world.target))
    cases = [(mechanism, start) for mechanism in mechanisms for start in STARTS]
    return [
        Trained(*case, world.alpha, world.seed, *(float(values[i]) for values in (losses, errors, m, theta)))
        for i, case in enumerate(cases)
    ]


def linear_error(world: World) -> float:
    """The test error of the best mixture of tokens by position alone, y = B x, fitted to the training examples.

    It sees the noise without positions, as in the source.
    """
    (gram, cross), (test_gram, test_cross) = world.train.plain, world.test.plain
    mixture = torch.linalg.solve(gram, cross.mT).mT  # B (x x') = y x'
    error = ((mixture @ test_gram) * mixture).sum() - 2 * (mixture * test_cross).sum() + world.test.square.sum()
    return float(error) / (2 * world.setup.width * world.setup.test_rows)


def _losses(world: World, q: Tensor, kept: Sequence[int]) -> Tensor:
    setup = world.setup
    return world.train.errors(q, kept) / (2 * setup.width) + setup.decay / 2 * (q * q).sum(-1)


def _weights(products: Tensor, k: int) -> Tensor:
    """The softmax over the k largest of each row; ties go to the lowest index."""
    if k == products.shape[-1]:
        return products.softmax(-1)
    order = products.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    keep = torch.zeros_like(products, dtype=torch.bool).scatter(-1, order, True)
    return products.masked_fill(~keep, -math.inf).softmax(-1)


def _normal(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    uniform = stream(seed, f"theory/positional_semantic/{name}").uniform(shape)
    return torch.special.ndtri(torch.from_numpy(np.clip(uniform, 1e-12, 1 - 1e-12))).float()
