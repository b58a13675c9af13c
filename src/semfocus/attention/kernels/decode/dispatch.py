"""Launches of the decode kernels. Nothing waits for the device and grids follow from the size of the cache, so that a
CUDA graph captured once serves while the lengths grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import OutOfResources

from semfocus.attention.chunked import counted_info
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.decode.kernels import score_keys, select_and_mix
from semfocus.attention.kernels.eager import is_eager
from semfocus.attention.kernels.long.arguments import flattened
from semfocus.attention.kernels.products import precision
from semfocus.attention.kernels.short.arguments import cdiv, next_power_of_2, padded

MAX_GROUPS = 16_384  # maxima that a program of select_and_mix holds at once


@dataclass(frozen=True)
class Tiles:
    """Tile sizes and warps, counted and not measured; any choice gives the same answer."""

    split: int = 256  # keys of a program of score_keys
    keys: int = 64  # BLOCK_N of score_keys
    # Rows of a product, most of them empty. From 64 rows on an H200 multiplies by another instruction than below, and
    # the threshold kernels take that one in 16 bits, the other in float32: both choose by the same bits.
    rows: int = 64
    rows_float32: int = 32
    score_warps: int = 4
    score_stages: int = 3
    held: int = 32  # numbers of a list that a thread of select_and_mix holds at most
    listed: int = 32  # values that select_and_mix adds at a time


TILES = Tiles()


def group_size(keys: int, most: int) -> int:
    """Keys in a group: few groups to choose from, and few keys to look at in the chosen ones."""
    group = 32 if most <= 128 else 16 if most <= 512 else 8
    while -(-keys // group) > MAX_GROUPS:
        group *= 2
    return group


@torch.library.custom_op("semfocus::decode_topk", mutates_args=())
def decode_topk(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, topk: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output (B, H, G, Lq, Dv) of q (B, H, G, Lq, D), k (B, H, Lk, D) and v (B, H, Lk, Dv).

    Besides the kept keys (B, H, G, Lq, topk) int32 in increasing order, -1 for none, their weights and log-sum-exp.
    """
    return launch(q, k, v, mask, lengths, topk, causal, scale)


def launch(q, k, v, mask, lengths, topk, causal, scale) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`decode_topk` without the dispatcher."""
    tiles, wide = TILES, q.dtype == torch.float32
    batch, heads, shared, queries, width = q.shape
    problems, rows, keys, value_width = batch * heads, shared * queries, k.shape[-2], v.shape[-1]
    group = group_size(keys, topk)
    groups = cdiv(keys, group)
    out, listed, weights, lse = results = _empty_results(q, v, topk)
    scores = torch.empty(problems, rows, keys, dtype=torch.int32, device=q.device)
    maxima = torch.empty(problems, rows, groups, dtype=torch.int32, device=q.device)
    mask_data = q if mask is None else mask.expand(batch, heads, shared, queries, keys)  # any address will do
    strides = (0,) * 5 if mask is None else mask_data.stride()
    tile_rows = tiles.rows_float32 if wide else tiles.rows
    block_groups, block_k = padded(groups), next_power_of_2(topk)
    longest = max(block_groups, block_k * group)  # of the lists that a program of select_and_mix holds
    with torch.cuda.device_of(q):
        start = score_keys[(problems * cdiv(keys, tiles.split), cdiv(rows, tile_rows))]
        _launch_within_memory(
            tiles.score_stages, start, q, k, mask_data, lengths, scores, maxima, strides, heads, rows, queries, keys,
            groups, D=width, BLOCK_D=padded(width), BLOCK_R=tile_rows, BLOCK_N=tiles.keys, SPLIT=tiles.split,
            GROUP=group, CAUSAL=causal, MASK=mask is not None, LENGTHS=lengths is not None,
            PRECISION=precision(tf32=False), num_warps=tiles.score_warps,
        )  # fmt: skip
        select_and_mix[(problems * rows,)](
            v, scores, maxima, listed, weights, lse, out, rows, keys, groups, topk, scale, DV=value_width,
            BLOCK_DV=padded(value_width), BLOCK_GROUPS=block_groups, BLOCK_K=block_k, GROUP=group,
            BLOCK_LIST=tiles.listed, num_warps=min(max(longest // (32 * tiles.held), 8), 16),
        )  # fmt: skip
    return results


def _launch_within_memory(stages: int, start: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Launch a kernel; on a GPU with less shared memory without a pipeline."""
    try:
        start(*arguments, **options, num_stages=stages)
    except OutOfResources:
        start(*arguments, **options, num_stages=1)


@decode_topk.register_fake
def _(q, k, v, mask, lengths, topk, causal, scale):
    return _empty_results(q, v, topk)


def _empty_results(q: Tensor, v: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = q.shape[:-1]
    return (
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty(*rows, topk, dtype=torch.int32),
        q.new_empty(*rows, topk, dtype=torch.float32),
        q.new_empty(rows, dtype=torch.float32),
    )


def decode(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Top-k attention of a call that `decode_refuses` does not refuse."""
    given, lead = flattened(inputs), inputs.lead
    most = min(inputs.mechanism.size or 0, inputs.num_keys)
    run = launch if is_eager(given.q, given.k, given.v) else decode_topk
    out, listed, weights, lse = run(*given[:5], most, inputs.causal, inputs.scale)
    out = out.view(*lead, *out.shape[-2:])
    if not want_info:
        return out, None
    listed, weights, lse = listed.view(*lead, -1, most).long(), weights.view(*lead, -1, most), lse.view(*lead, -1)
    return out, counted_info(inputs, listed, weights, lse)
