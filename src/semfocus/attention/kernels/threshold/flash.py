"""Attention in one pass over the keys, without those below their query's threshold: a running softmax, tile by tile.

Scores become logarithms to the base of two. Saved for the backward pass are the largest of each query and one over its
sum: the log-sum-exp would lose bits where scores are large.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import accumulate, operand
from semfocus.attention.kernels.shared import LOG2_E, MINUS_INF, fast_exp2, finite, survives
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


@triton.jit
def find_nonfinite(v, flag, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr):
    """flag (1,) int32 becomes 1 if a matrix holds NaN or infinity. Grid: tiles of BLOCK_M rows."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    values = load_rows(v, row, row < rows, WIDTH, BLOCK).to(tl.float32)
    found = tl.max(tl.max((~finite(values)).to(tl.int32), axis=1), axis=0)
    tl.store(flag, found, mask=found > 0)  # all programs that store write the same


@triton.jit
def forward(
    q, k, v, mask, lengths, hashes, flag, thresholds, last_ties, out, saved, mask_strides, key_heads, queries, keys,
    heads_per_key, sinks, window, sm_scale, drop_threshold, drop_factor,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out (M, Lq, Dv), and saved (M, 2, Lq): the largest score and one over the sum. Grid: M x tiles of queries."""
    BLOCK_DV: tl.constexpr = LOOK.block_dv
    tiles = tl.cdiv(queries, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)
    sizes = Sizes(queries, keys, heads_per_key, key_heads, sinks, window)
    looking = tile_queries(problem, row, mask, mask_strides, lengths, sizes, LOOK)
    length = keys
    if LOOK.lengths:
        length = tl.load(lengths + problem)
    opening, closing, last = tile_ranges(first, length, sizes, BLOCK_M, BLOCK_N, LOOK)
    at = problem * queries + row
    q_tile = load_rows(q + problem * queries * LOOK.d, row, looking.inside, LOOK.d, LOOK.block_d)
    cutoffs = load_cutoffs(thresholds, last_ties, at, looking.inside)
    k += problem // heads_per_key * keys * LOOK.d
    v += problem // heads_per_key * keys * LOOK.dv
    dropped = row
    if LOOK.dropout:
        dropped = tl.load(hashes + at, mask=looking.inside, other=0)
    drop = dropped, drop_threshold, drop_factor

    row_max = tl.full((BLOCK_M,), MINUS_INF, tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    state = row_max, row_sum, tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    log_scale = sm_scale * LOG2_E
    if tl.load(flag) == 0:
        state = mix_tiles(
            0, opening, state, q_tile, k, v, looking, cutoffs, drop, log_scale, LOOK, BLOCK_N, False, False
        )
        state = mix_tiles(
            opening, closing, state, q_tile, k, v, looking, cutoffs, drop, log_scale, LOOK, BLOCK_N, True, False
        )  # fmt: skip
        state = mix_tiles(
            closing, last, state, q_tile, k, v, looking, cutoffs, drop, log_scale, LOOK, BLOCK_N, False, False
        )  # fmt: skip
    else:
        state = mix_tiles(0, last, state, q_tile, k, v, looking, cutoffs, drop, log_scale, LOOK, BLOCK_N, False, True)
    row_max, row_sum, total = state
    norm = 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)
    channel = tl.arange(0, BLOCK_DV)
    tl.store(
        out + at[:, None] * LOOK.dv + channel[None, :], (total * norm[:, None]).to(out.dtype.element_ty),
        mask=looking.inside[:, None] & (channel < LOOK.dv)[None, :],
    )  # fmt: skip
    # A query that keeps no key gives every key a weight of zero in the backward pass.
    row_max = tl.where(row_max == MINUS_INF, float("inf"), row_max)
    saved += problem * 2 * queries + row
    tl.store(saved, row_max, mask=looking.inside)
    tl.store(saved + queries, norm, mask=looking.inside)


@triton.jit
def mix_tiles(
    begin, end, state, q_tile, k, v, looking, cutoffs, drop, log_scale,
    LOOK: tl.constexpr, BLOCK_N: tl.constexpr, UNMASKED: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """The largest score, sum of weights and sum of weighted values of each query, after key tiles begin .. end - 1.

    UNMASKED: every query may select every key of them. GUARD: a value that is not finite makes NaN of the queries that
    keep it, and of no others.
    """
    row_max, row_sum, total = state
    for tile in range(begin, end):
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        scores = tile_scores(q_tile, load_keys(k, key, looking.keys, LOOK.d, LOOK.block_d, UNMASKED), LOOK)
        keep = kept_pairs(scores, looking, cutoffs, key, LOOK, UNMASKED)
        scores = tl.where(keep, scores * log_scale, MINUS_INF)
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        base = tl.where(new_max == MINUS_INF, 0.0, new_max)
        weights = fast_exp2(scores - base[:, None])
        shrink = fast_exp2(row_max - base)
        row_sum = row_sum * shrink + tl.sum(weights, axis=1)
        weights = drop_pairs(weights, key, drop, LOOK)
        v_tile = load_keys(v, key, looking.keys, LOOK.dv, LOOK.block_dv, UNMASKED)
        total = total * shrink[:, None]
        if GUARD:
            real = finite(v_tile.to(tl.float32))
            spoiled = tl.dot(keep.to(tl.float32), 1.0 - real.to(tl.float32), input_precision="tf32")
            total = tl.where(spoiled > 0.0, float("nan"), total)
            v_tile = tl.where(real, v_tile, 0.0)
        total = add_product(total, weights, v_tile, LOOK)
        row_max = new_max
    return row_max, row_sum, total


@triton.jit
def drop_pairs(x, key, drop, LOOK: tl.constexpr):
    """x, of pairs whose weight is dropped zero, of the others scaled up."""
    if LOOK.dropout:
        hashes, threshold, factor = drop
        x = tl.where(survives(hashes[:, None], key[None, :], threshold), x * factor, 0.0)
    return x


@triton.jit
def add_product(total, a, b, LOOK: tl.constexpr):
    """total + a @ b for float32 a, which takes the type of b."""
    PRECISION: tl.constexpr = LOOK.precision
    return accumulate(total, operand(a.to(b.dtype), 1.0, PRECISION), operand(b, 1.0, PRECISION), PRECISION)
