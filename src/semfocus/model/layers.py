"""The layers that a model is built of: embedding, norm, linear, and the activations. They hold no parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from semfocus import counter_rng
from semfocus.spec import Spec


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _swiglu(x: Tensor) -> Tensor:
    """Half of the channels, each multiplied by its gate among the other half (Shazeer 2020, arXiv 2002.05202)."""
    value, gate = x.chunk(2, dim=-1)
    return value * functional.silu(gate)


ACTIVATIONS = {
    "relu": functional.relu, "gelu": functional.gelu, "mish": functional.mish, "relu2": _relu_squared,
    "swiglu": _swiglu,
}  # fmt: skip
NORM_EPSILON = 1e-5
ENOUGH_PROGRAMS = 128  # that a large GPU runs at once
MAX_SPLIT_WEIGHT = 2**17  # numbers: a copy of more for each example costs more than splitting the sum gains


def embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
    """(E, B, L, d): the vectors of tokens (E, B, L) in each member's table (E, V, d), scaled, plus positions.

    `pos_enc` is broadcastable to the result.
    """
    members, ids, d = table.shape
    offsets = (torch.arange(members, device=table.device) * ids).view(-1, 1, 1)
    x = functional.embedding(tokens + offsets, table.flatten(0, 1)) * math.sqrt(d)
    x = x + pos_enc
    return counter_rng.dropout(x, seed, spec.model.dropout) if seed is not None and spec.model.dropout else x


def norm(x: Tensor, epsilon: float, spec: Spec) -> Tensor:
    """LayerNorm or RMSNorm over the last axis, without weights."""
    function = functional.rms_norm if spec.model.norm_function == "rmsnorm" else functional.layer_norm
    return function(x, (x.shape[-1],), eps=epsilon)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (E, B, L, i) times weight (E, i, o), plus bias."""
    members, batch = x.shape[:2]
    # The gradient of a weight sums over B L positions. With few members a GPU needs that sum split, unless the weight
    # is so large that its own tiles are programs enough.
    is_small = members * 4 < ENOUGH_PROGRAMS and weight[0].numel() <= MAX_SPLIT_WEIGHT
    splits = batch if x.is_cuda and is_small and torch.is_grad_enabled() else 1
    flat = x.reshape(members * splits, -1, x.shape[-1])
    if members == splits == 1 and _pads_odd_sizes(x.device):
        product = flat[0] @ weight[0] if bias is None else torch.addmm(bias[0], flat[0], weight[0])
        return product.view(*x.shape[:-1], -1)
    if splits == 1:
        product = torch.bmm(flat, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, weight)
        return product.view(*x.shape[:-1], -1)
    repeated = weight.unsqueeze(1).expand(-1, splits, -1, -1).reshape(members * splits, *weight.shape[1:])
    product = torch.bmm(flat, repeated).view(*x.shape[:-1], -1)
    return product if bias is None else product.add_(bias[:, None, None])  # in place: saves memory traffic


def _pads_odd_sizes(device: torch.device) -> bool:
    """Whether torch's compiler pads odd sizes of a product, as of a vocabulary; it never does of a batch of one."""
    return device.type != "cpu"
