"""A small transformer in plain torch, written for these tests alone, that tells the norms a certificate needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, mish, relu

from semfocus.randomness import stream
from semfocus.theory import BlockNorms, LossConstants, NormRows, certify, measure_head, spectral_norm

ACTIVATIONS = {"relu": relu, "gelu": gelu, "mish": mish}
GROUPS = ("query", "key", "value", "output", "mlp_in", "mlp_out")


@dataclass
class Trace:
    """What one forward pass met: one list entry per block."""

    norms: list[BlockNorms] = field(default_factory=list)
    masks: list[torch.Tensor] = field(default_factory=list)
    features: float = 0.0


@dataclass
class Tiny:
    """order pre or post, full attention (k None) or top-k; every tensor of `parameters` is float64."""

    order: str = "pre"
    k: int | None = None
    activation: str = "relu"
    seed: int = 0
    length: int = 6
    width: int = 5
    heads: int = 2
    head_width: int = 3
    hidden: int = 7
    depth: int = 2
    vocabulary: int = 4
    classes: int = 3
    epsilon: float = 1e-5
    scale: float = 1.7
    spread: float = 0.6  # standard deviation of the weights

    def __post_init__(self) -> None:
        self._draws = stream(self.seed, f"test/tiny/{self.order}/{self.k}/{self.activation}")
        d, inner = self.width, self.heads * self.head_width
        shapes = {"embedding": (self.vocabulary, d), "head": (self.classes, d), "head.bias": (self.classes,)}
        for i in range(self.depth):
            sizes = {"query": (inner, d), "key": (inner, d), "value": (inner, d), "output": (d, inner)}
            sizes |= {"mlp_in": (self.hidden, d), "mlp_out": (d, self.hidden)}
            for name, shape in sizes.items():
                shapes[f"{i}.{name}"], shapes[f"{i}.{name}.bias"] = shape, shape[:1]
        self.parameters = {name: self.spread * self.normal(shape) for name, shape in shapes.items()}
        self.parameters["embedding"] /= self.spread
        self.tokens = torch.from_numpy(self._draws.integers(self.vocabulary, self.length))
        self.positions = self.normal((self.length, d))
        self.label = torch.tensor([1])

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.special.ndtri(torch.from_numpy(self._draws.uniform(shape)).clamp(1e-12, 1 - 1e-12))

    def embed(self, p: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.scale * p["embedding"][self.tokens] + self.positions

    def loss(self, p: dict[str, torch.Tensor], x: torch.Tensor | None = None, trace: Trace | None = None):
        x = self.embed(p) if x is None else x
        for i in range(self.depth):
            x = self.block(i, p, x, trace)
        pooled = x.mean(0)
        if trace is not None:
            trace.features = pooled.norm().item()
        return cross_entropy(linear(pooled, p["head"], p["head.bias"])[None], self.label)

    def block(self, i: int, p: dict[str, torch.Tensor], x: torch.Tensor, trace: Trace | None = None) -> torch.Tensor:
        part = {name: p[f"{i}.{name}"] for name in GROUPS} | {f"{n}.bias": p[f"{i}.{n}.bias"] for n in GROUPS}
        pre = self.order == "pre"
        entering = self.normed(x) if pre else x
        mixed, masks = self.attention(part, entering)
        middle = x + mixed if pre else self.normed(x + mixed)
        into_mlp = self.normed(middle) if pre else middle
        hidden = ACTIVATIONS[self.activation](linear(into_mlp, part["mlp_in"], part["mlp_in.bias"]))
        given = linear(hidden, part["mlp_out"], part["mlp_out.bias"])
        if trace is not None:
            rows = (x, middle) if pre else (x + mixed, middle + given)
            trace.masks.append(masks)
            trace.norms.append(self.norms(part, entering, masks, rows, into_mlp, hidden))
        return middle + given if pre else self.normed(middle + given)

    def attention(self, part: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (
            linear(x, part[n], part[f"{n}.bias"]).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for n in ("query", "key", "value")
        )
        scores = q @ k.mT / math.sqrt(self.head_width)
        keep = torch.ones_like(scores, dtype=torch.bool)
        if self.k is not None:
            keep = torch.zeros_like(keep).scatter(-1, scores.topk(self.k, -1).indices, True)
        mixed = torch.where(keep, scores, -math.inf).softmax(-1) @ v
        return linear(mixed.transpose(0, 1).flatten(1), part["output"], part["output.bias"]), keep

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (self.width,), eps=self.epsilon)

    def norms(self, part, entering, masks, rows, into_mlp, hidden) -> BlockNorms:
        part, d = {name: value.detach() for name, value in part.items()}, self.head_width
        heads = []
        for h in range(self.heads):
            own = slice(h * d, (h + 1) * d)
            q, k, v = ((part[n][own], part[f"{n}.bias"][own]) for n in ("query", "key", "value"))
            heads.append(
                measure_head(
                    entering.detach(),
                    query=q,
                    key=k,
                    value=v,
                    output=part["output"][:, own],
                    scale=1 / math.sqrt(d),
                    keep=masks[h],
                    masks_may_change=self.k is not None,
                )
            )
        first, second = (NormRows(r.detach().std(-1, correction=0).min().item(), self.epsilon) for r in rows)
        return BlockNorms(
            heads=tuple(heads),
            tokens=longest(entering),
            first=first,
            second=second,
            mlp_tokens=longest(into_mlp),
            mlp_in=spectral_norm(part["mlp_in"]),
            mlp_out=spectral_norm(part["mlp_out"]),
            hidden=longest(hidden),
            activation=self.activation,
            order=self.order,
        )

    def certify(self, blocks: list[BlockNorms], features: float) -> LossConstants:
        return certify(
            blocks,
            pooled=self.length,
            head=spectral_norm(self.parameters["head"]),
            features=features,
            embedding_scale=self.scale,
            repeats=int(torch.bincount(self.tokens).max()),
        )


def longest(rows: torch.Tensor) -> float:
    return rows.detach().norm(dim=-1).max().item()
