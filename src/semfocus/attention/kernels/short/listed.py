"""Top-k and bottom-k attention over rows of up to a thousand positions, as lists of the keys that each query keeps.

    listed_choice      which keys, as bits: `short_choice`
    listed_mix         bits become lists; softmax of the listed scores, sum of the listed values
    listed_by_query    backward: the listed keys and values alone; dq, and for each listed pair its weight and dS
    listed_by_key      backward: for a tile of keys, the queries that list one of them; the weights and dS of these
                       pairs, the rest of a tile zeros; then dv = P' dout, dk = dS' q

The backward pass never looks at a score again: the weights are saved. Lists are stored (problems, k, queries), the
lowest index first, -1 where a query has fewer.
"""

# ruff: noqa: RUF005  (Triton knows no starred tuples)
from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import added, counted_operand, inverse, operand
from semfocus.attention.kernels.shared import BEYOND, MINUS_INF, exponential, finite
from semfocus.attention.kernels.short.positions import (
    OF_DK,
    OF_DQ,
    drop,
    hashes_of,
    kept_factor,
    length_of,
    load_rows,
    note_bounds,
    row_absmax,
    start_of,
    store_counted,
    store_rows,
    thinned,
    unit_in,
    units_at,
)
from semfocus.attention.kernels.short.select import WORD
from semfocus.attention.kernels.short.whole import nonzero


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_mix(
    q, k, v, out, bounds, dropout, bits, kept, lse, saved, sizes, queries, keys, scale,
    MOST: tl.constexpr, CAREFUL: tl.constexpr, WORDS: tl.constexpr, Q: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Q queries of one problem, whose keys have WORDS words or fewer."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    uq, uk, uv, _ug, _up, uo, _us = units_at(bounds, n, sizes, dropout, scale, DV)
    left = load_bits(bits, n, rows, queries, keys, WORDS)
    q_tile = load_rows(q, n, sizes, rows, queries, D, DP).to(tl.float32)
    factor = unit_in(q, uq) * unit_in(k, uk) * scale
    start = n.to(tl.int64) * MOST * queries + rows
    top = tl.full((Q,), MINUS_INF, tl.float32)
    index, scores = (), ()
    for place in tl.static_range(MOST):
        lowest, left = first_bit(left)
        score = tl.sum(q_tile * load_listed(k, n, sizes, lowest, D, DP), axis=1) * factor
        score = tl.where(lowest >= 0, score, MINUS_INF)
        tl.store(kept + start + place * queries, lowest, mask=rows < queries)
        index, scores = index + (lowest,), scores + (score,)
        top = tl.maximum(top, score)
    top = tl.where(top == MINUS_INF, 0.0, top)
    total = tl.zeros((Q,), tl.float32)
    for place in tl.static_range(MOST):
        total += exponential(scores[place] - top)
    tl.store(lse + n.to(tl.int64) * queries + rows, top + tl.log(total), mask=rows < queries)
    hashes = hashes_of(dropout, n, sizes, rows)
    mixed = tl.zeros((Q, DVP), tl.float32)
    for place in tl.static_range(MOST):
        weight = exponential(scores[place] - top) / nonzero(total)
        tl.store(saved + start + place * queries, weight, mask=rows < queries)
        values = load_listed(v, n, sizes, index[place], DV, DVP)
        mixed += drop(weight, hashes, index[place], dropout)[:, None] * values
        if CAREFUL:
            mixed = tl.where(finite(values), mixed, float("nan"))
    store_counted(out, n, sizes, rows, queries, mixed * unit_in(v, uv), uo, bounds, DV, DVP)


@triton.jit
def load_bits(bits, n, rows, queries, keys, WORDS: tl.constexpr):
    """(rows, WORDS): the bits of the keys that each query keeps, 32 keys a number."""
    words, word = tl.cdiv(keys, WORD), tl.arange(0, WORDS)
    at = bits + (n.to(tl.int64) * words + word)[None, :] * queries + rows[:, None]
    return tl.load(at, mask=(rows < queries)[:, None] & (word < words)[None, :], other=0)


@triton.jit
def first_bit(left):
    """The lowest key of each row, -1 if none is left, and what is left without it."""
    place = tl.arange(0, left.shape[1])[None, :]
    lowest = tl.min(tl.where(left != 0, place, BEYOND), axis=1)
    here = place == lowest[:, None]
    word = tl.sum(tl.where(here, left, 0), axis=1)
    exponent = (((word & -word).to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    return tl.where(word != 0, lowest * WORD + exponent, -1), tl.where(here, left & (left - 1), left)


@triton.jit
def load_listed(x, n, sizes, index, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(rows, PADDED) float32: the rows of the matrix that a list names, zeros where it names none; in its units."""
    columns = tl.arange(0, PADDED)
    inside = (index >= 0)[:, None] & (columns < WIDTH)[None, :]
    at = start_of(x, n, sizes) + index[:, None] * x.row + columns[None, :] * x.column
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_by_query(
    grad, grad_lse, k, v, bounds, dropout, kept, saved, dropped, ds, narrow, dq, sizes, queries, keys, scale,
    MOST: tl.constexpr, Q: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dq of Q queries of one problem; of each listed pair the weight after dropout, and dS, in their units; and for the
    other kernel the gradient of the output in 16 bits, if it is taken so."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    _uq, uk, uv, ug, up, _uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    hashes, factor = hashes_of(dropout, n, sizes, rows), unit_in(v, uv) * kept_factor(dropout)
    grad_tile = load_rows(grad, n, sizes, rows, queries, DV, DVP).to(tl.float32)
    if narrow is not None:
        store_rows(narrow, n, sizes, rows, queries, grad_tile * inverse(ug), DV, DVP)
    start = n.to(tl.int64) * MOST * queries + rows
    total = tl.zeros((Q,), tl.float32)
    if grad_lse is not None:
        at = start_of(grad_lse, n, sizes) + rows * grad_lse.row
        total -= tl.load(at, mask=rows < queries, other=0.0)
    changes = ()
    for place in tl.static_range(MOST):
        index = tl.load(kept + start + place * queries, mask=rows < queries, other=-1)
        weight = tl.load(saved + start + place * queries, mask=rows < queries, other=0.0)
        tl.store(
            dropped + start + place * queries, drop(weight, hashes, index, dropout, inverse(up)), mask=rows < queries
        )
        values = load_listed(v, n, sizes, index, DV, DVP)
        change = thinned(tl.sum(grad_tile * values, axis=1) * factor, hashes, index, dropout)
        total += weight * change
        changes = changes + (change,)
    dq_tile = tl.zeros((Q, DP), tl.float32)
    for place in tl.static_range(MOST):
        index = tl.load(kept + start + place * queries, mask=rows < queries, other=-1)
        weight = tl.load(saved + start + place * queries, mask=rows < queries, other=0.0)
        slope = tl.where(index >= 0, weight * (changes[place] - total) * scale, 0.0)
        tl.store(ds + start + place * queries, slope * inverse(us), mask=rows < queries)
        dq_tile += slope[:, None] * load_listed(k, n, sizes, index, D, DP)
    dq_tile *= unit_in(k, uk)
    store_rows(dq, n, sizes, rows, queries, dq_tile, D, DP)
    note_bounds(bounds, OF_DQ, n, sizes, (row_absmax(dq_tile),))


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_by_key(
    grad, q, lengths, bounds, dropout, kept, dropped, ds, order, dk, dv, sizes, queries, keys, scale,
    MOST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dk and dv of K keys of one problem, from the queries whose lists name one of them, Q at a time; ROWS or fewer."""
    tiles = tl.cdiv(keys, K)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * K
    columns, start = first + tl.arange(0, K), n.to(tl.int64) * MOST * queries
    order += tl.program_id(0).to(tl.int64) * queries
    present = tl.where(first < length_of(lengths, n, sizes, keys), queries, 0)  # no list names padding
    count = find_rows(kept + start, order, first, K, present, queries, MOST, ROWS)
    uq, _uk, _uv, ug, up, _uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    dk_tile = tl.zeros((K, DP), tl.float32)
    dv_tile = tl.zeros((K, DVP), tl.float32)
    for tile in range(tl.cdiv(count, Q)):
        positions = tile * Q + tl.arange(0, Q)
        inside = positions < count
        rows = tl.where(inside, tl.load(order + positions, mask=inside, other=0).to(tl.int32), queries)
        weights, slopes = tl.zeros((K, Q), tl.float32), tl.zeros((K, Q), tl.float32)
        for place in tl.static_range(MOST):
            at = start + place * queries + rows
            here = columns[:, None] == tl.load(kept + at, mask=inside, other=-1)[None, :]
            weights = tl.where(here, tl.load(dropped + at, mask=inside, other=0.0)[None, :], weights)
            slopes = tl.where(here, tl.load(ds + at, mask=inside, other=0.0)[None, :], slopes)
        grad_tile = operand(load_rows(grad, n, sizes, rows, queries, DV, DVP), ug, PRECISION)
        dv_tile = added(dv_tile, counted_operand(weights, up, PRECISION), grad_tile, PRECISION)
        q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
        dk_tile = added(dk_tile, counted_operand(slopes, us, PRECISION), q_tile, PRECISION)
    dk_tile, dv_tile = dk_tile * (us * uq), dv_tile * (up * ug)
    store_rows(dk, n, sizes, columns, keys, dk_tile, D, DP)
    store_rows(dv, n, sizes, columns, keys, dv_tile, DV, DVP)
    note_bounds(bounds, OF_DK, n, sizes, (row_absmax(dk_tile), row_absmax(dv_tile)))


@triton.jit
def find_rows(kept, order, first, K: tl.constexpr, present, queries, MOST: tl.constexpr, ROWS: tl.constexpr):
    """Write down which of a problem's first `present` queries list one of the K keys from `first` on; how many do."""
    rows = tl.arange(0, ROWS)
    named = tl.zeros((ROWS,), tl.int1)
    for place in tl.static_range(MOST):
        index = tl.load(kept + place * queries + rows, mask=rows < present, other=-1)
        named = named | ((index >= first) & (index < first + K))
    number = named.to(tl.int32)
    tl.store(order + tl.cumsum(number, axis=0) - 1, rows.to(tl.int16), mask=named)
    tl.debug_barrier()  # what one thread has written another is to read
    return tl.sum(number, axis=0)
