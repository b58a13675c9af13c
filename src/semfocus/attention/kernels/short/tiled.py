"""Full, banded and block-local attention over up to 1024 positions, tile by tile.

    tiled_forward     per tile of queries: an online softmax over the key tiles that it may see
    tiled_by_query    backward: dq, and each query's factors of dS for the other kernel
    tiled_by_key      backward: dk and dv per tile of keys, over the query tiles that may see it

Scores are base-two logarithms. Backward recomputes weights from scores and two saved numbers per query: the largest
score and one over the sum. (The log-sum-exp alone would cost accuracy: its rounding error grows with the scores.)
Factors that all pairs of a query share are multiplied once: by_query stores them for by_key. Tiles outside the band or
block are never loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import (
    accumulate,
    operand,
    prescaled_operand,
    product,
    reciprocal,
    transpose,
    unscaled_product,
)
from semfocus.attention.kernels.shared import LN_2, LOG2_E, MINUS_INF, fast_exp2
from semfocus.attention.kernels.short import positions as pos
from semfocus.attention.kernels.short.positions import Problem
from semfocus.attention.kernels.short.whole import accumulate_values, safe_divisor


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_forward(
    q, k, v, out, mask, lengths, bounds, dropout, lse, saved, sizes, queries, keys, sm_scale,
    PATTERN: tl.constexpr, RAGGED: tl.constexpr, CHECK_FINITE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """out (.., Lq, Dv), lse (problems, Lq) and saved (problems, 2, Lq) of BLOCK_M queries of one problem.

    Grid: problems x tiles of queries.
    """
    n, first, rows = pos.program_tile(queries, BLOCK_M)
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    problem = Problem(n, sizes, queries, keys, sm_scale, mask, dropout, bounds)
    i = rows[:, None]
    scales = pos.operand_scales(problem, DIMS.dv)
    q_tile = operand(pos.load_rows(q, problem, rows, queries, DIMS.d, DIMS.block_d), scales.q, PRECISION)
    valid = pos.valid_length(lengths, problem)
    hashes = pos.dropout_hashes(problem, i)
    last = tl.minimum(first + BLOCK_M, queries) - 1
    ranges = pos.key_tile_ranges(first, last, problem, valid, BLOCK_N, PATTERN)
    row_max = tl.full((BLOCK_M,), MINUS_INF, tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    count = pos.skip_padded_queries(pos.count_tiles(ranges), first, valid, RAGGED)
    unmasked = pos.count_unmasked_tiles(count, valid, PATTERN, BLOCK_N)
    for t in range(unmasked):
        row_max, row_sum, acc = online_softmax_step(
            row_max, row_sum, acc, q_tile, k, v, problem, scales, i, pos.tile_at(t, ranges) * BLOCK_N, valid, hashes,
            PATTERN, CHECK_FINITE, True, PRECISION, BLOCK_N, DIMS,
        )  # fmt: skip
    for t in range(unmasked, count):
        row_max, row_sum, acc = online_softmax_step(
            row_max, row_sum, acc, q_tile, k, v, problem, scales, i, pos.tile_at(t, ranges) * BLOCK_N, valid, hashes,
            PATTERN, CHECK_FINITE, False, PRECISION, BLOCK_N, DIMS,
        )  # fmt: skip
    base = tl.where(row_max == MINUS_INF, 0.0, row_max)
    tl.store(lse + n.to(tl.int64) * queries + rows, base * LN_2 + tl.log(row_sum), mask=rows < queries)
    # A query that saw no key gives every key a weight of zero in the backward pass.
    row_max = tl.where(row_max == MINUS_INF, float("inf"), row_max)
    store_per_query(saved, problem, rows, (row_max, 1 / safe_divisor(row_sum)))
    acc = acc * (scales.p * scales.v / safe_divisor(row_sum))[:, None]
    pos.store_rescaled(out, problem, rows, queries, acc, scales.out, DIMS.dv, DIMS.block_dv)


@triton.jit
def online_softmax_step(
    row_max, row_sum, acc, q_tile, k, v, problem, scales, i, first, valid, hashes,
    PATTERN: tl.constexpr, CHECK_FINITE: tl.constexpr, UNMASKED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """The largest score (BLOCK_M,), sum of weights (BLOCK_M,) and sum of weighted values (BLOCK_M, BLOCK_DV) of each
    query after the BLOCK_N keys from `first` on. UNMASKED: all of them are allowed."""
    columns = first + tl.arange(0, BLOCK_N)
    j = columns[None, :]
    k_tile = operand(pos.load_rows(k, problem, columns, problem.keys, DIMS.d, DIMS.block_d), scales.k, PRECISION)
    scores = product(q_tile, transpose(k_tile), PRECISION, problem.sm_scale * LOG2_E)
    keep = pos.allowed_pairs(scores, i, j, problem, valid, PATTERN, CHECK_FINITE)
    if not UNMASKED:
        scores = tl.where(keep, scores, MINUS_INF)
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    base = tl.where(new_max == MINUS_INF, 0.0, new_max)
    weights = fast_exp2(scores - base[:, None])
    shrink = fast_exp2(row_max - base)
    row_sum = row_sum * shrink + tl.sum(weights, axis=1)
    weights = pos.apply_dropout(weights, hashes, j, problem.dropout, reciprocal(scales.p))
    v_tile = pos.load_rows(v, problem, columns, problem.keys, DIMS.dv, DIMS.block_dv)
    acc = accumulate_values(acc * shrink[:, None], weights, keep, v_tile, scales, CHECK_FINITE, PRECISION)
    return new_max, row_sum, acc


@triton.jit
def store_per_query(numbers, problem, rows, values):
    """Store several numbers of each query in `numbers` (problems, len(values), queries)."""
    at = numbers + problem.index.to(tl.int64) * len(values) * problem.queries + rows
    for number in tl.static_range(len(values)):
        tl.store(at + number * problem.queries, values[number], mask=rows < problem.queries)


@triton.jit
def load_per_query(numbers, problem, rows, COUNT: tl.constexpr):
    """A tuple of COUNT numbers of each query; zeros beyond the last query, which give it no weights."""
    at = numbers + problem.index.to(tl.int64) * COUNT * problem.queries + rows
    values = ()
    for number in tl.static_range(COUNT):
        values += (tl.load(at + number * problem.queries, mask=rows < problem.queries, other=0.0),)
    return values


@triton.jit
def recompute_tile(
    q_tile, grad_tile, k, v, problem, scales, rows, first, valid, row_max, hashes,
    PATTERN: tl.constexpr, UNMASKED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """For a tile of queries and the BLOCK_N keys from `first` on: the operand of k, the kept pairs, 2^(score - row_max)
    and dP before its scales (BLOCK_M, BLOCK_N). UNMASKED: all pairs are allowed."""
    columns = first + tl.arange(0, BLOCK_N)
    i, j = rows[:, None], columns[None, :]
    k_tile = operand(pos.load_rows(k, problem, columns, problem.keys, DIMS.d, DIMS.block_d), scales.k, PRECISION)
    v_tile = operand(pos.load_rows(v, problem, columns, problem.keys, DIMS.dv, DIMS.block_dv), scales.v, PRECISION)
    scores = product(q_tile, transpose(k_tile), PRECISION, problem.sm_scale * LOG2_E)
    dp = unscaled_product(grad_tile, transpose(v_tile), PRECISION)
    dp = pos.apply_dropout_mask(dp, hashes[:, None], j, problem.dropout)
    keep = pos.allowed_pairs(scores, i, j, problem, valid, PATTERN, False)
    if not UNMASKED:
        scores = tl.where(keep, scores, MINUS_INF)
    return k_tile, keep, fast_exp2(scores - row_max[:, None]), dp


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_query(
    grad, grad_lse, q, k, v, out, mask, lengths, bounds, dropout, saved, factors, hashed, grad_fp16, dq,
    sizes, queries, keys, sm_scale,
    PATTERN: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """dq (.., Lq, D) of BLOCK_M queries of one problem.

    For tiled_by_key it stores `factors` (problems, 4, Lq): the factors of weights, dP and 1 in dS, and the weight of a
    single key; `hashed` (problems, Lq), the dropout hashes; and `grad_fp16`, the gradient as an operand, if not None.
    Grid: problems x tiles of queries.
    """
    n, first, rows = pos.program_tile(queries, BLOCK_M)
    BLOCK_D: tl.constexpr = DIMS.block_d
    problem = Problem(n, sizes, queries, keys, sm_scale, mask, dropout, bounds)
    scales = pos.operand_scales(problem, DIMS.dv)
    q_tile = operand(pos.load_rows(q, problem, rows, queries, DIMS.d, DIMS.block_d), scales.q, PRECISION)
    grad_rows = pos.load_rows(grad, problem, rows, queries, DIMS.dv, DIMS.block_dv)
    grad_tile = operand(grad_rows, scales.do, PRECISION)
    if grad_fp16 is not None:
        pos.store_rows(grad_fp16, problem, rows, queries, grad_tile[0], DIMS.dv, DIMS.block_dv)
    row_max, norm = load_per_query(saved, problem, rows, 2)
    valid = pos.valid_length(lengths, problem)
    hashes = pos.dropout_hashes(problem, rows)
    if hashed is not None:
        tl.store(hashed + n.to(tl.int64) * queries + rows, hashes, mask=rows < queries)
    last = tl.minimum(first + BLOCK_M, queries) - 1
    ranges = pos.key_tile_ranges(first, last, problem, valid, BLOCK_N, PATTERN)
    count = pos.skip_padded_queries(pos.count_tiles(ranges), first, valid, RAGGED)
    dp_scale = scales.do * scales.v * pos.dropout_factor(dropout)
    if PATTERN.kind == "full":
        out_rows = pos.load_rows(out, problem, rows, queries, DIMS.dv, DIMS.block_dv)
        out_rows = pos.rescaled(out_rows, scales.out, bounds)
        # The gradient is rounded as in dP, so that what all values have in common cancels.
        rounded = grad_tile[0].to(tl.float32) * scales.do if PRECISION == "fp16" else grad_rows.to(tl.float32)
        total = tl.sum(rounded * out_rows, axis=1)
    else:  # tiles are few, and where a query keeps few keys the rounding of `out` would show
        total = tl.zeros((BLOCK_M,), tl.float32)
        for t in range(count):
            _k_tile, keep, weights, dp = recompute_tile(
                q_tile, grad_tile, k, v, problem, scales, rows, pos.tile_at(t, ranges) * BLOCK_N, valid, row_max,
                hashes, PATTERN, False, PRECISION, BLOCK_N, DIMS,
            )  # fmt: skip
            total += tl.sum(tl.where(keep, weights * dp, 0.0), axis=1)
        total *= norm * dp_scale
    dlse = pos.load_grad_lse(grad_lse, problem, rows)
    slope = norm * (sm_scale * reciprocal(scales.ds))
    dp_factor, offset = slope * dp_scale, slope * (total - dlse)
    # Where one key has all the weight, dP and its mean cancel, and are not computed.
    single, single_ds = tl.where(norm == 1.0, 1.0, 2.0), slope * dlse
    weight_factor = norm * (pos.dropout_factor(dropout) * reciprocal(scales.p))
    store_per_query(factors, problem, rows, (weight_factor, dp_factor, offset, single))
    dq_tile = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    unmasked = pos.count_unmasked_tiles(count, valid, PATTERN, BLOCK_N)
    unmasked = tl.where(tl.min(single, axis=0) == 1.0, 0, unmasked)
    for t in range(unmasked):
        k_tile, keep, weights, dp = recompute_tile(
            q_tile, grad_tile, k, v, problem, scales, rows, pos.tile_at(t, ranges) * BLOCK_N, valid, row_max, hashes,
            PATTERN, True, PRECISION, BLOCK_N, DIMS,
        )  # fmt: skip
        ds = weights * tl.fma(dp, dp_factor[:, None], -offset[:, None])
        dq_tile = accumulate(dq_tile, prescaled_operand(ds, scales.ds, PRECISION), k_tile, PRECISION)
    for t in range(unmasked, count):
        k_tile, keep, weights, dp = recompute_tile(
            q_tile, grad_tile, k, v, problem, scales, rows, pos.tile_at(t, ranges) * BLOCK_N, valid, row_max, hashes,
            PATTERN, False, PRECISION, BLOCK_N, DIMS,
        )  # fmt: skip
        change = tl.fma(dp, dp_factor[:, None], -offset[:, None])
        change = tl.where(weights == single[:, None], single_ds[:, None], change)
        ds = score_gradients(weights, change, keep, bounds)
        dq_tile = accumulate(dq_tile, prescaled_operand(ds, scales.ds, PRECISION), k_tile, PRECISION)
    dq_tile *= scales.ds * scales.k
    pos.store_rows(dq, problem, rows, queries, dq_tile, DIMS.d, DIMS.block_d)
    pos.update_bounds(problem, pos.BOUND_DQ, (pos.row_absmax(dq_tile),))


@triton.jit
def score_gradients(weights, change, keep, bounds):
    """dS = P (dP - sum P dP + dlse) sm_scale: `weights` is P before normalisation, `change` holds the other factors.

    Where P is 1, the first two terms cancel and `change` has dlse alone. Bounded operands are finite, so that a weight
    of zero is enough there; otherwise pairs that are not kept are set to zero.
    """
    ds = weights * change
    if bounds is None and keep is not None:
        ds = tl.where(keep, ds, 0.0)
    return ds


@triton.jit(do_not_specialize=["queries", "keys"])
def tiled_by_key(
    grad, grad_lse, q, k, v, mask, lengths, bounds, dropout, saved, factors, hashed, dk, dv,
    sizes, queries, keys, sm_scale,
    PATTERN: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """dk (.., Lk, D) and dv (.., Lk, Dv) of BLOCK_N keys of one problem; tiles are transposed: (BLOCK_N, BLOCK_M).

    Grid: problems x tiles of keys.
    """
    n, first, columns = pos.program_tile(keys, BLOCK_N)
    BLOCK_D: tl.constexpr = DIMS.block_d
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    problem = Problem(n, sizes, queries, keys, sm_scale, mask, dropout, bounds)
    j = columns[:, None]
    scales = pos.operand_scales(problem, DIMS.dv)
    k_tile = operand(pos.load_rows(k, problem, columns, keys, DIMS.d, DIMS.block_d), scales.k, PRECISION)
    v_tile = operand(pos.load_rows(v, problem, columns, keys, DIMS.dv, DIMS.block_dv), scales.v, PRECISION)
    valid = pos.valid_length(lengths, problem)
    last = tl.minimum(first + BLOCK_N, keys) - 1
    ranges = pos.query_tile_ranges(first, last, problem, valid, BLOCK_M, PATTERN, RAGGED)
    dk_tile = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_tile = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for t in range(pos.count_tiles(ranges)):
        rows = pos.tile_at(t, ranges) * BLOCK_M + tl.arange(0, BLOCK_M)
        i = rows[None, :]
        q_tile = operand(pos.load_rows(q, problem, rows, queries, DIMS.d, DIMS.block_d), scales.q, PRECISION)
        grad_tile = operand(pos.load_rows(grad, problem, rows, queries, DIMS.dv, DIMS.block_dv), scales.do, PRECISION)
        scores = product(k_tile, transpose(q_tile), PRECISION, sm_scale * LOG2_E)
        dp = unscaled_product(v_tile, transpose(grad_tile), PRECISION)
        row_max, norm = load_per_query(saved, problem, rows, 2)
        weight_factor, dp_factor, offset, single = load_per_query(factors, problem, rows, 4)
        keep = None
        if not pos.is_unmasked(PATTERN):  # else only padded keys are not kept, whose gradients are zeroed below
            keep = pos.allowed_pairs(scores, i, j, problem, valid, PATTERN, False)
            scores = tl.where(keep, scores, MINUS_INF)
        weights = fast_exp2(scores - row_max[None, :])
        hashes = i
        if hashed is not None:
            hashes = tl.load(hashed + n.to(tl.int64) * queries + i, mask=i < queries, other=0)
        dropped = weights * pos.apply_dropout_mask(weight_factor[None, :], hashes, j, dropout)
        change = tl.fma(
            pos.apply_dropout_mask(dp, hashes, j, dropout), dp_factor[None, :], -offset[None, :]
        )  # fmt: skip
        single_ds = tl.zeros((BLOCK_M,), tl.float32)
        if grad_lse is not None:
            single_ds = norm * (sm_scale * reciprocal(scales.ds)) * pos.load_grad_lse(grad_lse, problem, rows)
        change = tl.where(weights == single[None, :], single_ds[None, :], change)
        ds = prescaled_operand(score_gradients(weights, change, keep, bounds), scales.ds, PRECISION)
        dv_tile = accumulate(dv_tile, prescaled_operand(dropped, scales.p, PRECISION), grad_tile, PRECISION)
        dk_tile = accumulate(dk_tile, ds, q_tile, PRECISION)
    inside = (columns < valid)[:, None]
    dk_tile = tl.where(inside, dk_tile * (scales.ds * scales.q), 0.0)
    dv_tile = tl.where(inside, dv_tile * (scales.p * scales.do), 0.0)
    pos.store_rows(dk, problem, columns, keys, dk_tile, DIMS.d, DIMS.block_d)
    pos.store_rows(dv, problem, columns, keys, dv_tile, DIMS.dv, DIMS.block_dv)
    pos.update_bounds(problem, pos.BOUND_DK, (pos.row_absmax(dk_tile), pos.row_absmax(dv_tile)))
