"""Top-k and bottom-k attention over rows of up to a thousand positions, as lists of the keys that each query keeps.

    listed_forward     per tile of queries: all keys, tile by tile; the k best so far stay in registers, sorted, and
                       only what beats the last of them is looked at
    listed_by_query    backward: the listed keys and values alone; dq, and for each listed pair its weight and dS
    listed_by_key      backward: dense tiles of weights and dS rebuilt from the lists, then dv = P' dout, dk = dS' q

The backward pass never looks at a score again: the weights are saved. Lists are stored (problems, k, queries), the
best key first, index -1 where a query has fewer.
"""

# ruff: noqa: RUF005  (Triton knows no starred tuples)
from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import added, operand, product, turned
from semfocus.attention.kernels.shared import BEYOND, MINUS_INF, exponential, finite, unordered
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
    units_at,
)
from semfocus.attention.kernels.short_whole import nonzero, ranked, unranked


@triton.jit
def inserted(best, index, key, column, MOST: tl.constexpr):
    """The sorted lists with one more entry, behind its equals; what is not better than the last entry falls off."""
    new_best, new_index = (tl.maximum(key, best[0]),), (tl.where(key > best[0], column, index[0]),)
    for place in tl.static_range(1, MOST):
        new_best = new_best + (tl.maximum(tl.minimum(key, best[place - 1]), best[place]),)
        moved = tl.where(key > best[place - 1], index[place - 1], column)
        new_index = new_index + (tl.where(key > best[place], moved, index[place]),)
    return new_best, new_index


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_forward(
    q, k, v, out, mask, lengths, bounds, dropout, kept, lse, saved, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, CAUSAL: tl.constexpr, CAREFUL: tl.constexpr,
    PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Q queries of one problem."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    i = rows[:, None]
    uq, uk, uv, _ug, _up, uo, _us = units_at(bounds, n, sizes, dropout, scale, DV)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
    limit = length_of(lengths, n, sizes, keys)
    last = tl.minimum(first + Q, queries) - 1
    _start, end, _second, _second_end = key_tiles(first, last, queries, keys, limit, K, "full", 0, 0, CAUSAL)
    PAIRS: tl.constexpr = "pairs" if MASK == "pairs" else "none"
    nothing = unranked(bounds)
    best, index = (), ()
    for _entry in tl.static_range(MOST):
        best = best + (tl.zeros((Q,), nothing.dtype) + nothing,)
        index = index + (tl.full((Q,), -1, tl.int32),)
    for tile in range(end):
        columns = tile * K + tl.arange(0, K)
        j = columns[None, :]
        k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
        scores = product(q_tile, turned(k_tile), PRECISION, scale)
        free = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, PAIRS, "full", 0, 0, CAUSAL, True)
        if MASK == "keys":
            free = free & visible(mask, n, sizes, j, limit)
        left = tl.where(free, ranked(scores, KIND, bounds), nothing)
        peak = tl.max(left, axis=1)
        while tl.max((peak > best[MOST - 1]).to(tl.int32), axis=0) > 0:  # a query has something better to list
            column = tl.min(tl.where(left == peak[:, None], j, BEYOND), axis=1)
            best, index = inserted(best, index, peak, column, MOST)
            left = tl.where(j == column[:, None], nothing, left)
            peak = tl.max(left, axis=1)

    top = tl.full((Q,), MINUS_INF, tl.float32)
    for place in tl.static_range(MOST):
        top = tl.maximum(top, score_of(best[place], index[place], KIND, bounds))
    top = tl.where(top == MINUS_INF, 0.0, top)
    total = tl.zeros((Q,), tl.float32)
    for place in tl.static_range(MOST):
        total += exponential(score_of(best[place], index[place], KIND, bounds) - top)
    at = n.to(tl.int64) * queries + rows
    tl.store(lse + at, top + tl.log(total), mask=rows < queries)
    start = n.to(tl.int64) * MOST * queries + rows
    for place in tl.static_range(MOST):
        weight = exponential(score_of(best[place], index[place], KIND, bounds) - top) / nonzero(total)
        tl.store(kept + start + place * queries, index[place], mask=rows < queries)
        tl.store(saved + start + place * queries, weight, mask=rows < queries)
    # Read back: in registers the lists lie as the products left them, which does not suit the gathering of rows.
    tl.debug_barrier()
    hashes = hashes_of(dropout, n, sizes, rows)
    mixed = tl.zeros((Q, DVP), tl.float32)
    for place in tl.static_range(MOST):
        column = tl.load(kept + start + place * queries, mask=rows < queries, other=-1)
        weight = tl.load(saved + start + place * queries, mask=rows < queries, other=0.0)
        values = load_listed(v, n, sizes, column, uv, bounds, DV, DVP)
        mixed += drop(weight, hashes, column, dropout)[:, None] * values
        if CAREFUL:
            mixed = tl.where(finite(values), mixed, float("nan"))
    store_counted(out, n, sizes, rows, queries, mixed, uo, bounds, DV, DVP)


@triton.jit
def visible(mask, n, sizes, j, limit):
    """Which keys a mask leaves to all queries. It passes through words of 32 bits, plain numbers: where one warp does
    all the work, a tile of flags would bring the scores into the order in which the flags were loaded."""
    flags = tl.load(start_of(mask, n, sizes) + j * mask.column, mask=j < limit, other=0) != 0
    first, bits = tl.min(j), tl.zeros(j.shape, tl.int32)
    for word in tl.static_range((j.shape[0] * j.shape[1] + 31) // 32):
        here = (j - first) // 32 == word
        whole = tl.sum(tl.where(here & flags, 1 << ((j - first) % 32), 0))
        bits = tl.where(here, whole, bits)
    return ((bits >> ((j - first) % 32)) & 1) != 0


@triton.jit
def score_of(rank, index, KIND: tl.constexpr, bounds):
    """The score of a listed key, -inf where there is none."""
    score = unordered(rank) if bounds is None else rank
    score = -score if KIND == "bottomk" else score
    return tl.where(index >= 0, score, MINUS_INF)


@triton.jit
def load_listed(x, n, sizes, index, unit, bounds, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(rows, PADDED) float32: the rows of the matrix that a list names, zeros where it names none."""
    columns = tl.arange(0, PADDED)
    inside = (index >= 0)[:, None] & (columns < WIDTH)[None, :]
    at = start_of(x, n, sizes) + index[:, None] * x.row + columns[None, :] * x.column
    return counted(tl.load(at, mask=inside, other=0.0), unit, bounds)


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_by_query(
    grad, grad_lse, k, v, bounds, dropout, kept, saved, dropped, ds, dq, sizes, queries, keys, scale,
    MOST: tl.constexpr, Q: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dq of Q queries of one problem; of each listed pair the weight after dropout, and dS."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    _uq, uk, uv, _ug, _up, _uo, _us = units_at(bounds, n, sizes, dropout, scale, DV)
    hashes = hashes_of(dropout, n, sizes, rows)
    grad_tile = load_rows(grad, n, sizes, rows, queries, DV, DVP).to(tl.float32)
    start = n.to(tl.int64) * MOST * queries + rows
    total = tl.zeros((Q,), tl.float32)
    if grad_lse is not None:
        at = start_of(grad_lse, n, sizes) + rows * grad_lse.row
        total -= tl.load(at, mask=rows < queries, other=0.0)
    changes = ()
    for place in tl.static_range(MOST):
        index = tl.load(kept + start + place * queries, mask=rows < queries, other=-1)
        weight = tl.load(saved + start + place * queries, mask=rows < queries, other=0.0)
        tl.store(dropped + start + place * queries, drop(weight, hashes, index, dropout), mask=rows < queries)
        values = load_listed(v, n, sizes, index, uv, bounds, DV, DVP)
        change = drop(tl.sum(grad_tile * values, axis=1), hashes, index, dropout)
        total += weight * change
        changes = changes + (change,)
    dq_tile = tl.zeros((Q, DP), tl.float32)
    for place in tl.static_range(MOST):
        index = tl.load(kept + start + place * queries, mask=rows < queries, other=-1)
        weight = tl.load(saved + start + place * queries, mask=rows < queries, other=0.0)
        slope = tl.where(index >= 0, weight * (changes[place] - total) * scale, 0.0)
        tl.store(ds + start + place * queries, slope, mask=rows < queries)
        dq_tile += slope[:, None] * load_listed(k, n, sizes, index, uk, bounds, D, DP)
    store_rows(dq, n, sizes, rows, queries, dq_tile, D, DP)


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_by_key(
    grad, q, lengths, bounds, dropout, kept, dropped, ds, dk, dv, sizes, queries, keys, scale,
    MOST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dk and dv of K keys of one problem; keys are the rows of the rebuilt tiles."""
    tiles = tl.cdiv(keys, K)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * K
    columns = first + tl.arange(0, K)
    limit = length_of(lengths, n, sizes, keys)
    begin, end, _second, _second_end = query_tiles(
        first, first + K - 1, queries, keys, limit, Q, "full", 0, 0, CAUSAL
    )  # fmt: skip
    uq, _uk, _uv, ug, up, _uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    dk_tile = tl.zeros((K, DP), tl.float32)
    dv_tile = tl.zeros((K, DVP), tl.float32)
    for tile in range(begin, end):
        rows = tile * Q + tl.arange(0, Q)
        start = n.to(tl.int64) * MOST * queries + rows
        weights = tl.zeros((K, Q), tl.float32)
        slopes = tl.zeros((K, Q), tl.float32)
        for place in tl.static_range(MOST):
            index = tl.load(kept + start + place * queries, mask=rows < queries, other=-1)
            weight = tl.load(dropped + start + place * queries, mask=rows < queries, other=0.0)
            slope = tl.load(ds + start + place * queries, mask=rows < queries, other=0.0)
            here = columns[:, None] == index[None, :]
            weights = tl.where(here, weight[None, :], weights)
            slopes = tl.where(here, slope[None, :], slopes)
        grad_tile = operand(load_rows(grad, n, sizes, rows, queries, DV, DVP), ug, PRECISION)
        dv_tile = added(dv_tile, operand(weights, up, PRECISION), grad_tile, PRECISION)
        q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
        dk_tile = added(dk_tile, operand(slopes, us, PRECISION), q_tile, PRECISION)
    store_rows(dk, n, sizes, columns, keys, dk_tile * (us * uq), D, DP)
    store_rows(dv, n, sizes, columns, keys, dv_tile * (up * ug), DV, DVP)
