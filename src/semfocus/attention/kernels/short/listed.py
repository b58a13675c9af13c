"""Top-k and bottom-k attention over up to 1024 positions, as lists of the keys that each query keeps.

    listed_select      which keys, as bits: `select`
    listed_forward     turns bits into lists; softmax of the listed scores, sum of the listed values
    listed_by_query    backward over the listed keys: dq, and for each listed pair its weight after dropout and dS
    listed_by_key      backward: for a tile of keys, the queries that list one of them, their weights and dS as dense
                       tiles that are zero elsewhere; then dv = P' dout, dk = dS' q

The backward pass computes no score again: the weights are saved. Lists are (problems, k, queries), the lowest index
first, -1 where a query has fewer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import accumulate, operand, prescaled_operand, reciprocal
from semfocus.attention.kernels.shared import MAX_INDEX, MINUS_INF, fast_exp, finite
from semfocus.attention.kernels.short import positions as pos
from semfocus.attention.kernels.short.positions import Problem
from semfocus.attention.kernels.short.select import WORD
from semfocus.attention.kernels.short.whole import safe_divisor


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_forward(
    q, k, v, out, bounds, dropout, bits, kept, lse, saved, sizes, queries, keys, sm_scale,
    TOPK: tl.constexpr, CHECK_FINITE: tl.constexpr, BLOCK_WORDS: tl.constexpr, BLOCK_M: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """out (.., Lq, Dv), kept and saved weights (problems, k, Lq), and lse (problems, Lq) of BLOCK_M queries.

    BLOCK_WORDS is the number of words of a query's bits, padded. Grid: problems x tiles of queries.
    """
    n, _first, rows = pos.program_tile(queries, BLOCK_M)
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    problem = Problem(n, sizes, queries, keys, sm_scale, None, dropout, bounds)
    scales = pos.operand_scales(problem, DIMS.dv)
    left = load_words(bits, problem, rows, BLOCK_WORDS)
    q_tile = pos.load_rows(q, problem, rows, queries, DIMS.d, DIMS.block_d).to(tl.float32)
    factor = pos.stored_scale(q, scales.q) * pos.stored_scale(k, scales.k) * sm_scale
    start = n.to(tl.int64) * TOPK * queries + rows
    row_max = tl.full((BLOCK_M,), MINUS_INF, tl.float32)
    index, scores = (), ()
    for entry in tl.static_range(TOPK):
        lowest, left = pop_lowest(left)
        score = tl.sum(q_tile * load_listed(k, problem, lowest, DIMS.d, DIMS.block_d), axis=1) * factor
        score = tl.where(lowest >= 0, score, MINUS_INF)
        tl.store(kept + start + entry * queries, lowest, mask=rows < queries)
        index += (lowest,)
        scores += (score,)
        row_max = tl.maximum(row_max, score)
    row_max = tl.where(row_max == MINUS_INF, 0.0, row_max)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    for entry in tl.static_range(TOPK):
        row_sum += fast_exp(scores[entry] - row_max)
    tl.store(lse + n.to(tl.int64) * queries + rows, row_max + tl.log(row_sum), mask=rows < queries)
    hashes = pos.dropout_hashes(problem, rows)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    for entry in tl.static_range(TOPK):
        weight = fast_exp(scores[entry] - row_max) / safe_divisor(row_sum)
        tl.store(saved + start + entry * queries, weight, mask=rows < queries)
        values = load_listed(v, problem, index[entry], DIMS.dv, DIMS.block_dv)
        acc += pos.apply_dropout(weight, hashes, index[entry], dropout)[:, None] * values
        if CHECK_FINITE:
            acc = tl.where(finite(values), acc, float("nan"))
    acc = acc * pos.stored_scale(v, scales.v)
    pos.store_rescaled(out, problem, rows, queries, acc, scales.out, DIMS.dv, DIMS.block_dv)


@triton.jit
def load_words(bits, problem, rows, BLOCK_WORDS: tl.constexpr):
    """(rows, BLOCK_WORDS) int32: the bits of the keys that each query keeps, 32 keys a word."""
    words, word = tl.cdiv(problem.keys, WORD), tl.arange(0, BLOCK_WORDS)
    at = bits + (problem.index.to(tl.int64) * words + word)[None, :] * problem.queries + rows[:, None]
    return tl.load(at, mask=(rows < problem.queries)[:, None] & (word < words)[None, :], other=0)


@triton.jit
def pop_lowest(left):
    """The lowest key of each row, -1 if none is left, and the bits without it."""
    column = tl.arange(0, left.shape[1])[None, :]
    lowest = tl.min(tl.where(left != 0, column, MAX_INDEX), axis=1)
    here = column == lowest[:, None]
    word = tl.sum(tl.where(here, left, 0), axis=1)
    exponent = (((word & -word).to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    return tl.where(word != 0, lowest * WORD + exponent, -1), tl.where(here, left & (left - 1), left)


@triton.jit
def load_listed(x, problem, index, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK) float32: the listed rows of a matrix, zeros where the index is -1; not rescaled."""
    columns = tl.arange(0, BLOCK)
    inside = (index >= 0)[:, None] & (columns < WIDTH)[None, :]
    at = pos.base_pointer(x, problem) + index[:, None] * x.row + columns[None, :] * x.column
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_entry(kept, saved, inside):
    """Index and saved weight of one list entry of each query; -1 and 0 outside."""
    return tl.load(kept, mask=inside, other=-1), tl.load(saved, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_by_query(
    grad, grad_lse, k, v, bounds, dropout, kept, saved, dropped, ds, grad_fp16, dq, sizes, queries, keys, sm_scale,
    TOPK: tl.constexpr, BLOCK_M: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """dq (.., Lq, D) of BLOCK_M queries of one problem.

    For listed_by_key it stores the weights after dropout and dS of each listed pair (problems, k, Lq), divided by their
    scales, and the gradient as a float16 operand in `grad_fp16`, if not None. Grid: problems x tiles of queries.
    """
    n, _first, rows = pos.program_tile(queries, BLOCK_M)
    BLOCK_D: tl.constexpr = DIMS.block_d
    problem = Problem(n, sizes, queries, keys, sm_scale, None, dropout, bounds)
    scales = pos.operand_scales(problem, DIMS.dv)
    hashes, factor = pos.dropout_hashes(problem, rows), pos.stored_scale(v, scales.v) * pos.dropout_factor(dropout)
    grad_tile = pos.load_rows(grad, problem, rows, queries, DIMS.dv, DIMS.block_dv).to(tl.float32)
    if grad_fp16 is not None:
        scaled = grad_tile * reciprocal(scales.do)
        pos.store_rows(grad_fp16, problem, rows, queries, scaled, DIMS.dv, DIMS.block_dv)
    start = n.to(tl.int64) * TOPK * queries + rows
    total = tl.zeros((BLOCK_M,), tl.float32) - pos.load_grad_lse(grad_lse, problem, rows)
    changes = ()
    for entry in tl.static_range(TOPK):
        index, weight = load_entry(kept + start + entry * queries, saved + start + entry * queries, rows < queries)
        after_dropout = pos.apply_dropout(weight, hashes, index, dropout, reciprocal(scales.p))
        tl.store(dropped + start + entry * queries, after_dropout, mask=rows < queries)
        values = load_listed(v, problem, index, DIMS.dv, DIMS.block_dv)
        change = pos.apply_dropout_mask(tl.sum(grad_tile * values, axis=1) * factor, hashes, index, dropout)
        total += weight * change
        changes += (change,)
    dq_tile = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for entry in tl.static_range(TOPK):
        index, weight = load_entry(kept + start + entry * queries, saved + start + entry * queries, rows < queries)
        slope = tl.where(index >= 0, weight * (changes[entry] - total) * sm_scale, 0.0)
        tl.store(ds + start + entry * queries, slope * reciprocal(scales.ds), mask=rows < queries)
        dq_tile += slope[:, None] * load_listed(k, problem, index, DIMS.d, DIMS.block_d)
    dq_tile *= pos.stored_scale(k, scales.k)
    pos.store_rows(dq, problem, rows, queries, dq_tile, DIMS.d, DIMS.block_d)
    pos.update_bounds(problem, pos.BOUND_DQ, (pos.row_absmax(dq_tile),))


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_by_key(
    grad, q, lengths, bounds, dropout, kept, dropped, ds, order, dk, dv, sizes, queries, keys, sm_scale,
    TOPK: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """dk (.., Lk, D) and dv (.., Lk, Dv) of BLOCK_N keys of one problem, from the queries that list one of them.

    `order` (programs, Lq) int16 is scratch space; BLOCK_ROWS is the number of queries, padded. Grid: problems x tiles
    of keys.
    """
    n, first, columns = pos.program_tile(keys, BLOCK_N)
    BLOCK_D: tl.constexpr = DIMS.block_d
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    problem = Problem(n, sizes, queries, keys, sm_scale, None, dropout, bounds)
    start = n.to(tl.int64) * TOPK * queries
    order += tl.program_id(0).to(tl.int64) * queries
    present = tl.where(first < pos.valid_length(lengths, problem), queries, 0)  # no list names padding
    count = find_listing_queries(kept + start, order, first, present, queries, TOPK, BLOCK_ROWS, BLOCK_N)
    scales = pos.operand_scales(problem, DIMS.dv)
    dk_tile = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_tile = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for tile in range(tl.cdiv(count, BLOCK_M)):
        slots = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = slots < count
        rows = tl.where(inside, tl.load(order + slots, mask=inside, other=0).to(tl.int32), queries)
        weights, slopes = tl.zeros((BLOCK_N, BLOCK_M), tl.float32), tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for entry in tl.static_range(TOPK):
            at = start + entry * queries + rows
            here = columns[:, None] == tl.load(kept + at, mask=inside, other=-1)[None, :]
            weights = tl.where(here, tl.load(dropped + at, mask=inside, other=0.0)[None, :], weights)
            slopes = tl.where(here, tl.load(ds + at, mask=inside, other=0.0)[None, :], slopes)
        grad_tile = operand(pos.load_rows(grad, problem, rows, queries, DIMS.dv, DIMS.block_dv), scales.do, PRECISION)
        dv_tile = accumulate(dv_tile, prescaled_operand(weights, scales.p, PRECISION), grad_tile, PRECISION)
        q_tile = operand(pos.load_rows(q, problem, rows, queries, DIMS.d, DIMS.block_d), scales.q, PRECISION)
        dk_tile = accumulate(dk_tile, prescaled_operand(slopes, scales.ds, PRECISION), q_tile, PRECISION)
    dk_tile, dv_tile = dk_tile * (scales.ds * scales.q), dv_tile * (scales.p * scales.do)
    pos.store_rows(dk, problem, columns, keys, dk_tile, DIMS.d, DIMS.block_d)
    pos.store_rows(dv, problem, columns, keys, dv_tile, DIMS.dv, DIMS.block_dv)
    pos.update_bounds(problem, pos.BOUND_DK, (pos.row_absmax(dk_tile), pos.row_absmax(dv_tile)))


@triton.jit
def find_listing_queries(
    kept, order, first, present, queries, TOPK: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Store in `order` the queries among the first `present` that list a key in first .. first + BLOCK_N - 1; their
    number."""
    rows = tl.arange(0, BLOCK_ROWS)
    listing = tl.zeros((BLOCK_ROWS,), tl.int1)
    for entry in tl.static_range(TOPK):
        index = tl.load(kept + entry * queries + rows, mask=rows < present, other=-1)
        listing = listing | ((index >= first) & (index < first + BLOCK_N))
    number = listing.to(tl.int32)
    tl.store(order + tl.cumsum(number, axis=0) - 1, rows.to(tl.int16), mask=listing)
    tl.debug_barrier()  # one thread reads what another has written
    return tl.sum(number, axis=0)
