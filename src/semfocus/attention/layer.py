"""`Attention`: a drop-in for `nn.MultiheadAttention` (batch first) with any mechanism."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.learned import LearnedParameters
from semfocus.attention.mechanisms import Mechanism
from semfocus.attention.normalisers import Normaliser, Softmax
from semfocus.attention.operator import as_mechanism, as_normaliser, attend
from semfocus.attention.pairs import own_normaliser
from semfocus.attention.weights import LayerSizes
from semfocus.errors import UsageError, check_int


class Attention(nn.Module):
    """Projections around `attend`: `Attention(d_model=64, heads=4, mechanism=TopK(5))`.

    forward(q, k=None, v=None) takes (..., L, d_model) and returns (output, weights or None), as
    `nn.MultiheadAttention` does; k defaults to q and v to k. `head_dim` defaults to d_model // heads.
    RandomK and dropout draw from `generator` in training; evaluation is deterministic. What SSMax, ASEntmax and Routing
    learn is in `learned`; routing's centroids move in training and stand still in evaluation.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        mechanism: Mechanism | str,
        head_dim: int | None = None,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        normaliser: Normaliser | str = Softmax(),
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_int("d_model", d_model, at_least=1)
        check_int("heads", heads, at_least=1)
        if head_dim is None and d_model % heads:
            raise UsageError(f"d_model = {d_model} is not a multiple of heads = {heads}; give head_dim explicitly")
        self.heads = heads
        self.head_dim = d_model // heads if head_dim is None else check_int("head_dim", head_dim, at_least=1)
        self.mechanism = as_mechanism(mechanism)
        if not 0 <= dropout < 1:
            raise UsageError(f"dropout = {dropout!r} must be at least 0 and below 1")
        self.normaliser = own_normaliser(self.mechanism, as_normaliser(normaliser), causal)
        self.causal = causal
        self.dropout = dropout
        self.generator = generator
        inner = self.heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(d_model, inner, bias=bias, device=device, dtype=dtype) for _ in range(3)
        )
        self.out_proj = nn.Linear(inner, d_model, bias=bias, device=device, dtype=dtype)
        sizes = LayerSizes(d_model, heads, self.head_dim)
        self.learned = LearnedParameters(self.mechanism, self.normaliser, sizes, device, dtype)

    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """`key_padding_mask` (..., Lk): True where a key is padding. Weights: the mean over heads, (..., Lq, Lk)."""
        k = q if k is None else k
        v = k if v is None else v
        heads = [
            projection(tensor).unflatten(-1, (self.heads, self.head_dim)).transpose(-2, -3)
            for projection, tensor in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        ]
        mask = None
        if key_padding_mask is not None:
            # (..., Lk) -> (..., 1, 1, Lk). A bool mask of attend is True where a key may be kept; a float is added.
            mask = key_padding_mask[..., None, None, :]
            mask = mask if mask.is_floating_point() else ~mask.bool()
        call = partial(
            attend,
            *heads,
            self.mechanism,
            causal=self.causal,
            mask=mask,
            normaliser=self.normaliser,
            dropout_p=self.dropout if self.training else 0.0,
            generator=self.generator if self.training else None,
            learned=self.learned.of_call(q),
        )
        self.learned.follow(heads[0], heads[1], _visible(key_padding_mask))
        weights = None
        if need_weights:
            out, info = cast("tuple[Tensor, AttentionInfo]", call(return_info=True))
            dense = info.weights.new_zeros(*info.weights.shape[:-1], k.shape[-2])
            dense = dense.scatter_add(-1, info.indices.clamp(min=0), info.weights)
            weights = dense.mean(dim=-3).to(q.dtype)
        else:
            out = call()
        return self.out_proj(out.transpose(-2, -3).flatten(-2)), weights

    def extra_repr(self) -> str:
        return f"mechanism={self.mechanism}, heads={self.heads}, head_dim={self.head_dim}, causal={self.causal}"


def _visible(padding: Tensor | None) -> Tensor | None:
    """(..., Lk) bool: True where a key is no padding."""
    if padding is None:
        return None
    return padding != float("-inf") if padding.is_floating_point() else ~padding.bool()
