"""Attention over rows of up to 64 positions: one program computes a whole problem, forward or backward.

    forward    scores, kept pairs, softmax, sum of values; saved is, for a mechanism that selects, which keys each query
               kept, one bit each
    backward   scores and softmax again, the saved bits, five products; no second pass, no atomics: always the same

Shapes: Q, K queries and keys padded to a power of two, W words of 32 keys. Bits are stored (problems, W, queries).
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import added, counted_operand, inverse, operand, product, turned
from semfocus.attention.kernels.shared import BEYOND, MINUS_INF, NO_KEY, exponential, finite, ordered
from semfocus.attention.kernels.short.positions import (
    OF_DQ,
    allowed,
    drop,
    hashes_of,
    in_window,
    kept_factor,
    length_of,
    load_rows,
    note_bounds,
    row_absmax,
    start_of,
    store_counted,
    store_rows,
    thinned,
    units_at,
)


@triton.jit
def chosen(scores, may, i, j, queries, keys, bounds, KIND: tl.constexpr, MOST: tl.constexpr, SINKS: tl.constexpr,
           WINDOW: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """Of the pairs that may be kept, the MOST best of each row, besides sinks and window."""
    free = may
    if SINKS > 0 or WINDOW > 0:
        free = may & (j >= SINKS) & ~in_window(i + (keys - queries), j, keys, WINDOW, 0, CAUSAL)
    nothing = unranked(bounds)
    rank = tl.where(free, ranked(scores, KIND, bounds, True), nothing)
    border = tl.max(rank, axis=1)
    for _ in range(MOST - 1):
        border = tl.max(tl.where(rank < border[:, None], rank, nothing), axis=1)
    best = (rank >= border[:, None]) & (rank > nothing)
    count = tl.sum(best.to(tl.int32), axis=1)[:, None]
    if tl.max(tl.where(i < queries, count, 0)) > MOST:  # there are equals: the lowest index first
        left = rank
        for _ in range(MOST):
            first = tl.min(tl.where(left == tl.max(left, axis=1)[:, None], j, BEYOND), axis=1)
            left = tl.where(j == first[:, None], nothing, left)
        best = left < rank
    if SINKS > 0 or WINDOW > 0:
        best = best | (may & ~free)
    return best


@triton.jit
def ranked(scores, KIND: tl.constexpr, bounds, SEES_NAN: tl.constexpr):
    """Numbers in the order of preference. Those whose bounds are known stand for themselves, and NaN, which then comes
    from weights that are none, comes first, unless it is to stay: somebody is to see it."""
    rank = -scores if KIND == "bottomk" else scores
    if bounds is None:
        rank = ordered(rank)
    elif SEES_NAN:
        rank = tl.where(rank == rank, rank, -MINUS_INF)
    return rank


@triton.jit
def unranked(bounds):
    """Below every rank."""
    nothing = tl.full((), NO_KEY, tl.int32)
    if bounds is not None:
        nothing = tl.full((), MINUS_INF, tl.float32)
    return nothing


@triton.jit
def store_bits(kept, n, i, j, queries, keep, W: tl.constexpr):
    """Which keys each query kept, as words of 32 bits."""
    bit = tl.where(keep, 1 << (j % 32), 0)
    for word in tl.static_range(W):
        at = kept + (n.to(tl.int64) * W + word) * queries + i
        tl.store(at, tl.sum(tl.where(j // 32 == word, bit, 0), axis=1), mask=i < queries)


@triton.jit
def load_bits(kept, n, i, j, queries, W: tl.constexpr):
    """The kept pairs again."""
    words = tl.zeros((i.shape[0], j.shape[1]), tl.int32)
    for word in tl.static_range(W):
        at = kept + (n.to(tl.int64) * W + word) * queries + i
        words = tl.where(j // 32 == word, tl.load(at, mask=i < queries, other=0)[:, None], words)
    return ((words >> (j % 32)) & 1) != 0


@triton.jit(do_not_specialize=["queries", "keys"])
def whole_forward(
    q, k, v, out, mask, lengths, bounds, dropout, kept, lse, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, MOST: tl.constexpr,
    SINKS: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr, CAREFUL: tl.constexpr,
    PRECISION: tl.constexpr, W: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """One problem. W is 0 where nothing is selected."""
    n = tl.program_id(0)
    rows, columns = tl.arange(0, Q), tl.arange(0, K)
    i, j = rows[:, None], columns[None, :]
    uq, uk, uv, _ug, up, uo, _us = units_at(bounds, n, sizes, dropout, scale, DV)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    scores = product(q_tile, turned(k_tile), PRECISION, scale)
    limit = length_of(lengths, n, sizes, keys)
    keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, True)
    if W > 0:
        keep = chosen(scores, keep, i, j, queries, keys, bounds, KIND, MOST, SINKS, WINDOW, CAUSAL)
        store_bits(kept, n, rows, j, queries, keep, W)
    weights, top, total = exponentials(scores, keep)
    tl.store(lse + n.to(tl.int64) * queries + rows, top + tl.log(total), mask=rows < queries)
    weights = drop(weights, hashes_of(dropout, n, sizes, i), j, dropout, inverse(up))
    v_tile = load_rows(v, n, sizes, columns, keys, DV, DVP)
    mixed = mixture(tl.zeros((Q, DVP), tl.float32), weights, keep, v_tile, up, uv, CAREFUL, PRECISION)
    mixed = mixed * (up * uv / nonzero(total))[:, None]
    store_counted(out, n, sizes, rows, queries, mixed, uo, bounds, DV, DVP)


@triton.jit
def exponentials(scores, keep):
    """exp(score - top) of the kept pairs, top (0 for a row without keys) and the sum of the row."""
    scores = tl.where(keep, scores, MINUS_INF)
    top = tl.max(scores, axis=1)
    top = tl.where(top == MINUS_INF, 0.0, top)
    weights = exponential(scores - top[:, None])
    return weights, top, tl.sum(weights, axis=1)


@triton.jit
def nonzero(total):
    """What to divide by: a row without keys has no weights to divide."""
    return tl.where(total == 0.0, 1.0, total)


@triton.jit
def mixture(total, weights, keep, values, up, uv, CAREFUL: tl.constexpr, PRECISION: tl.constexpr):
    """total + weights @ values, in units; with care, a value that is not finite makes NaN of what keeps it alone."""
    weights = counted_operand(weights, up, PRECISION)
    if not CAREFUL:
        mixed = added(total, weights, operand(values, uv, PRECISION), PRECISION)
    else:
        sound = finite(values.to(tl.float32))
        mixed = added(total, weights, operand(tl.where(sound, values, 0.0), uv, PRECISION), PRECISION)
        if tl.min(tl.min(sound.to(tl.int32), axis=1), axis=0) == 0:
            spoiled = tl.dot(keep.to(tl.float32), 1.0 - sound.to(tl.float32), input_precision="tf32")
            mixed = tl.where(spoiled > 0.0, float("nan"), mixed)
    return mixed


@triton.jit(do_not_specialize=["queries", "keys"])
def whole_backward(
    grad, grad_lse, q, k, v, mask, lengths, bounds, dropout, kept, dq, dk, dv, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, W: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """dv = P' dout;  dP = dout v';  dS = P (dP - sum P dP + dlse) scale;  dq = dS k;  dk = dS' q."""
    n = tl.program_id(0)
    rows, columns = tl.arange(0, Q), tl.arange(0, K)
    i, j = rows[:, None], columns[None, :]
    uq, uk, uv, ug, up, _uo, us = units_at(bounds, n, sizes, dropout, scale, DV)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    scores = product(q_tile, turned(k_tile), PRECISION, scale)
    if W > 0:
        keep = load_bits(kept, n, rows, j, queries, W)
    else:
        limit = length_of(lengths, n, sizes, keys)
        keep = allowed(scores, i, j, n, sizes, queries, keys, limit, mask, MASK, KIND, WIDTH, GLOBALS, CAUSAL, False)
    weights, _top, total = exponentials(scores, keep)
    weights = weights * (1 / nonzero(total))[:, None]
    hashes = hashes_of(dropout, n, sizes, i)
    grad_tile = operand(load_rows(grad, n, sizes, rows, queries, DV, DVP), ug, PRECISION)
    dropped = counted_operand(drop(weights, hashes, j, dropout, inverse(up)), up, PRECISION)
    dv_tile = product(turned(dropped), grad_tile, PRECISION)
    store_rows(dv, n, sizes, columns, keys, dv_tile, DV, DVP)
    tops = row_absmax(dv_tile)
    v_tile = operand(load_rows(v, n, sizes, columns, keys, DV, DVP), uv, PRECISION)
    dp = product(grad_tile, turned(v_tile), PRECISION, kept_factor(dropout))
    dp = thinned(dp, hashes, j, dropout)
    dp = tl.where(keep, dp, 0.0)
    total = tl.sum(weights * dp, axis=1)
    if grad_lse is not None:
        at = start_of(grad_lse, n, sizes) + rows * grad_lse.row
        total -= tl.load(at, mask=rows < queries, other=0.0)
    ds = tl.where(keep, weights * (dp - total[:, None]) * (scale * inverse(us)), 0.0)
    ds = counted_operand(ds, us, PRECISION)
    dq_tile, dk_tile = product(ds, k_tile, PRECISION), product(turned(ds), q_tile, PRECISION)
    store_rows(dq, n, sizes, rows, queries, dq_tile, D, DP)
    store_rows(dk, n, sizes, columns, keys, dk_tile, D, DP)
    note_bounds(bounds, OF_DQ, n, sizes, (row_absmax(dq_tile), row_absmax(dk_tile), tops))
