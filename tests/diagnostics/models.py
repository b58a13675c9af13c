"""Models that never heard of us, and ones that did: small, random, quick."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus import Attention, attend
from semfocus.attention import parse_mechanism
from semfocus.config import AttentionConfig, ModelConfig
from semfocus.model.encoder import Encoder
from semfocus.spec import Spec, initial
from tests.integrations import tiny

WIDTH, HEADS = 16, 4


def tokens(rows: int = 3, length: int = 9, seed: int = 5) -> Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def seeded(make, seed: int = 0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


class SdpaBlock(nn.Module):
    """Self-attention by torch's function, called through the name that the options say."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(3 * q, k, v, is_causal=self.causal)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Fixed(nn.Module):
    """Attention over given queries and keys (R, H, L, D)."""

    def __init__(self, q: Tensor, k: Tensor | None = None) -> None:
        super().__init__()
        self.q, self.k = q, q if k is None else k

    def forward(self, mask: Tensor | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(self.q, self.k, self.k, attn_mask=mask, scale=1.0)


class HandMade(nn.Module):
    """Attention written out: nothing that could be observed."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = HandMadeAttention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


class HandMadeAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x


class Calls(nn.Module):
    """Two calls of `attend` in one module, the second over other keys."""

    def __init__(self, mechanism: str) -> None:
        super().__init__()
        self.mechanism = parse_mechanism(mechanism)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        first = attend(heads, heads, heads, self.mechanism)
        return attend(first, heads[..., :-2, :], heads[..., :-2, :], self.mechanism)


def sdpa_model(causal: bool = False) -> nn.Module:
    return seeded(lambda: nn.Sequential(SdpaBlock(causal), SdpaBlock(causal)))


def attention_layer(mechanism: str = "topk:3") -> nn.Module:
    return seeded(lambda: Attention(WIDTH, HEADS, mechanism))


def encoder(mechanism: str = "topk:3", heads: int = 2, blocks: int = 2, width: int = 8, scale: float = 3.0) -> Encoder:
    model = ModelConfig(blocks=blocks, heads=heads, d_model=WIDTH, d_mlp=WIDTH, head_width="split")
    spec = Spec(model, AttentionConfig(mechanism=mechanism), vocab_size=3, num_classes=2, seq_len=width)
    made = Encoder(spec, initial(spec, 7)).eval()
    with torch.no_grad():  # far from uniform attention
        for name, parameter in made.named_parameters():
            if name.endswith("qkv__weight"):
                parameter.mul_(scale)
    return made


def rows(count: int = 5, width: int = 8, seed: int = 3) -> Tensor:
    return torch.randint(0, 3, (count, width), generator=torch.Generator().manual_seed(seed))


def eager_mistral() -> Any:
    model = tiny.mistral(7)
    model.set_attn_implementation("eager")
    return model
