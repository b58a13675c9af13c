"""Full, banded and block-local attention over rows of up to a thousand positions, tile by tile.

    tiled_forward     per tile of queries: the tiles of keys it may see, one after the other, softmax kept running
    tiled_by_query    backward: dq, and for the other kernel each query's sum of P dP
    tiled_by_key      backward: dk and dv, per tile of keys, over the tiles of queries that may see it

Backward, weights come from scores computed again and two numbers saved for each query: its largest score, and one over
its sum. (The log-sum-exp alone would cost accuracy: its rounding grows with the scores.) Tiles outside band or block
are never loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import MINUS_INF, product
from semfocus.attention.kernels.short_places import (
    allowed,
    drop,
    hashes_of,
    key_tiles,
    length_of,
    load_rows,
    query_tiles,
    start_of,
    store_rows,
    tile_at,
    tiles_in,
)
from semfocus.attention.kernels.short_whole import mixture, nonzero


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_forward(
    q, k, v, out, mask, lengths, dropout, lse, saved, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    CAREFUL: tl.constexpr, PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Q queries of one problem."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    i = rows[:, None]
    q_tile = load_rows(q, n, sizes, rows, queries, D, DP)
    limit = length_of(lengths, n, sizes, keys)
    hashes = hashes_of(dropout, n, sizes, i)
    last = tl.minimum(first + Q, queries) - 1
    start, end, second, second_end = key_tiles(first, last, queries, keys, limit, K, KIND, WIDTH, GLOBALS, CAUSAL)
    top = tl.full((Q,), MINUS_INF, tl.float32)
    total = tl.zeros((Q,), tl.float32)
    mixed = tl.zeros((Q, DVP), tl.float32)
    for t in range(tiles_in(start, end, second, second_end)):
        columns = tile_at(t, start, end, second) * K + tl.arange(0, K)
        j = columns[None, :]
        k_tile = load_rows(k, n, sizes, columns, keys, D, DP)
        scores = product(q_tile, tl.trans(k_tile), PRECISION) * scale
        keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, CAREFUL)
        scores = tl.where(keep, scores, MINUS_INF)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(higher == MINUS_INF, 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(top - base)
        total = total * shrink + tl.sum(weights, axis=1)
        weights = drop(weights, hashes, j, dropout)
        v_tile = load_rows(v, n, sizes, columns, keys, DV, DVP)
        mixed = mixed * shrink[:, None] + mixture(weights, keep, v_tile, CAREFUL, PRECISION)
        top = higher
    top = tl.where(top == MINUS_INF, 0.0, top)
    tl.store(lse + n.to(tl.int64) * queries + rows, top + tl.log(total), mask=rows < queries)
    at = saved + n.to(tl.int64) * 2 * queries + rows
    tl.store(at, top, mask=rows < queries)
    tl.store(at + queries, 1 / nonzero(total), mask=rows < queries)
    store_rows(out, n, sizes, rows, queries, mixed / nonzero(total)[:, None], DV, DVP)


@triton.jit
def saved_sums(saved, n, rows, queries):
    """The largest score of each query, and what to multiply exp(score - largest) by."""
    at = saved + n.to(tl.int64) * 2 * queries + rows
    return tl.load(at, mask=rows < queries, other=0.0), tl.load(at + queries, mask=rows < queries, other=1.0)


@triton.jit
def pairs(
    q_tile, grad_tile, k, v, mask, rows, columns, n, sizes, queries, keys, limit, top, norm, hashes, dropout, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Of a tile of queries and one of keys: the keys, which pairs are kept, their weights before dropout, and dP."""
    i, j = rows[:, None], columns[None, :]
    k_tile = load_rows(k, n, sizes, columns, keys, D, DP)
    scores = product(q_tile, tl.trans(k_tile), PRECISION) * scale
    keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False)
    weights = tl.exp(tl.where(keep, scores - top[:, None], MINUS_INF)) * norm[:, None]
    v_tile = load_rows(v, n, sizes, columns, keys, DV, DVP)
    return k_tile, keep, weights, drop(product(grad_tile, tl.trans(v_tile), PRECISION), hashes[:, None], j, dropout)


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_query(
    grad, grad_lse, q, k, v, out, mask, lengths, dropout, saved, totals, dq, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dq of Q queries of one problem, and their totals = sum P dP."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    q_tile = load_rows(q, n, sizes, rows, queries, D, DP)
    grad_tile = load_rows(grad, n, sizes, rows, queries, DV, DVP)
    top, norm = saved_sums(saved, n, rows, queries)
    limit = length_of(lengths, n, sizes, keys)
    hashes = hashes_of(dropout, n, sizes, rows)
    last = tl.minimum(first + Q, queries) - 1
    start, end, second, second_end = key_tiles(first, last, queries, keys, limit, K, KIND, WIDTH, GLOBALS, CAUSAL)
    count = tiles_in(start, end, second, second_end)
    if KIND == "full":
        out_tile = load_rows(out, n, sizes, rows, queries, DV, DVP)
        total = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), axis=1)
    else:  # tiles are few, and where a query keeps few keys the rounding of `out` would show
        total = tl.zeros((Q,), tl.float32)
        for t in range(count):
            columns = tile_at(t, start, end, second) * K + tl.arange(0, K)
            _k_tile, keep, weights, dp = pairs(
                q_tile, grad_tile, k, v, mask, rows, columns, n, sizes, queries, keys, limit, top, norm, hashes,
                dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, PRECISION, D, DP, DV, DVP,
            )  # fmt: skip
            total += tl.sum(tl.where(keep, weights * dp, 0.0), axis=1)
    extra = lse_gradient(grad_lse, n, sizes, rows, queries)
    tl.store(totals + n.to(tl.int64) * queries + rows, total, mask=rows < queries)
    dq_tile = tl.zeros((Q, DP), tl.float32)
    for t in range(count):
        columns = tile_at(t, start, end, second) * K + tl.arange(0, K)
        k_tile, keep, weights, dp = pairs(
            q_tile, grad_tile, k, v, mask, rows, columns, n, sizes, queries, keys, limit, top, norm, hashes,
            dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, PRECISION, D, DP, DV, DVP,
        )  # fmt: skip
        ds = slopes(weights, dp, total[:, None], keep, extra[:, None], scale)
        dq_tile += product(ds, k_tile, PRECISION)
    store_rows(dq, n, sizes, rows, queries, dq_tile, D, DP)


@triton.jit
def slopes(weights, dp, total, keep, extra, scale):
    """dS = P (dP - sum P dP + dlse) scale. The first two cancel where a query keeps one key, exactly."""
    return tl.where(keep, weights * (tl.where(weights == 1.0, 0.0, dp - total) + extra) * scale, 0.0)


@triton.jit
def lse_gradient(grad_lse, n, sizes, rows, queries):
    """The gradient of each query's log-sum-exp."""
    extra = tl.zeros(rows.shape, tl.float32)
    if grad_lse is not None:
        extra = tl.load(start_of(grad_lse, n, sizes) + rows * grad_lse.row, mask=rows < queries, other=0.0)
    return extra


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_key(
    grad, grad_lse, q, k, v, mask, lengths, dropout, saved, totals, dk, dv, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dk and dv of K keys of one problem; keys are the rows of its tiles."""
    tiles = tl.cdiv(keys, K)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * K
    columns = first + tl.arange(0, K)
    j = columns[:, None]
    k_tile = load_rows(k, n, sizes, columns, keys, D, DP)
    v_tile = load_rows(v, n, sizes, columns, keys, DV, DVP)
    limit = length_of(lengths, n, sizes, keys)
    last = tl.minimum(first + K, keys) - 1
    start, end, second, second_end = query_tiles(first, last, queries, keys, limit, Q, KIND, WIDTH, GLOBALS, CAUSAL)
    dk_tile = tl.zeros((K, DP), tl.float32)
    dv_tile = tl.zeros((K, DVP), tl.float32)
    for t in range(tiles_in(start, end, second, second_end)):
        rows = tile_at(t, start, end, second) * Q + tl.arange(0, Q)
        i, flat = rows[None, :], n.to(tl.int64) * queries + rows
        q_tile = load_rows(q, n, sizes, rows, queries, D, DP)
        scores = product(k_tile, tl.trans(q_tile), PRECISION) * scale
        keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False)
        top, norm = saved_sums(saved, n, rows, queries)
        weights = tl.exp(tl.where(keep, scores - top[None, :], MINUS_INF)) * norm[None, :]
        hashes = hashes_of(dropout, n, sizes, i)
        grad_tile = load_rows(grad, n, sizes, rows, queries, DV, DVP)
        dv_tile += product(drop(weights, hashes, j, dropout), grad_tile, PRECISION)
        dp = drop(product(v_tile, tl.trans(grad_tile), PRECISION), hashes, j, dropout)
        total = tl.load(totals + flat, mask=rows < queries, other=0.0)
        extra = lse_gradient(grad_lse, n, sizes, rows, queries)
        ds = slopes(weights, dp, total[None, :], keep, extra[None, :], scale)
        dk_tile += product(ds, q_tile, PRECISION)
    store_rows(dk, n, sizes, columns, keys, dk_tile, D, DP)
    store_rows(dv, n, sizes, columns, keys, dv_tile, DV, DVP)
