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

from semfocus.attention.kernels.products import added, counted_operand, inverse, operand, product, turned
from semfocus.attention.kernels.shared import MINUS_INF, exponential
from semfocus.attention.kernels.short_places import (
    allowed,
    counted,
    drop,
    hashes_of,
    key_tiles,
    length_of,
    load_rows,
    query_tiles,
    start_of,
    store_counted,
    store_rows,
    tile_at,
    tiles_in,
    units_at,
)
from semfocus.attention.kernels.short_whole import mixture, nonzero


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_forward(
    q, k, v, out, mask, lengths, bounds, dropout, lse, saved, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    CAREFUL: tl.constexpr, PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Q queries of one problem."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    i = rows[:, None]
    uq, uk, uv, _ug, up, uo, _us = units_at(bounds, n, sizes, dropout, scale, DV)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
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
        k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
        scores = product(q_tile, turned(k_tile), PRECISION, scale)
        keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, CAREFUL)
        scores = tl.where(keep, scores, MINUS_INF)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(higher == MINUS_INF, 0.0, higher)
        weights = exponential(scores - base[:, None])
        shrink = exponential(top - base)
        total = total * shrink + tl.sum(weights, axis=1)
        weights = drop(weights, hashes, j, dropout, inverse(up))
        v_tile = load_rows(v, n, sizes, columns, keys, DV, DVP)
        mixed = mixture(mixed * shrink[:, None], weights, keep, v_tile, up, uv, CAREFUL, PRECISION)
        top = higher
    top = tl.where(top == MINUS_INF, 0.0, top)
    tl.store(lse + n.to(tl.int64) * queries + rows, top + tl.log(total), mask=rows < queries)
    at = saved + n.to(tl.int64) * 2 * queries + rows
    tl.store(at, top, mask=rows < queries)
    tl.store(at + queries, 1 / nonzero(total), mask=rows < queries)
    mixed = mixed * (up * uv / nonzero(total))[:, None]
    store_counted(out, n, sizes, rows, queries, mixed, uo, bounds, DV, DVP)


@triton.jit
def saved_sums(saved, n, rows, queries):
    """The largest score of each query, and what to multiply exp(score - largest) by."""
    at = saved + n.to(tl.int64) * 2 * queries + rows
    return tl.load(at, mask=rows < queries, other=0.0), tl.load(at + queries, mask=rows < queries, other=1.0)


@triton.jit
def pairs(
    q_tile, grad_tile, k, v, uk, uv, mask, rows, columns, n, sizes, queries, keys, limit, top, norm, hashes, dropout,
    scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Of a tile of queries and one of keys: the keys, which pairs are kept, their weights before dropout, and dP."""
    i, j = rows[:, None], columns[None, :]
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    scores = product(q_tile, turned(k_tile), PRECISION, scale)
    keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False)
    weights = exponential(tl.where(keep, scores - top[:, None], MINUS_INF)) * norm[:, None]
    v_tile = operand(load_rows(v, n, sizes, columns, keys, DV, DVP), uv, PRECISION)
    return k_tile, keep, weights, drop(product(grad_tile, turned(v_tile), PRECISION), hashes[:, None], j, dropout)


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_query(
    grad, grad_lse, q, k, v, out, mask, lengths, bounds, dropout, saved, totals, dq, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dq of Q queries of one problem, and their totals = sum P dP."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    uq, uk, uv, ug, _up, uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
    grad_rows = load_rows(grad, n, sizes, rows, queries, DV, DVP)
    grad_tile = operand(grad_rows, ug, PRECISION)
    top, norm = saved_sums(saved, n, rows, queries)
    limit = length_of(lengths, n, sizes, keys)
    hashes = hashes_of(dropout, n, sizes, rows)
    last = tl.minimum(first + Q, queries) - 1
    start, end, second, second_end = key_tiles(first, last, queries, keys, limit, K, KIND, WIDTH, GLOBALS, CAUSAL)
    count = tiles_in(start, end, second, second_end)
    if KIND == "full":
        out_rows = counted(load_rows(out, n, sizes, rows, queries, DV, DVP), uo, bounds)
        # Of the gradient as dP takes it, so that what all values have in common cancels.
        rounded = grad_tile[0].to(tl.float32) * ug if PRECISION == "fp16" else grad_rows.to(tl.float32)
        total = tl.sum(rounded * out_rows, axis=1)
    else:  # tiles are few, and where a query keeps few keys the rounding of `out` would show
        total = tl.zeros((Q,), tl.float32)
        for t in range(count):
            columns = tile_at(t, start, end, second) * K + tl.arange(0, K)
            _k_tile, keep, weights, dp = pairs(
                q_tile, grad_tile, k, v, uk, uv, mask, rows, columns, n, sizes, queries, keys, limit, top, norm,
                hashes, dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, PRECISION, D, DP, DV, DVP,
            )  # fmt: skip
            total += tl.sum(tl.where(keep, weights * dp, 0.0), axis=1)
    extra = lse_gradient(grad_lse, n, sizes, rows[:, None], queries)
    tl.store(totals + n.to(tl.int64) * queries + rows, total, mask=rows < queries)
    dq_tile = tl.zeros((Q, DP), tl.float32)
    for t in range(count):
        columns = tile_at(t, start, end, second) * K + tl.arange(0, K)
        k_tile, keep, weights, dp = pairs(
            q_tile, grad_tile, k, v, uk, uv, mask, rows, columns, n, sizes, queries, keys, limit, top, norm, hashes,
            dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, PRECISION, D, DP, DV, DVP,
        )  # fmt: skip
        ds = slopes(weights, dp, total[:, None], keep, extra, scale * inverse(us), bounds)
        dq_tile = added(dq_tile, counted_operand(ds, us, PRECISION), k_tile, PRECISION)
    store_rows(dq, n, sizes, rows, queries, dq_tile * (us * uk), D, DP)


@triton.jit
def slopes(weights, dp, total, keep, extra, scale, bounds):
    """dS = P (dP - sum P dP + dlse) scale. The first two cancel where a query keeps one key, exactly."""
    change = tl.where(weights == 1.0, 0.0, dp - total)
    if extra is not None:
        change += extra
    ds = weights * change * scale
    return ds if bounds is not None else tl.where(keep, ds, 0.0)  # what is bounded is finite, and zero without weight


@triton.jit
def lse_gradient(grad_lse, n, sizes, i, queries):
    """The gradient of each query's log-sum-exp; None if nobody asked for one."""
    extra = None
    if grad_lse is not None:
        extra = tl.load(start_of(grad_lse, n, sizes) + i * grad_lse.row, mask=i < queries, other=0.0)
    return extra


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_key(
    grad, grad_lse, q, k, v, mask, lengths, bounds, dropout, saved, totals, dk, dv, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dk and dv of K keys of one problem; keys are the rows of its tiles."""
    tiles = tl.cdiv(keys, K)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * K
    columns = first + tl.arange(0, K)
    j = columns[:, None]
    uq, uk, uv, ug, up, _uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    v_tile = operand(load_rows(v, n, sizes, columns, keys, DV, DVP), uv, PRECISION)
    limit = length_of(lengths, n, sizes, keys)
    last = tl.minimum(first + K, keys) - 1
    start, end, second, second_end = query_tiles(first, last, queries, keys, limit, Q, KIND, WIDTH, GLOBALS, CAUSAL)
    dk_tile = tl.zeros((K, DP), tl.float32)
    dv_tile = tl.zeros((K, DVP), tl.float32)
    for t in range(tiles_in(start, end, second, second_end)):
        rows = tile_at(t, start, end, second) * Q + tl.arange(0, Q)
        i, flat = rows[None, :], n.to(tl.int64) * queries + rows
        q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
        scores = product(k_tile, turned(q_tile), PRECISION, scale)
        keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False)
        top, norm = saved_sums(saved, n, rows, queries)
        weights = exponential(tl.where(keep, scores - top[None, :], MINUS_INF)) * norm[None, :]
        hashes = hashes_of(dropout, n, sizes, i)
        grad_tile = operand(load_rows(grad, n, sizes, rows, queries, DV, DVP), ug, PRECISION)
        dropped = counted_operand(drop(weights, hashes, j, dropout, inverse(up)), up, PRECISION)
        dv_tile = added(dv_tile, dropped, grad_tile, PRECISION)
        dp = drop(product(v_tile, turned(grad_tile), PRECISION), hashes, j, dropout)
        total = tl.load(totals + flat, mask=rows < queries, other=0.0)
        extra = lse_gradient(grad_lse, n, sizes, i, queries)
        ds = slopes(weights, dp, total[None, :], keep, extra, scale * inverse(us), bounds)
        dk_tile = added(dk_tile, counted_operand(ds, us, PRECISION), q_tile, PRECISION)
    store_rows(dk, n, sizes, columns, keys, dk_tile * (us * uq), D, DP)
    store_rows(dv, n, sizes, columns, keys, dv_tile * (up * ug), DV, DVP)
