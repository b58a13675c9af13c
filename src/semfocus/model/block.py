"""One block of the model: attention, then an MLP."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from semfocus import counter_rng
from semfocus.attention.learned import Follow, of_call
from semfocus.attention.operator import attend
from semfocus.encodings import distance_bias, rotated
from semfocus.model import layers
from semfocus.model.inputs import Padding
from semfocus.model.layers import ACTIVATIONS, NORM_EPSILON
from semfocus.spec import Spec


def block_parameters(spec: Spec) -> list[str]:
    """The names of a block's parameters, in the order in which `block` takes them."""
    kinds = ("weight", "bias") if spec.model.biases else ("weight",)
    linear = [f"{name}.{kind}" for name in ("qkv", "o", "mlp_in", "mlp_out") for kind in kinds]
    return [*linear, *(f"attention.{name}" for name, _ in spec.learned)]


def block(
    x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool
) -> Tensor:
    """One block: attention, then an MLP, each with a residual; a norm before (pre) or after (post) each.

    `weights` are those of `block_parameters`, in this order. `seeds` (4, E) decide
    dropout; in evaluation, (4, E, B) decide that of attention weights, if there is any.
    """
    p = spec.model.dropout if train else 0.0

    def drop(tensor: Tensor, site: int) -> Tensor:
        return counter_rng.dropout(tensor, seeds[site], p) if p and seeds is not None else tensor

    def norm(tensor: Tensor, eps: float) -> Tensor:
        return layers.norm(tensor, eps, spec)

    own = dict(zip(block_parameters(spec), weights, strict=True))
    learned = {name: own[f"attention.{name}"].unsqueeze(1) for name, _ in spec.learned}

    def linear(tensor: Tensor, name: str) -> Tensor:
        return layers.linear(tensor, own[f"{name}.weight"], own.get(f"{name}.bias"))

    pre = spec.model.norm == "pre"
    y = norm(x, epsilon) if pre else x
    q, k, v = (_split_heads(part, spec) for part in linear(y, "qkv").chunk(3, dim=-1))  # (E, B, H, L, w)
    if spec.model.position_kind == "rope":
        q, k = rotated(q, spec), rotated(k, spec)
    attn_out = _attention(q, k, v, padding, seeds, spec, train, of_call(spec.mechanism, spec.normaliser, learned, y))
    if train and any(part.average is not None for _, part in spec.learned):
        attn_out = _following(attn_out, learned, q, k, padding, spec)
    x = _added(x, drop(linear(attn_out.transpose(2, 3).flatten(3), "o"), 1))
    x = x if pre else norm(x, epsilon)
    hidden = drop(linear(norm(x, NORM_EPSILON) if pre else x, "mlp_in"), 2)
    x = _added(x, drop(linear(ACTIVATIONS[spec.model.activation](hidden), "mlp_out"), 3))
    return x if pre else norm(x, NORM_EPSILON)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Padding,
    seeds: Tensor | None,
    spec: Spec,
    train: bool,
    learned: dict[str, Tensor] | None = None,
) -> Tensor:
    """(E, B, H, L, w): each member by its own mechanism; members of one mechanism stand together."""
    outs = []
    if spec.model.position_kind == "alibi":
        bias = distance_bias(spec, q.device, q.dtype)
        hidden = bias if padding.mask is None else torch.where(padding.mask, bias, float("-inf"))
        padding = padding._replace(mask=hidden)
    for part, members in spec.by_attention:
        settings = attention_settings(None if seeds is None else seeds[:, members], part, train)
        own = padding.only(members)._asdict()
        outs.append(attend(q[members], k[members], v[members], part.mechanism, learned=learned, **own, **settings))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _following(
    attn_out: Tensor, learned: dict[str, Tensor], q: Tensor, k: Tensor, padding: Padding, spec: Spec
) -> Tensor:
    """The same, with the gaps of averaged parameters as their gradients."""
    valid = padding.mask[..., 0, :] if padding.mask is not None else None
    if padding.lengths is not None:
        valid = (torch.arange(k.shape[-2], device=k.device) < padding.lengths[..., None])[:, :, None]
    own = {name: weight.squeeze(1) for name, weight in learned.items()}
    queries, keys = (spec.normaliser.prepared(part) for part in (q, k))
    for name, gap in spec.mechanism.gaps(own, queries, keys, valid).items():
        attn_out = Follow.apply(attn_out, learned[name], gap.unsqueeze(1))
    return attn_out


def attention_settings(seeds: Tensor | None, spec: Spec, train: bool) -> dict[str, Any]:
    """The arguments of `attend` beside q, k, v, mechanism and padding."""
    p = spec.model.dropout if train or spec.model.dropout_in_evaluation else 0.0
    return {
        "causal": spec.is_causal,
        "normaliser": spec.normaliser,
        "scale": spec.attention.inverse_temperature / math.sqrt(spec.model.head_dim),
        "dropout_p": p if seeds is not None else 0.0,
        "seed": None if seeds is None else seeds[0].view(seeds.shape[1], -1, 1),
        "assume_finite": True,
    }


def _added(x: Tensor, change: Tensor) -> Tensor:
    """The residual plus a layer's output: in place where both have one type; autocast gives the output fewer bits."""
    return change.add_(x) if change.dtype == x.dtype else x + change


def _split_heads(x: Tensor, spec: Spec) -> Tensor:
    """(E, B, L, H w) as attention takes it: (E, B, H, L, w)."""
    return x.unflatten(-1, (spec.model.heads, spec.model.head_dim)).transpose(2, 3)
