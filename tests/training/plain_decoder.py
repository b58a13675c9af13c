"""A reference decoder of language: one model, written out. It shares no code with `semfocus.model`.

Shapes: B examples, L positions, d model width, H heads, w head width, V tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus.config import ModelConfig


def logits_of(parameters: dict[str, Tensor], tokens: Tensor, model: ModelConfig, num_tokens: int) -> Tensor:
    """(B, L, V) of tokens (B, L), with full causal attention."""
    d, length = model.d_model, tokens.shape[1]
    x = parameters["embedding"][tokens] * math.sqrt(d)
    if model.position_kind == "learned":
        x = x + parameters["positions"][:length]
    norm = (nn.RMSNorm if model.norm_function == "rmsnorm" else nn.LayerNorm)(d, eps=1e-5, elementwise_affine=False)
    for i in range(model.blocks):

        def linear(y: Tensor, name: str, i: int = i) -> Tensor:
            bias = parameters.get(f"blocks.{i}.{name}.bias")
            return functional.linear(y, parameters[f"blocks.{i}.{name}.weight"].T, bias)

        q, k, v = (_heads(part, model) for part in linear(norm(x), "qkv").chunk(3, dim=-1))
        if model.position_kind == "rope":
            q, k = _turned(q), _turned(k)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones(length, length).triu(1).bool()
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        x = x + linear(mixed.transpose(1, 2).flatten(2), "o")
        x = x + linear(_activated(linear(norm(x), "mlp_in"), model.activation), "mlp_out")
    if model.final_norm:
        x = norm(x)
    weight = parameters["embedding"][:num_tokens] if model.tied_head else parameters["readout.weight"].T
    return functional.linear(x, weight, parameters.get("readout.bias"))


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean over all positions that have a next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _heads(x: Tensor, model: ModelConfig) -> Tensor:
    return x.view(*x.shape[:2], model.heads, -1).transpose(1, 2)


def _turned(x: Tensor) -> Tensor:
    """Channels i and i + w/2 as one complex number, times exp(1j position 10000^(-2 i / w))."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None].double() / 10000 ** (torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def _activated(x: Tensor, name: str) -> Tensor:
    if name == "swiglu":
        value, gate = x.tensor_split(2, dim=-1)
        return value * gate * torch.sigmoid(gate)
    if name == "relu2":
        return x.clamp(min=0) ** 2
    return {"relu": nn.ReLU(), "gelu": nn.GELU(), "mish": nn.Mish()}[name](x)
