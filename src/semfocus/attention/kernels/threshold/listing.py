"""Which keys each query keeps, as lists: for those who ask. The output and its gradient never need them."""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import LOG2_E, fast_exp2
from semfocus.attention.kernels.threshold.gradients import load_saved
from semfocus.attention.kernels.threshold.tiles import (
    Sizes,
    kept_pairs,
    load_cutoffs,
    load_keys,
    load_rows,
    tile_queries,
    tile_ranges,
    tile_scores,
)


@triton.jit(do_not_specialize=["sinks", "window", "most"])
def list_kept(
    q, k, mask, lengths, thresholds, last_ties, saved, indices, weights, mask_strides, key_heads, queries, keys,
    heads_per_key, sinks, window, sm_scale, most,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """indices (M, Lq, most) int32 of the kept keys, in increasing order, and their weights before dropout; entries that
    no key takes are left as they are. Grid: M x tiles of BLOCK_M queries."""
    tiles = tl.cdiv(queries, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)
    sizes = Sizes(queries, keys, heads_per_key, key_heads, sinks, window)
    looking = tile_queries(problem, row, mask, mask_strides, lengths, sizes, LOOK)
    length = keys
    if LOOK.lengths:
        length = tl.load(lengths + problem)
    _, _, last = tile_ranges(first, length, sizes, BLOCK_M, BLOCK_N, LOOK)
    at = problem * queries + row
    q_tile = load_rows(q + problem * queries * LOOK.d, row, looking.inside, LOOK.d, LOOK.block_d)
    cutoffs = load_cutoffs(thresholds, last_ties, at, looking.inside)
    row_max, norm = load_saved(saved, problem, row, looking.inside, queries)
    k += problem // heads_per_key * keys * LOOK.d
    listed = tl.zeros((BLOCK_M,), tl.int32)
    for tile in range(last):
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        scores = tile_scores(q_tile, load_keys(k, key, keys, LOOK.d, LOOK.block_d, False), LOOK)
        keep = kept_pairs(scores, looking, cutoffs, key, LOOK, False)
        place = listed[:, None] + tl.cumsum(keep.to(tl.int32), axis=1) - 1
        fits = keep & (place < most)  # of scores that are NaN more are kept
        target = at[:, None] * most + place
        tl.store(indices + target, key[None, :] + place * 0, mask=fits)
        share = fast_exp2(scores * (sm_scale * LOG2_E) - row_max[:, None]) * norm[:, None]
        tl.store(weights + target, share, mask=fits)
        listed += tl.sum(keep.to(tl.int32), axis=1)
