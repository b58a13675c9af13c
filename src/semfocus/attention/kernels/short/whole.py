"""Attention over up to 64 positions: one program computes a whole problem, forward or backward.

    whole_forward     scores, allowed or selected pairs, softmax, sum of values; a mechanism that selects by score saves
                      one bit per pair
    whole_backward    scores and softmax again, the saved bits, five products; one pass and no atomic sums, so that
                      results are bitwise reproducible

BLOCK_M and BLOCK_N are the numbers of queries and keys padded to a power of two. Saved bits are (problems, NUM_WORDS,
queries) int32, 32 keys a word. The grid is one program per problem.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import accumulate, operand, prescaled_operand, product, reciprocal, transpose
from semfocus.attention.kernels.shared import MAX_INDEX, MINUS_INF, NO_RANK, fast_exp, finite, float_to_ordered_int
from semfocus.attention.kernels.short import positions as pos
from semfocus.attention.kernels.short.positions import Problem


@triton.jit
def select_keys(
    scores, candidates, i, j, problem,
    PATTERN: tl.constexpr, TOPK: tl.constexpr, SINKS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Of the candidate pairs, the TOPK best of each query, besides sinks and window."""
    queries, keys = problem.queries, problem.keys
    free = candidates
    if SINKS > 0 or WINDOW > 0:
        free = candidates & (j >= SINKS) & ~pos.in_window(i + (keys - queries), j, keys, WINDOW, 0, PATTERN.causal)
    no_rank = rank_of_none(problem.bounds)
    rank = tl.where(free, rank_scores(scores, PATTERN, problem.bounds, True), no_rank)
    cutoff = tl.max(rank, axis=1)
    for _ in range(TOPK - 1):
        cutoff = tl.max(tl.where(rank < cutoff[:, None], rank, no_rank), axis=1)
    best = (rank >= cutoff[:, None]) & (rank > no_rank)
    count = tl.sum(best.to(tl.int32), axis=1)[:, None]
    if tl.max(tl.where(i < queries, count, 0)) > TOPK:  # ties at the cutoff: the lowest index first
        left = rank
        for _ in range(TOPK):
            first = tl.min(tl.where(left == tl.max(left, axis=1)[:, None], j, MAX_INDEX), axis=1)
            left = tl.where(j == first[:, None], no_rank, left)
        best = left < rank
    if SINKS > 0 or WINDOW > 0:
        best = best | (candidates & ~free)
    return best


@triton.jit
def rank_scores(scores, PATTERN: tl.constexpr, bounds, NAN_FIRST: tl.constexpr):
    """Numbers in the order of preference.

    Without bounds they are ordered integers. With bounds they are the scores themselves: NaN can then only come from
    weights that are not finite, and ranks first, or stays NaN if not NAN_FIRST, so that the caller can detect it.
    """
    rank = -scores if PATTERN.kind == "bottomk" else scores
    if bounds is None:
        rank = float_to_ordered_int(rank)
    elif NAN_FIRST:
        rank = tl.where(rank == rank, rank, -MINUS_INF)
    return rank


@triton.jit
def rank_of_none(bounds):
    """A rank below those of all keys."""
    rank = tl.full((), NO_RANK, tl.int32)
    if bounds is not None:
        rank = tl.full((), MINUS_INF, tl.float32)
    return rank


@triton.jit
def store_kept(kept, problem, i, j, keep, NUM_WORDS: tl.constexpr):
    """Store which keys each query keeps, as words of 32 bits."""
    bit = tl.where(keep, 1 << (j % 32), 0)
    for word in tl.static_range(NUM_WORDS):
        at = kept + (problem.index.to(tl.int64) * NUM_WORDS + word) * problem.queries + i
        tl.store(at, tl.sum(tl.where(j // 32 == word, bit, 0), axis=1), mask=i < problem.queries)


@triton.jit
def load_kept(kept, problem, i, j, NUM_WORDS: tl.constexpr):
    """(queries, keys) bool: the pairs that `store_kept` stored."""
    words = tl.zeros((i.shape[0], j.shape[1]), tl.int32)
    for word in tl.static_range(NUM_WORDS):
        at = kept + (problem.index.to(tl.int64) * NUM_WORDS + word) * problem.queries + i
        words = tl.where(j // 32 == word, tl.load(at, mask=i < problem.queries, other=0)[:, None], words)
    return ((words >> (j % 32)) & 1) != 0


@triton.jit
def whole_scores(
    q, k, problem, scales, rows, columns, DIMS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Operands of q and k, and the scores of all pairs (BLOCK_M, BLOCK_N)."""
    q_tile = operand(pos.load_rows(q, problem, rows, problem.queries, DIMS.d, DIMS.block_d), scales.q, PRECISION)
    k_tile = operand(pos.load_rows(k, problem, columns, problem.keys, DIMS.d, DIMS.block_d), scales.k, PRECISION)
    return q_tile, k_tile, product(q_tile, transpose(k_tile), PRECISION, problem.sm_scale)


@triton.jit(do_not_specialize=["queries", "keys"])
def whole_forward(
    q, k, v, out, mask, lengths, bounds, dropout, kept, lse, sizes, queries, keys, sm_scale,
    PATTERN: tl.constexpr, TOPK: tl.constexpr, SINKS: tl.constexpr, WINDOW: tl.constexpr, CHECK_FINITE: tl.constexpr,
    PRECISION: tl.constexpr, NUM_WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """out (.., Lq, Dv), lse (problems, Lq) and kept (problems, NUM_WORDS, Lq); NUM_WORDS is 0 without selection."""
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    problem = Problem(tl.program_id(0), sizes, queries, keys, sm_scale, mask, dropout, bounds)
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    i, j = rows[:, None], columns[None, :]
    scales = pos.operand_scales(problem, DIMS.dv)
    _q_tile, _k_tile, scores = whole_scores(q, k, problem, scales, rows, columns, DIMS, PRECISION)
    keep = pos.allowed_pairs(scores, i, j, problem, pos.valid_length(lengths, problem), PATTERN, True)
    if NUM_WORDS > 0:
        keep = select_keys(scores, keep, i, j, problem, PATTERN, TOPK, SINKS, WINDOW)
        store_kept(kept, problem, rows, j, keep, NUM_WORDS)
    weights, row_max, row_sum = softmax_numerators(scores, keep)
    tl.store(lse + problem.index.to(tl.int64) * queries + rows, row_max + tl.log(row_sum), mask=rows < queries)
    weights = pos.apply_dropout(weights, pos.dropout_hashes(problem, i), j, dropout, reciprocal(scales.p))
    v_tile = pos.load_rows(v, problem, columns, keys, DIMS.dv, DIMS.block_dv)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    acc = accumulate_values(acc, weights, keep, v_tile, scales, CHECK_FINITE, PRECISION)
    acc = acc * (scales.p * scales.v / safe_divisor(row_sum))[:, None]
    pos.store_rescaled(out, problem, rows, queries, acc, scales.out, DIMS.dv, DIMS.block_dv)


@triton.jit
def softmax_numerators(scores, keep):
    """exp(score - row_max) of the kept pairs, row_max (0 for a query without keys) and the sum of each row."""
    scores = tl.where(keep, scores, MINUS_INF)
    row_max = tl.max(scores, axis=1)
    row_max = tl.where(row_max == MINUS_INF, 0.0, row_max)
    weights = fast_exp(scores - row_max[:, None])
    return weights, row_max, tl.sum(weights, axis=1)


@triton.jit
def safe_divisor(row_sum):
    """The sum of weights, 1 for a query without keys."""
    return tl.where(row_sum == 0.0, 1.0, row_sum)


@triton.jit
def accumulate_values(acc, weights, keep, values, scales, CHECK_FINITE: tl.constexpr, PRECISION: tl.constexpr):
    """acc + weights @ values, divided by the scales; weights are already divided by theirs.

    CHECK_FINITE: a value that is not finite makes NaN of the queries that keep it, and of no others.
    """
    weights = prescaled_operand(weights, scales.p, PRECISION)
    if not CHECK_FINITE:
        acc = accumulate(acc, weights, operand(values, scales.v, PRECISION), PRECISION)
    else:
        is_finite = finite(values.to(tl.float32))
        acc = accumulate(acc, weights, operand(tl.where(is_finite, values, 0.0), scales.v, PRECISION), PRECISION)
        if tl.min(tl.min(is_finite.to(tl.int32), axis=1), axis=0) == 0:
            spoiled = tl.dot(keep.to(tl.float32), 1.0 - is_finite.to(tl.float32), input_precision="tf32")
            acc = tl.where(spoiled > 0.0, float("nan"), acc)
    return acc


@triton.jit(do_not_specialize=["queries", "keys"])
def whole_backward(
    grad, grad_lse, q, k, v, mask, lengths, bounds, dropout, kept, dq, dk, dv, sizes, queries, keys, sm_scale,
    PATTERN: tl.constexpr, PRECISION: tl.constexpr, NUM_WORDS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """dv = P' dout;  dP = dout v';  dS = P (dP - sum P dP + dlse) sm_scale;  dq = dS k;  dk = dS' q."""
    problem = Problem(tl.program_id(0), sizes, queries, keys, sm_scale, mask, dropout, bounds)
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    i, j = rows[:, None], columns[None, :]
    scales = pos.operand_scales(problem, DIMS.dv)
    q_tile, k_tile, scores = whole_scores(q, k, problem, scales, rows, columns, DIMS, PRECISION)
    if NUM_WORDS > 0:
        keep = load_kept(kept, problem, rows, j, NUM_WORDS)
    else:
        keep = pos.allowed_pairs(scores, i, j, problem, pos.valid_length(lengths, problem), PATTERN, False)
    weights, _row_max, row_sum = softmax_numerators(scores, keep)
    weights = weights * (1 / safe_divisor(row_sum))[:, None]
    hashes = pos.dropout_hashes(problem, i)
    grad_tile = operand(pos.load_rows(grad, problem, rows, queries, DIMS.dv, DIMS.block_dv), scales.do, PRECISION)
    dropped = pos.apply_dropout(weights, hashes, j, dropout, reciprocal(scales.p))
    dv_tile = product(transpose(prescaled_operand(dropped, scales.p, PRECISION)), grad_tile, PRECISION)
    pos.store_rows(dv, problem, columns, keys, dv_tile, DIMS.dv, DIMS.block_dv)
    dv_absmax = pos.row_absmax(dv_tile)
    v_tile = operand(pos.load_rows(v, problem, columns, keys, DIMS.dv, DIMS.block_dv), scales.v, PRECISION)
    dp = product(grad_tile, transpose(v_tile), PRECISION, pos.dropout_factor(dropout))
    dp = pos.apply_dropout_mask(dp, hashes, j, dropout)
    dp = tl.where(keep, dp, 0.0)
    total = tl.sum(weights * dp, axis=1) - pos.load_grad_lse(grad_lse, problem, rows)
    ds = tl.where(keep, weights * (dp - total[:, None]) * (sm_scale * reciprocal(scales.ds)), 0.0)
    ds = prescaled_operand(ds, scales.ds, PRECISION)
    dq_tile, dk_tile = product(ds, k_tile, PRECISION), product(transpose(ds), q_tile, PRECISION)
    pos.store_rows(dq, problem, rows, queries, dq_tile, DIMS.d, DIMS.block_d)
    pos.store_rows(dk, problem, columns, keys, dk_tile, DIMS.d, DIMS.block_d)
    pos.update_bounds(problem, pos.BOUND_DQ, (pos.row_absmax(dq_tile), pos.row_absmax(dk_tile), dv_absmax))
