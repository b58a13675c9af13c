"""The arguments of one call as the kernels for long rows take them: contiguous, with three leading dimensions.

q (B, H, G, Lq, D): G query heads share one key head; k (B, H, Lk, D); v (B, H, Lk, Dv).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from semfocus import counter_rng
from semfocus.attention.inputs import AttentionInputs


class Flattened(NamedTuple):
    """Tensors of a call; hashes are what dropout bits come from."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # (B, H, G, Lq or 1, Lk or 1)
    lengths: Tensor | None  # (*lead, 1, 1) int32, clamped
    hashes: Tensor | None  # (*lead, Lq, 1) int32


def flattened(inputs: AttentionInputs) -> Flattened:
    """The tensors of a call, copied where they are not contiguous."""
    lead = inputs.lead
    q, k, v, mask, *_ = strided(inputs)
    lengths = None
    if inputs.lengths is not None:
        lengths = inputs.lengths.clamp(0, inputs.num_keys).expand(*lead, 1, 1).to(torch.int32).contiguous()
    hashes = None
    if inputs.dropout_seed is not None:
        rows = inputs.positions().row_ids(lead, inputs.dropout_seed)
        hashes = counter_rng.row_hash(inputs.dropout_seed, rows).expand(*lead, inputs.num_queries, 1).contiguous()
    return Flattened(q, k, v, mask, lengths, hashes)


def strided(inputs: AttentionInputs) -> Flattened:
    """The same, but lengths are (B, H, G, 1, 1), of any type of whole numbers and unclamped; without dropout."""
    lead = inputs.lead
    shape = _as_three(lead, shared=_shares_keys(inputs))

    def spread(tensor: Tensor) -> Tensor:
        return _expand(tensor, (*lead, *tensor.shape[-2:]), shape)

    mask = None if inputs.mask is None else spread(inputs.mask)
    lengths = None if inputs.lengths is None else spread(inputs.lengths)
    q, k, v = spread(inputs.q), spread(inputs.k)[:, :, 0], spread(inputs.v)[:, :, 0]
    return Flattened(q.contiguous(), k.contiguous(), v.contiguous(), mask, lengths, None)


def _shares_keys(inputs: AttentionInputs) -> bool:
    """Whether the last leading dimension holds query heads that share one key head."""
    return bool(inputs.lead) and inputs.k.shape[-3:-2] == inputs.v.shape[-3:-2] == (1,)


def _as_three(lead: torch.Size, shared: bool) -> tuple[int, int, int]:
    """The leading dimensions as batch, key heads, query heads that share a key head."""
    group = lead[-1] if shared else 1
    rest = lead[:-1] if shared else lead
    heads = rest[-1] if rest else 1
    return math.prod(rest[:-1]), heads, group


def _expand(tensor: Tensor, full: tuple[int, ...], shape: tuple[int, int, int]) -> Tensor:
    """The tensor expanded to the common leading dimensions, which become the three of `shape`."""
    return tensor.expand(full).reshape(*shape, *full[-2:])
