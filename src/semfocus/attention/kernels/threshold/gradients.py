"""The backward pass of attention above thresholds: flash attention's, with the mask of the forward pass.

    by_query    dq, and for each query the mean of dP, which the other kernel needs
    by_key      dk and dv of a tile of keys, over all queries that may look at it, head after head and in order

Scores are computed again, queries first, as everywhere (`tiles`): transposed tiles would save a copy in shared memory,
but nothing promises that a tensor core adds the products of k q' as it adds those of q k'. Weights are normalised by
what the forward pass saved. No atomics: the same bits every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import LOG2_E, MINUS_INF, fast_exp2
from semfocus.attention.kernels.threshold.flash import add_product, drop_pairs
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
def weights_and_slopes(
    q_tile, k_tile, v_tile, grad_tile, looking, cutoffs, key, saved, mean, drop, sm_scale,
    LOOK: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N) weights after dropout, and the gradients of the scaled scores."""
    row_max, norm = saved
    scores = tile_scores(q_tile, k_tile, LOOK)
    dp = tile_scores(grad_tile, v_tile, LOOK)  # the same product
    keep = kept_pairs(scores, looking, cutoffs, key, LOOK, UNMASKED)
    weights = fast_exp2(tl.where(keep, scores * (sm_scale * LOG2_E), MINUS_INF) - row_max[:, None])
    # Where one key has all the weight, dP is its mean: their difference is zero, not its rounding.
    slope_norm = tl.where(norm == 1.0, 0.0, norm)
    slopes = (drop_pairs(dp, key, drop, LOOK) - mean[:, None]) * (weights * slope_norm[:, None])
    slopes = tl.where(weights == 0.0, 0.0, slopes)  # dP of a key that is not kept may be NaN
    weights = weights * norm[:, None]
    return drop_pairs(weights, key, drop, LOOK), slopes


@triton.jit
def by_query(
    grad, q, k, v, out, mask, lengths, hashes, thresholds, last_ties, saved, means, dq, mask_strides, key_heads,
    queries, keys, heads_per_key, sinks, window, sm_scale, drop_threshold, drop_factor,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq (M, Lq, D), and means (M, Lq): the sum of weight * dP of each query. Grid: M x tiles of queries."""
    BLOCK_D: tl.constexpr = LOOK.block_d
    tiles = tl.cdiv(queries, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)
    sizes = Sizes(queries, keys, heads_per_key, key_heads, sinks, window)
    looking = tile_queries(problem, row, mask, mask_strides, lengths, sizes, LOOK)
    inside = looking.inside
    length = keys
    if LOOK.lengths:
        length = tl.load(lengths + problem)
    opening, closing, last = tile_ranges(first, length, sizes, BLOCK_M, BLOCK_N, LOOK)
    at = problem * queries + row
    q_tile = load_rows(q + problem * queries * LOOK.d, row, inside, LOOK.d, LOOK.block_d)
    grad_tile = load_rows(grad + problem * queries * LOOK.dv, row, inside, LOOK.dv, LOOK.block_dv)
    out_tile = load_rows(out + problem * queries * LOOK.dv, row, inside, LOOK.dv, LOOK.block_dv)
    mean = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), axis=1)
    tl.store(means + at, mean, mask=inside)
    cutoffs = load_cutoffs(thresholds, last_ties, at, inside)
    kept = load_saved(saved, problem, row, inside, queries)
    k += problem // heads_per_key * keys * LOOK.d
    v += problem // heads_per_key * keys * LOOK.dv
    hashed = row
    if LOOK.dropout:
        hashed = tl.load(hashes + at, mask=inside, other=0)
    drop = hashed, drop_threshold, drop_factor
    total = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    total = query_tiles(
        0, opening, total, q_tile, grad_tile, k, v, looking, cutoffs, kept, mean, drop, sm_scale, LOOK, BLOCK_N, False
    )  # fmt: skip
    total = query_tiles(
        opening, closing, total, q_tile, grad_tile, k, v, looking, cutoffs, kept, mean, drop, sm_scale, LOOK, BLOCK_N,
        True,
    )  # fmt: skip
    total = query_tiles(
        closing, last, total, q_tile, grad_tile, k, v, looking, cutoffs, kept, mean, drop, sm_scale, LOOK, BLOCK_N,
        False,
    )  # fmt: skip
    channel = tl.arange(0, BLOCK_D)
    tl.store(
        dq + at[:, None] * LOOK.d + channel[None, :], (total * sm_scale).to(dq.dtype.element_ty),
        mask=inside[:, None] & (channel < LOOK.d)[None, :],
    )  # fmt: skip


@triton.jit
def query_tiles(
    begin, end, total, q_tile, grad_tile, k, v, looking, cutoffs, saved, mean, drop, sm_scale,
    LOOK: tl.constexpr, BLOCK_N: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """dq after key tiles begin .. end - 1."""
    for tile in range(begin, end):
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        k_tile = load_keys(k, key, looking.keys, LOOK.d, LOOK.block_d, UNMASKED)
        v_tile = load_keys(v, key, looking.keys, LOOK.dv, LOOK.block_dv, UNMASKED)
        _, slopes = weights_and_slopes(
            q_tile, k_tile, v_tile, grad_tile, looking, cutoffs, key, saved, mean, drop, sm_scale, LOOK, UNMASKED
        )  # fmt: skip
        total = add_product(total, slopes, k_tile, LOOK)
    return total


@triton.jit
def load_saved(saved, problem, row, inside, queries):
    """The largest score and one over the sum of queries; those that do not exist have no weights."""
    at = saved + problem * 2 * queries + row
    return tl.load(at, mask=inside, other=float("inf")), tl.load(at + queries, mask=inside, other=0.0)


@triton.jit
def by_key(
    grad, q, k, v, mask, lengths, hashes, thresholds, last_ties, saved, means, dk, dv, mask_strides, key_heads,
    queries, keys, heads_per_key, sinks, window, sm_scale, drop_threshold, drop_factor,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk (T, D) and dv (T, Dv) of a tile of keys, of all heads that share them. Grid: key problems x tiles of keys."""
    BLOCK_D: tl.constexpr = LOOK.block_d
    BLOCK_DV: tl.constexpr = LOOK.block_dv
    tiles = tl.cdiv(keys, BLOCK_N)
    shared = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * BLOCK_N
    key = first + tl.arange(0, BLOCK_N)
    sizes = Sizes(queries, keys, heads_per_key, key_heads, sinks, window)
    k_tile = load_keys(k + shared * keys * LOOK.d, key, keys, LOOK.d, LOOK.block_d, False)
    v_tile = load_keys(v + shared * keys * LOOK.dv, key, keys, LOOK.dv, LOOK.block_dv, False)
    dk_total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_total = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    totals = dk_total, dv_total
    for head in range(heads_per_key):
        problem = shared * heads_per_key + head
        length = keys
        if LOOK.lengths:
            length = tl.load(lengths + problem)
        begin, clear, end = query_ranges(first, length, sizes, BLOCK_M, BLOCK_N, LOOK)
        totals = key_tiles(
            begin, clear, totals, problem, key, k_tile, v_tile, grad, q, mask, lengths, hashes, thresholds, last_ties,
            saved, means, mask_strides, sizes, sm_scale, drop_threshold, drop_factor, LOOK, BLOCK_M, False,
        )  # fmt: skip
        totals = key_tiles(
            clear, end, totals, problem, key, k_tile, v_tile, grad, q, mask, lengths, hashes, thresholds, last_ties,
            saved, means, mask_strides, sizes, sm_scale, drop_threshold, drop_factor, LOOK, BLOCK_M, True,
        )  # fmt: skip
    dk_total, dv_total = totals
    at, channel, out_channel = shared * keys + key, tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    tl.store(
        dk + at[:, None] * LOOK.d + channel[None, :], (dk_total * sm_scale).to(dk.dtype.element_ty),
        mask=(key < keys)[:, None] & (channel < LOOK.d)[None, :],
    )  # fmt: skip
    tl.store(
        dv + at[:, None] * LOOK.dv + out_channel[None, :], dv_total.to(dv.dtype.element_ty),
        mask=(key < keys)[:, None] & (out_channel < LOOK.dv)[None, :],
    )  # fmt: skip


@triton.jit
def query_ranges(first, length, sizes, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOK: tl.constexpr):
    """Query tiles that may look at the keys from `first` on: begin .. end; from `clear` on all of them at all keys."""
    begin, end = first * 0, tl.cdiv(sizes.queries, BLOCK_M)
    clear = begin
    shift = sizes.keys - sizes.queries
    if LOOK.causal:
        begin = tl.maximum(first - shift, 0) // BLOCK_M
        clear = tl.cdiv(tl.maximum(first + BLOCK_N - 1 - shift, 0), BLOCK_M)
    if LOOK.mask or LOOK.always_kept:
        clear = end
    clear = tl.where(first + BLOCK_N <= tl.minimum(length, sizes.keys), clear, end)
    end = tl.where(first < length, end, 0)
    begin = tl.minimum(begin, end)
    return begin, tl.maximum(tl.minimum(clear, end), begin), end


@triton.jit
def key_tiles(
    begin, end, totals, problem, key, k_tile, v_tile, grad, q, mask, lengths, hashes, thresholds, last_ties, saved,
    means, mask_strides, sizes, sm_scale, drop_threshold, drop_factor,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """dk and dv after the query tiles begin .. end - 1 of a problem."""
    dk_total, dv_total = totals
    for tile in range(begin, end):
        row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        looking = tile_queries(problem, row, mask, mask_strides, lengths, sizes, LOOK)
        inside, at = looking.inside, problem * sizes.queries + row
        q_tile = load_rows(q + problem * sizes.queries * LOOK.d, row, inside, LOOK.d, LOOK.block_d)
        grad_tile = load_rows(grad + problem * sizes.queries * LOOK.dv, row, inside, LOOK.dv, LOOK.block_dv)
        cutoffs = load_cutoffs(thresholds, last_ties, at, inside)
        kept = load_saved(saved, problem, row, inside, sizes.queries)
        mean = tl.load(means + at, mask=inside, other=0.0)
        hashed = row
        if LOOK.dropout:
            hashed = tl.load(hashes + at, mask=inside, other=0)
        weights, slopes = weights_and_slopes(
            q_tile, k_tile, v_tile, grad_tile, looking, cutoffs, key, kept, mean, (hashed, drop_threshold, drop_factor),
            sm_scale, LOOK, UNMASKED,
        )  # fmt: skip
        dv_total = add_product(dv_total, tl.trans(weights.to(grad_tile.dtype)), grad_tile, LOOK)
        dk_total = add_product(dk_total, tl.trans(slopes.to(q_tile.dtype)), q_tile, LOOK)
    return dk_total, dv_total
