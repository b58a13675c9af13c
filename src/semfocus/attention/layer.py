"""`Attention`: torch's multi-head attention (batch first) with any mechanism."""

from __future__ import annotations

from functools import partial, reduce
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

    Called as `nn.MultiheadAttention(batch_first=True)` it gives the same with `Full()` and the same weights, except
    that `need_weights` is off unless asked for (weights take memory for every query and key), and that a query whose
    keys are all hidden gives zeros instead of NaN. k defaults to q and v to k; `head_dim` to d_model // heads.
    causal       as in `attend`: the last query sees the last key, also where queries and keys differ in number
    generator    what RandomK and dropout draw from in training; evaluation is deterministic
    learned      what SSMax, ASEntmax and Routing learn; centroids move in training and stand still in evaluation
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
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The arguments of torch's layer, in its order. Masks are bool (True hides a key) or float (added to scores).

        key_padding_mask (..., Lk)        for all queries of a row
        attn_mask (Lq, Lk)                for all rows and heads, or (rows x heads, Lq, Lk)
        need_weights                      also return the weights before dropout: their mean over the heads
                                          (..., Lq, Lk), or without `average_attn_weights` (..., heads, Lq, Lk)
        is_causal                         a hint that `attn_mask` is causal; the mask decides, and must be given
        """
        k = q if k is None else k
        v = k if v is None else v
        if is_causal and attn_mask is None:
            raise UsageError(
                "is_causal is a hint about attn_mask, which is None; give the mask, or Attention(causal=True)"
            )
        heads = [
            projection(tensor).unflatten(-1, (self.heads, self.head_dim)).transpose(-2, -3)
            for projection, tensor in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        ]
        call = partial(
            attend,
            *heads,
            self.mechanism,
            causal=self.causal,
            mask=self._mask(q, k, key_padding_mask, attn_mask),
            normaliser=self.normaliser,
            dropout_p=self.dropout if self.training else 0.0,
            generator=self.generator if self.training else None,
            learned=self.learned.of_call(q),
        )
        self.learned.follow(heads[0], heads[1], _visible(key_padding_mask))
        weights = None
        if need_weights:
            out, info = cast("tuple[Tensor, AttentionInfo]", call(return_info=True))
            weights = info.dense_weights(k.shape[-2]).to(q.dtype)
            weights = weights.mean(dim=-3) if average_attn_weights else weights
        else:
            out = call()
        return self.out_proj(out.transpose(-2, -3).flatten(-2)), weights

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """Both masks as `attend` takes them: (..., heads or 1, Lq or 1, Lk), bool with True = keep, or float."""
        rows, lengths = q.shape[:-2], (q.shape[-2], k.shape[-2])
        masks = []
        if padding is not None:
            _check_mask("key_padding_mask", padding, ((*rows, lengths[1]),))
            masks.append(padding[..., None, None, :])
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, (lengths, (rows.numel() * self.heads, *lengths)))
            masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.view(*rows, self.heads, *lengths))
        if all(mask.dtype == torch.bool for mask in masks):
            return ~reduce(torch.logical_or, masks) if masks else None
        added = (mask if mask.is_floating_point() else _hiding(mask, q.dtype) for mask in masks)
        return reduce(torch.add, added)

    def extra_repr(self) -> str:
        return f"mechanism={self.mechanism}, heads={self.heads}, head_dim={self.head_dim}, causal={self.causal}"


def _visible(padding: Tensor | None) -> Tensor | None:
    """(..., Lk) bool: True where a key is no padding."""
    if padding is None:
        return None
    return padding != float("-inf") if padding.is_floating_point() else ~padding.bool()


def _check_mask(name: str, mask: Tensor, shapes: tuple[tuple[int, ...], ...]) -> None:
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(
            f"{name} has dtype {mask.dtype}; it must be bool (True hides a key) or floating (added to scores)"
        )
    if mask.shape not in shapes:
        raise UsageError(f"{name} has shape {tuple(mask.shape)}; it must be {' or '.join(map(str, shapes))}")


def _hiding(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask, True where a key is hidden, as one that is added to the scores."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
