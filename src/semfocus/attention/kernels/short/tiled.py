"""Full, banded and block-local attention over rows of up to a thousand positions, tile by tile.

    tiled_forward     per tile of queries: the tiles of keys it may see, one after the other, softmax kept running
    tiled_by_query    backward: dq, and for the other kernel each query's sum of P dP
    tiled_by_key      backward: dk and dv, per tile of keys, over the tiles of queries that may see it

Scores are logarithms to the base of two. Backward, weights come from scores computed again and two numbers saved for
each query: its largest score, and one over its sum. (The log-sum-exp alone would cost accuracy: its rounding grows with
the scores.) What else multiplies all pairs of a query is multiplied beforehand, and by_query keeps it for by_key. Tiles
outside band or block are never loaded.
"""

# ruff: noqa: RUF005  (Triton knows no starred tuples)
from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import added, counted_operand, inverse, operand, product, summed, turned
from semfocus.attention.kernels.shared import LN_2, LOG2_E, MINUS_INF, power_of_two
from semfocus.attention.kernels.short.positions import (
    OF_DK,
    OF_DQ,
    allowed,
    counted,
    cut_queries,
    drop,
    hashes_of,
    is_plain,
    kept_factor,
    key_tiles,
    length_of,
    load_rows,
    note_bounds,
    open_tiles,
    query_tiles,
    row_absmax,
    start_of,
    store_counted,
    store_rows,
    thinned,
    tile_at,
    tiles_in,
    units_at,
)
from semfocus.attention.kernels.short.whole import mixture, nonzero


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_forward(
    q, k, v, out, mask, lengths, bounds, dropout, lse, saved, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr, CAREFUL: tl.constexpr, PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
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
    count = cut_queries(tiles_in(start, end, second, second_end), first, limit, RAGGED)
    inside = open_tiles(count, limit, MASK, KIND, CAUSAL, K)
    for t in range(inside):
        top, total, mixed = online_softmax_step(
            top, total, mixed, q_tile, k, v, uk, up, uv, mask, i, tile_at(t, start, end, second) * K, n, sizes, queries,
            keys, limit, hashes, dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, CAREFUL, True, PRECISION, K,
            D, DP, DV, DVP,
        )  # fmt: skip
    for t in range(inside, count):
        top, total, mixed = online_softmax_step(
            top, total, mixed, q_tile, k, v, uk, up, uv, mask, i, tile_at(t, start, end, second) * K, n, sizes, queries,
            keys, limit, hashes, dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, CAREFUL, False, PRECISION, K,
            D, DP, DV, DVP,
        )  # fmt: skip
    base = tl.where(top == MINUS_INF, 0.0, top)
    tl.store(lse + n.to(tl.int64) * queries + rows, base * LN_2 + tl.log(total), mask=rows < queries)
    # Who saw no key gives no weight to any, whatever its score.
    top = tl.where(top == MINUS_INF, float("inf"), top)
    store_numbers(saved, n, rows, queries, (top, 1 / nonzero(total)))
    mixed = mixed * (up * uv / nonzero(total))[:, None]
    store_counted(out, n, sizes, rows, queries, mixed, uo, bounds, DV, DVP)


@triton.jit
def online_softmax_step(
    top, total, mixed, q_tile, k, v, uk, up, uv, mask, i, first, n, sizes, queries, keys, limit, hashes, dropout, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    CAREFUL: tl.constexpr, OPEN: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """The largest score of each query, the sum of its weights and that of its values, after the K keys from `first` on.
    OPEN: all of them are allowed."""
    columns = first + tl.arange(0, K)
    j = columns[None, :]
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    scores = product(q_tile, turned(k_tile), PRECISION, scale * LOG2_E)
    keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, CAREFUL)
    if not OPEN:
        scores = tl.where(keep, scores, MINUS_INF)
    higher = tl.maximum(top, tl.max(scores, axis=1))
    base = tl.where(higher == MINUS_INF, 0.0, higher)
    weights = power_of_two(scores - base[:, None])
    shrink = power_of_two(top - base)
    total = total * shrink + tl.sum(weights, axis=1)
    weights = drop(weights, hashes, j, dropout, inverse(up))
    v_tile = load_rows(v, n, sizes, columns, keys, DV, DVP)
    mixed = mixture(mixed * shrink[:, None], weights, keep, v_tile, up, uv, CAREFUL, PRECISION)
    return higher, total, mixed


@triton.jit
def store_numbers(numbers, n, rows, queries, values):
    """Some numbers of each query: (problems, numbers, queries)."""
    at = numbers + n.to(tl.int64) * len(values) * queries + rows
    for place in tl.static_range(len(values)):
        tl.store(at + place * queries, values[place], mask=rows < queries)


@triton.jit
def load_numbers(numbers, n, rows, queries, COUNT: tl.constexpr):
    """The other way round; zeros beyond the last query, so that it has no weights."""
    at = numbers + n.to(tl.int64) * COUNT * queries + rows
    found = ()
    for place in tl.static_range(COUNT):
        found = found + (tl.load(at + place * queries, mask=rows < queries, other=0.0),)
    return found


@triton.jit
def pairs(
    q_tile, grad_tile, k, v, uk, uv, mask, rows, first, n, sizes, queries, keys, limit, top, hashes, dropout, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    OPEN: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Of a tile of queries and the K keys from `first` on: the keys, which pairs are kept, 2^(score - top), and dP
    before its factors. OPEN: all of them are kept."""
    columns = first + tl.arange(0, K)
    i, j = rows[:, None], columns[None, :]
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    v_tile = operand(load_rows(v, n, sizes, columns, keys, DV, DVP), uv, PRECISION)
    scores = product(q_tile, turned(k_tile), PRECISION, scale * LOG2_E)
    dp = thinned(summed(grad_tile, turned(v_tile), PRECISION), hashes[:, None], j, dropout)
    keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False)
    if not OPEN:
        scores = tl.where(keep, scores, MINUS_INF)
    return k_tile, keep, power_of_two(scores - top[:, None]), dp


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_query(
    grad, grad_lse, q, k, v, out, mask, lengths, bounds, dropout, saved, factors, hashed, narrow, dq,
    sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dq of Q queries of one problem. For the other kernel: what multiplies their weights, dP and 1 in dS, the hashes
    of their rows, and the gradient of the output in 16 bits, if it is taken so."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    uq, uk, uv, ug, up, uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
    grad_rows = load_rows(grad, n, sizes, rows, queries, DV, DVP)
    grad_tile = operand(grad_rows, ug, PRECISION)
    if narrow is not None:
        store_rows(narrow, n, sizes, rows, queries, grad_tile[0], DV, DVP)
    top, norm = load_numbers(saved, n, rows, queries, 2)
    limit = length_of(lengths, n, sizes, keys)
    hashes = hashes_of(dropout, n, sizes, rows)
    if hashed is not None:
        tl.store(hashed + n.to(tl.int64) * queries + rows, hashes, mask=rows < queries)
    last = tl.minimum(first + Q, queries) - 1
    start, end, second, second_end = key_tiles(first, last, queries, keys, limit, K, KIND, WIDTH, GLOBALS, CAUSAL)
    count = cut_queries(tiles_in(start, end, second, second_end), first, limit, RAGGED)
    unit = ug * uv * kept_factor(dropout)  # of dP
    if KIND == "full":
        out_rows = counted(load_rows(out, n, sizes, rows, queries, DV, DVP), uo, bounds)
        # Of the gradient as dP takes it, so that what all values have in common cancels.
        rounded = grad_tile[0].to(tl.float32) * ug if PRECISION == "fp16" else grad_rows.to(tl.float32)
        total = tl.sum(rounded * out_rows, axis=1)
    else:  # tiles are few, and where a query keeps few keys the rounding of `out` would show
        total = tl.zeros((Q,), tl.float32)
        for t in range(count):
            _k_tile, keep, weights, dp = pairs(
                q_tile, grad_tile, k, v, uk, uv, mask, rows, tile_at(t, start, end, second) * K, n, sizes, queries,
                keys, limit, top, hashes, dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False, PRECISION, K,
                D, DP, DV, DVP,
            )  # fmt: skip
            total += tl.sum(tl.where(keep, weights * dp, 0.0), axis=1)
        total *= norm * unit
    own = load_own(grad_lse, n, sizes, rows, queries)
    slope = norm * (scale * inverse(us))
    along, back = slope * unit, slope * (total - own)
    # Where one key has all the weight, dP and its mean cancel, and are not computed.
    single, alone = tl.where(norm == 1.0, 1.0, 2.0), slope * own
    store_numbers(factors, n, rows, queries, (norm * (kept_factor(dropout) * inverse(up)), along, back, single))
    dq_tile = tl.zeros((Q, DP), tl.float32)
    inside = open_tiles(count, limit, MASK, KIND, CAUSAL, K)
    inside = tl.where(tl.min(single, axis=0) == 1.0, 0, inside)
    for t in range(inside):
        k_tile, keep, weights, dp = pairs(
            q_tile, grad_tile, k, v, uk, uv, mask, rows, tile_at(t, start, end, second) * K, n, sizes, queries, keys,
            limit, top, hashes, dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, True, PRECISION, K, D, DP, DV, DVP,
        )  # fmt: skip
        ds = weights * tl.fma(dp, along[:, None], -back[:, None])
        dq_tile = added(dq_tile, counted_operand(ds, us, PRECISION), k_tile, PRECISION)
    for t in range(inside, count):
        k_tile, keep, weights, dp = pairs(
            q_tile, grad_tile, k, v, uk, uv, mask, rows, tile_at(t, start, end, second) * K, n, sizes, queries, keys,
            limit, top, hashes, dropout, scale, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False, PRECISION, K, D, DP, DV, DVP,
        )  # fmt: skip
        change = tl.fma(dp, along[:, None], -back[:, None])
        change = tl.where(weights == single[:, None], alone[:, None], change)
        ds = slopes(weights, change, keep, bounds)
        dq_tile = added(dq_tile, counted_operand(ds, us, PRECISION), k_tile, PRECISION)
    dq_tile *= us * uk
    store_rows(dq, n, sizes, rows, queries, dq_tile, D, DP)
    note_bounds(bounds, OF_DQ, n, sizes, (row_absmax(dq_tile),))


@triton.jit
def slopes(weights, change, keep, bounds):
    """dS = P (dP - sum P dP + dlse) scale, of which P is weights that are not divided by their sum, and `change` all
    the rest (dlse alone where P is 1: the first two cancel). What is bounded is finite, and zero without weight."""
    ds = weights * change
    if bounds is None and keep is not None:
        ds = tl.where(keep, ds, 0.0)
    return ds


@triton.jit
def load_own(grad_lse, n, sizes, rows, queries):
    """The gradient of each query's log-sum-exp; zeros if nobody asked for one."""
    own = tl.zeros(rows.shape, tl.float32)
    if grad_lse is not None:
        own = tl.load(start_of(grad_lse, n, sizes) + rows * grad_lse.row, mask=rows < queries, other=0.0).to(tl.float32)
    return own


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_key(
    grad, grad_lse, q, k, v, mask, lengths, bounds, dropout, saved, factors, hashed, dk, dv,
    sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
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
    start, end, second, second_end = query_tiles(
        first, last, queries, keys, limit, Q, KIND, WIDTH, GLOBALS, CAUSAL, RAGGED
    )
    dk_tile = tl.zeros((K, DP), tl.float32)
    dv_tile = tl.zeros((K, DVP), tl.float32)
    for t in range(tiles_in(start, end, second, second_end)):
        rows = tile_at(t, start, end, second) * Q + tl.arange(0, Q)
        i = rows[None, :]
        q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
        grad_tile = operand(load_rows(grad, n, sizes, rows, queries, DV, DVP), ug, PRECISION)
        scores = product(k_tile, turned(q_tile), PRECISION, scale * LOG2_E)
        dp = summed(v_tile, turned(grad_tile), PRECISION)
        top, norm = load_numbers(saved, n, rows, queries, 2)
        weight, along, back, single = load_numbers(factors, n, rows, queries, 4)
        keep = None
        if not is_plain(MASK, KIND, CAUSAL):  # else only keys that are padding are not kept, of which nothing is stored
            keep = allowed(
                scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False
            )  # fmt: skip
            scores = tl.where(keep, scores, MINUS_INF)
        weights = power_of_two(scores - top[None, :])
        hashes = i
        if hashed is not None:
            hashes = tl.load(hashed + n.to(tl.int64) * queries + i, mask=i < queries, other=0)
        dropped = weights * thinned(weight[None, :], hashes, j, dropout)
        change = tl.fma(thinned(dp, hashes, j, dropout), along[None, :], -back[None, :])
        alone = tl.zeros((Q,), tl.float32)
        if grad_lse is not None:
            alone = norm * (scale * inverse(us)) * load_own(grad_lse, n, sizes, rows, queries)
        change = tl.where(weights == single[None, :], alone[None, :], change)
        ds = counted_operand(slopes(weights, change, keep, bounds), us, PRECISION)
        dv_tile = added(dv_tile, counted_operand(dropped, up, PRECISION), grad_tile, PRECISION)
        dk_tile = added(dk_tile, ds, q_tile, PRECISION)
    inside = (columns < limit)[:, None]
    dk_tile = tl.where(inside, dk_tile * (us * uq), 0.0)
    dv_tile = tl.where(inside, dv_tile * (up * ug), 0.0)
    store_rows(dk, n, sizes, columns, keys, dk_tile, D, DP)
    store_rows(dv, n, sizes, columns, keys, dv_tile, DV, DVP)
    note_bounds(bounds, OF_DK, n, sizes, (row_absmax(dk_tile), row_absmax(dv_tile)))
