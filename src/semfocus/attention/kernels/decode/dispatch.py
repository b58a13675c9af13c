"""Launches of the decode kernels. Nothing waits for the device and grids follow from the size of the cache, so that a
CUDA graph captured once serves while the lengths grow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from semfocus.attention.chunked import counted_info
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.decode import kernels
from semfocus.attention.kernels.eager import is_eager
from semfocus.attention.kernels.long.arguments import strided
from semfocus.attention.kernels.products import precision
from semfocus.attention.kernels.relaunch import Relaunched, aligned, kinds
from semfocus.attention.kernels.short.arguments import cdiv, next_power_of_2, padded

START_TILES = 2  # what the start of a program of score_keys takes, in tiles
MAX_GROUPS = 16_384  # maxima that a program of `select` holds at once


@dataclass(frozen=True)
class Tiles:
    """Tile sizes and warps, counted and not measured; any choice keeps the same keys."""

    # BLOCK_N of score_keys. On an H200 a product whose first side is 64 or longer takes another instruction than a
    # shorter one. The threshold kernels use that one in 16 bits and the other in float32. So must keys here, which come
    # first in 16 bits, and queries, which do in float32: both choose by the same bits.
    keys: int = 128
    keys_many_rows: int = 64  # where BLOCK_R is more than 16
    keys_float32: int = 64
    rows: int = 64  # BLOCK_R at most
    rows_float32: int = 32
    score_warps: int = 4
    score_stages: int = 3
    programs: int = 2  # of score_keys on a multiprocessor: with two tiles on their way each, 128 KiB in bfloat16
    held: int = 8  # numbers of a list that a thread of `select` holds, as far as 16 warps suffice
    mix_warps: int = 8
    mixed: int = 128  # up to so many kept keys `select` adds their values; beyond, `mix` does,
    mixed_keys: int = 512  # so many at a time,
    mixed_channels: int = 32  # a program so many channels: 64 bytes, the least that memory reads at once


TILES = Tiles()
score_keys, select, mix = map(Relaunched, (kernels.score_keys, kernels.select, kernels.mix))


def group_size(keys: int, most: int) -> int:
    """Keys in a group: few groups to choose from, and few keys to look at in the chosen ones."""
    group = 32 if most <= 128 else 16 if most <= 512 else 8
    while -(-keys // group) > MAX_GROUPS:
        group *= 2
    return group


def count_splits(problems: int, tiles: int, room: int) -> int:
    """Programs that share the tiles of a problem, such that a GPU with room for so many programs is done soonest: in
    one turn, or in more where programs of one turn would leave much of the room empty."""

    def cost(splits: int) -> int:
        return cdiv(problems * splits, room) * (cdiv(tiles, splits) + START_TILES)

    return min((max(min(room * turns // problems, tiles), 1) for turns in (1, 2, 4, 8)), key=cost)


@dataclass(frozen=True)
class Plan:
    """What calls of one shape have in common: sizes, grids, and the constants that kernels are compiled for."""

    topk: int
    problems: int
    sizes: tuple[int, int, int, int, int]  # key heads of a batch entry, rows, queries, keys, groups
    splits: int
    score_grid: tuple[int, int, int]
    select_grid: tuple[int, int, int]
    mix_grid: tuple[int, int, int] | None  # None: `select` adds the values
    score_constants: dict[str, Any]
    select_constants: dict[str, Any]
    mix_constants: dict[str, Any]
    select_warps: int
    variant: tuple[Any, ...]  # tells apart what kernels are compiled for

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None,
        strides: tuple[tuple[int, ...] | None, tuple[int, ...] | None], out: Tensor, found: Tensor, scale: float,
    ) -> None:  # fmt: skip
        """Fill the results of `decode_topk`. Strides are those of mask and lengths, in the five and three dimensions of
        `q`; the tensors are contiguous, in whatever dimensions."""
        _, rows, _, keys, groups = self.sizes
        ranks = torch.empty(self.problems * rows * (keys + groups), dtype=torch.int32, device=q.device)
        mask_data = q if mask is None else mask  # any address will do
        of_mask, of_lengths = strides[0] or (0,) * 5, strides[1] or (0,) * 3
        types = None if mask is None else mask.dtype, None if lengths is None else lengths.dtype
        variant = self.variant, kinds((*of_mask, *of_lengths)), types, aligned(q, k, v, mask_data, lengths)
        scale = float(scale)  # Triton would take a whole number for a constant
        with torch.cuda.device_of(q):
            score_keys(
                variant, self.score_grid,
                (q, k, mask_data, lengths, ranks, of_mask, of_lengths, *self.sizes, self.splits),
                self.score_constants, TILES.score_warps, TILES.score_stages,
            )  # fmt: skip
            select(
                variant, self.select_grid,
                (v, lengths, ranks, found, out, of_lengths, *self.sizes, self.topk, scale),
                self.select_constants, self.select_warps,
            )  # fmt: skip
            if self.mix_grid is not None:
                mix(
                    variant, self.mix_grid, (v, found, out, rows, keys, self.topk), self.mix_constants, TILES.mix_warps
                )  # fmt: skip


@lru_cache(maxsize=1024)  # a cache that grows key by key has another shape at each step
def plan_for(
    tiles: Tiles, device: torch.device, dtype: torch.dtype, problems: int, heads: int, shared: int, queries: int,
    keys: int, width: int, value_width: int, topk: int, causal: bool, has_mask: bool, has_lengths: bool,
) -> Plan:  # fmt: skip
    """The plan of a shape: P = `problems` key heads, each with `shared` heads of so many queries."""
    wide = dtype == torch.float32
    rows, group = shared * queries, group_size(keys, topk)
    groups = cdiv(keys, group)
    tile_rows = min(padded(rows), tiles.rows_float32 if wide else tiles.rows)
    tile_keys = tiles.keys_float32 if wide else tiles.keys if tile_rows <= 16 else tiles.keys_many_rows
    row_tiles = cdiv(rows, tile_rows)
    splits = count_splits(problems * row_tiles, cdiv(keys, tile_keys), tiles.programs * _multiprocessors(device))
    block_groups, block_k = padded(groups), next_power_of_2(topk)
    longest = max(block_groups, block_k * group)  # of the lists that a program of `select` holds
    warps = min(max(longest // (32 * tiles.held), 4), 16)
    here = topk <= tiles.mixed
    channels = padded(value_width) if here else min(padded(value_width), tiles.mixed_channels)
    return Plan(
        topk=topk,
        problems=problems,
        sizes=(heads, rows, queries, keys, groups),
        splits=splits,
        score_grid=(problems * splits, row_tiles, 1),
        select_grid=(problems * rows, 1, 1),
        mix_grid=None if here else (problems * rows, cdiv(value_width, channels), 1),
        score_constants={
            "D": width, "BLOCK_D": padded(width), "BLOCK_R": tile_rows, "BLOCK_N": tile_keys, "GROUP": group,
            "KEYS_FIRST": not wide, "CAUSAL": causal, "MASK": has_mask, "LENGTHS": has_lengths,
            "PRECISION": precision(tf32=False),
        },
        select_constants={
            "DV": value_width, "BLOCK_DV": channels, "BLOCK_GROUPS": block_groups, "BLOCK_K": block_k, "GROUP": group,
            "MIX": here, "CAUSAL": causal, "LENGTHS": has_lengths,
        },
        mix_constants={"DV": value_width, "BLOCK_DV": channels, "BLOCK_LIST": min(block_k, tiles.mixed_keys)},
        select_warps=warps,
        variant=(
            tiles, device, dtype, width, value_width, group, tile_rows, block_groups, block_k, here, causal, has_mask,
            has_lengths,
        ),
    )  # fmt: skip


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    """How many a GPU has; Triton's interpreter is taken for one, whose programs run one after the other."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@torch.library.custom_op("semfocus::decode_topk", mutates_args=())
def decode_topk(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, topk: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output (B, H, G, Lq, Dv) of q (B, H, G, Lq, D), k (B, H, Lk, D) and v (B, H, Lk, Dv).

    Besides for each query (B, H, G, Lq, 2 topk + 1) int32: the kept keys in increasing order, -1 for none, and the bits
    of their weights and of the log-sum-exp in float32.
    """
    return launch(q, k, v, mask, lengths, topk, causal, scale)


def launch(q, k, v, mask, lengths, topk, causal, scale) -> tuple[Tensor, Tensor]:
    """`decode_topk` without the dispatcher. `lengths` (B, H, G, 1, 1): keys from there on are padding."""
    batch, heads, shared, queries, width = q.shape
    keys = k.shape[-2]
    results = _empty_results(q, v, topk)
    if mask is not None:
        mask = mask.expand(batch, heads, shared, queries, keys)
    plan = plan_for(
        TILES, q.device, q.dtype, batch * heads, heads, shared, queries, keys, width, v.shape[-1], topk, causal,
        mask is not None, lengths is not None,
    )  # fmt: skip
    strides = None if mask is None else mask.stride(), None if lengths is None else lengths.stride()[:3]
    plan.run(q, k, v, mask, lengths, strides, *results, scale)
    return results


@decode_topk.register_fake
def _(q, k, v, mask, lengths, topk, causal, scale):
    return _empty_results(q, v, topk)


def _empty_results(q: Tensor, v: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    rows = q.shape[:-1]
    return q.new_empty(*rows, v.shape[-1]), q.new_empty(*rows, 2 * topk + 1, dtype=torch.int32)


def decode(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Top-k attention of a call that `decode_refuses` does not refuse."""
    given, lead = strided(inputs), inputs.lead
    most = min(inputs.mechanism.size or 0, inputs.num_keys)
    run = launch if is_eager(given.q, given.k, given.v) else decode_topk
    out, found = run(*given[:5], most, inputs.causal, inputs.scale)
    out = out.view(*lead, *out.shape[-2:])
    if not want_info:
        return out, None
    found = found.view(*lead, *found.shape[-2:])
    listed, weights, lse = (
        found[..., :most],
        found[..., most:-1].view(torch.float32),
        found[..., -1].view(torch.float32),
    )
    return out, counted_info(inputs, listed.long(), weights.contiguous(), lse.contiguous())
