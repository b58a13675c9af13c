"""Launches of the decode kernels. Nothing waits for the device and grids follow from the size of the cache, so that a
CUDA graph captured once serves while the lengths grow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.decode.kernels import score_keys, select_and_mix
from semfocus.attention.kernels.long.arguments import flattened
from semfocus.attention.kernels.products import precision
from semfocus.attention.kernels.short.arguments import padded

MAX_GROUPS = 16_384  # maxima that a program of select_and_mix holds at once


@dataclass(frozen=True)
class Tiles:
    """Tile sizes and warps, counted and not measured; any choice gives the same answer."""

    split: int = 256  # keys of a program of score_keys
    keys: int = 64  # BLOCK_N of score_keys
    score_warps: int = 4
    score_stages: int = 3
    select_warps: int = 8
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
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, topk: int, causal: bool, scale: float
) -> Tensor:
    """Output (B, H, G, Lq, Dv) of q (B, H, G, Lq, D), k (B, H, Lk, D) and v (B, H, Lk, Dv)."""
    tiles = TILES
    batch, heads, shared, queries, width = q.shape
    problems, rows, keys, value_width = batch * heads, shared * queries, k.shape[-2], v.shape[-1]
    group = group_size(keys, topk)
    groups = triton.cdiv(keys, group)
    out = q.new_empty(*q.shape[:-1], value_width)
    scores = torch.empty(problems, rows, keys, dtype=torch.int32, device=q.device)
    maxima = torch.empty(problems, rows, groups, dtype=torch.int32, device=q.device)
    listed = torch.empty(problems, rows, topk, dtype=torch.int32, device=q.device)
    listed_scores = torch.empty(problems, rows, topk, dtype=torch.float32, device=q.device)
    with torch.cuda.device_of(q):
        score_keys[(problems * triton.cdiv(keys, tiles.split),)](
            q, k, lengths, scores, maxima, rows, queries, keys, groups, scale, D=width, BLOCK_D=padded(width),
            BLOCK_R=padded(rows), BLOCK_N=tiles.keys, SPLIT=tiles.split, GROUP=group, CAUSAL=causal,
            LENGTHS=lengths is not None, PRECISION=precision(tf32=False), num_warps=tiles.score_warps,
            num_stages=tiles.score_stages,
        )  # fmt: skip
        select_and_mix[(problems * rows,)](
            v, scores, maxima, listed, listed_scores, out, rows, keys, groups, topk, DV=value_width,
            BLOCK_DV=padded(value_width), BLOCK_GROUPS=padded(groups), BLOCK_K=triton.next_power_of_2(topk),
            GROUP=group, BLOCK_LIST=tiles.listed, num_warps=tiles.select_warps,
        )  # fmt: skip
    return out


@decode_topk.register_fake
def _(q, k, v, lengths, topk, causal, scale):
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def decode(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Top-k attention of a call that `decode_refuses` does not refuse."""
    given, lead = flattened(inputs), inputs.lead
    most = min(inputs.mechanism.size or 0, inputs.num_keys)
    out = decode_topk(given.q, given.k, given.v, given.lengths, most, inputs.causal, inputs.scale)
    return out.view(*lead, *out.shape[-2:]), None
