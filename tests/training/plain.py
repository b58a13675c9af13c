"""A reference encoder: one model of plain `nn` modules, with loops where they are clearer.

It shares no code with `semfocus.model`. Its weights and gradients are converted from and to a member's parameters (P,).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from semfocus.spec import Spec

Masks = Callable[[int, Tensor], Tensor]  # (dropout site, input) -> factors


class PlainBlock(nn.Module):
    def __init__(self, spec: Spec, first: bool) -> None:
        super().__init__()
        model = spec.model
        self.spec, self.heads, self.width = spec, model.heads, model.head_dim
        inner = self.heads * self.width
        self.q, self.k, self.v = (nn.Linear(model.d_model, inner) for _ in range(3))
        self.o = nn.Linear(inner, model.d_model)
        self.mlp_in, self.mlp_out = nn.Linear(model.d_model, model.d_mlp), nn.Linear(model.d_mlp, model.d_model)
        epsilon = 0.0 if first and model.first_norm_exact else 1e-5
        self.norm_1 = nn.LayerNorm(model.d_model, eps=epsilon, elementwise_affine=False)
        self.norm_2 = nn.LayerNorm(model.d_model, elementwise_affine=False)
        self.activation = {"relu": nn.ReLU(), "gelu": nn.GELU(), "mish": nn.Mish()}[model.activation]

    def forward(self, x: Tensor, valid_mask: Tensor, masks: Masks, place: int) -> Tensor:
        pre = self.spec.model.norm == "pre"
        attn_out = self.attention(self.norm_1(x) if pre else x, valid_mask, lambda weights: masks(place, weights))
        x = x + self.o(attn_out) * masks(place + 1, x)
        x = x if pre else self.norm_1(x)
        hidden = self.mlp_in(self.norm_2(x) if pre else x)
        hidden = self.activation(hidden * masks(place + 2, hidden))
        x = x + self.mlp_out(hidden) * masks(place + 3, x)
        return x if pre else self.norm_2(x)

    def attention(self, x: Tensor, valid_mask: Tensor, dropped: Callable[[Tensor], Tensor]) -> Tensor:
        batch, length, _ = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, self.width).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.width) * self.spec.attention.inverse_temperature
        keep = kept_keys(self.spec.attention.mechanism, scores.detach(), valid_mask)
        if self.spec.attention.normaliser == "sigmoid":
            weights = torch.sigmoid(scores - keep.sum(-1, keepdim=True).clamp(min=1).log()) * keep
        else:
            raised = (scores - scores.detach().amax(-1, keepdim=True)).exp() * keep
            weights = raised / raised.sum(-1, keepdim=True).clamp(min=1e-30)
        return ((weights * dropped(weights)) @ v).transpose(1, 2).reshape(batch, length, -1)


def kept_keys(mechanism: str, scores: Tensor, valid_mask: Tensor) -> Tensor:
    """(B, H, L, L) bool, key by key."""
    name, _, rest = mechanism.partition(":")
    size, _, extra = rest.partition("+")
    globals_ = int(extra.removesuffix("g") or 0)
    length = scores.shape[-1]
    keep = torch.zeros_like(scores, dtype=torch.bool)
    for i in range(length):
        if name == "topk":
            for b in range(scores.shape[0]):
                keys = [j for j in range(length) if valid_mask[b, j]]
                for h in range(scores.shape[1]):
                    best = sorted(keys, key=lambda j: (-scores[b, h, i, j].item(), j))[: int(size)]
                    keep[b, h, i, best] = True
            continue
        for j in range(length):
            keep[:, :, i, j] = _positional(name, int(size or 0), i, j, length - globals_)
    return keep & valid_mask[:, None, None, :]


def _positional(name: str, size: int, i: int, j: int, border: int) -> bool:
    if name == "full" or i >= border or j >= border:
        return True
    if name == "block_local":
        return i // size == j // size
    start = min(max(i - (size - 1) // 2, 0), max(border - size, 0))
    return start <= j < start + size


class PlainEncoder(nn.Module):
    def __init__(self, spec: Spec, row: Tensor) -> None:
        super().__init__()
        model = spec.model
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab_size + 1 + spec.extra_tokens, model.d_model)
        self.blocks = nn.ModuleList(PlainBlock(spec, i == 0) for i in range(model.blocks))
        self.readout = nn.Linear(model.d_model, spec.num_classes)
        for name, value in spec.layout.split(row.unsqueeze(0)).items():
            for target, part in self._targets(name, value[0]):
                target.data = part.clone()

    def _targets(self, name: str, value: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """The modules' parameters that a member's parameter `name` corresponds to, each with its part of `value`."""
        if name == "embedding":
            return [(self.embedding.weight, value)]
        owner, _, kind = name.rpartition(".")
        parts = [value] if not owner.endswith("qkv") else list(value.chunk(3, dim=-1))
        modules = [owner] if not owner.endswith("qkv") else [owner.replace("qkv", letter) for letter in "qkv"]
        return [
            (getattr(self.get_submodule(module), kind), part.T if kind == "weight" else part)
            for module, part in zip(modules, parts, strict=True)
        ]

    def row(self, gradients: bool = False) -> Tensor:
        """(P,) the parameters, or their gradients, in the layout of a member."""
        parts = []
        for name, shape in self.spec.layout.shapes.items():
            own = [parameter for parameter, _ in self._targets(name, torch.empty(shape))]
            values = [(p.grad if gradients else p).detach() for p in own]
            values = [value.T if name.endswith(".weight") else value for value in values]
            parts.append(torch.cat(values, dim=-1).unsqueeze(0))
        return self.spec.layout.join(parts)[0]

    def forward(self, tokens: Tensor, lengths: Tensor, masks: Masks = lambda place, x: torch.ones_like(x)) -> Tensor:
        """(B, C) the logits of tokens (B, L) and lengths (B,). CLS and global tokens and padding are added here."""
        spec, model = self.spec, self.spec.model
        batch, width = tokens.shape
        padded = width
        if model.pad_to_multiple and spec.attention.size is not None:
            while padded % spec.attention.size:
                padded += 1
        pad = spec.vocab_size
        rows = torch.full((batch, padded + spec.extra_tokens), pad)
        rows[:, :width] = tokens
        rows[:, padded:] = torch.arange(pad + 1, pad + 1 + spec.extra_tokens)
        valid_mask = torch.zeros(rows.shape, dtype=torch.bool)
        for b in range(batch):
            valid_mask[b, : padded if model.padding_visible else lengths[b]] = True
        valid_mask[:, padded:] = True
        x = self.embedding(rows) * math.sqrt(model.d_model) + pos_enc(rows.shape[1], model.d_model).to(self.dtype)
        x = x * masks(0, x)
        for i, block in enumerate(self.blocks):
            x = block(x, valid_mask, masks, 1 + 4 * i)
        if model.pooling == "cls":
            return self.readout(x[:, padded])
        pooled = []
        for b in range(batch):
            end = rows.shape[1] if model.padding_visible else int(lengths[b])
            pooled.append(x[b, :end].mean(dim=0))
        return self.readout(torch.stack(pooled))

    @property
    def dtype(self) -> torch.dtype:
        return self.readout.weight.dtype


def pos_enc(length: int, width: int) -> Tensor:
    """(L, d): sin(p / 10000^(2i/d)) and its cosine in alternate columns."""
    table = torch.empty(length, width, dtype=torch.float64)
    for p in range(length):
        for c in range(width):
            angle = p / 10000 ** ((c - c % 2) / width)
            table[p, c] = math.sin(angle) if c % 2 == 0 else math.cos(angle)
    return table
