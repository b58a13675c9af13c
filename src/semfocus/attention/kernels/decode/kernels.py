"""Top-k attention of a few queries over many keys.

    score_keys         splits of the keys on all multiprocessors: scores of the queries that share a key head, and the
                       maximum of each group of GROUP neighbouring keys
    select_and_mix     a program a query: the k best groups, of their keys the k best, softmax, the sum of k values

The k best groups by (maximum, lower number) hold the k best keys by (score, lower index), as in `long.forward`. A k-th
best number is found bit by bit, from the highest on: 32 counts of what a program holds in registers. What a query gets
does not depend on the other queries or the batch: splits and groups follow from the size of the cache and k alone.

Shapes: P key problems (batch x key heads), R queries that share a key head (heads x queries), n groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.long.queries import last_key
from semfocus.attention.kernels.products import operand, product, transpose
from semfocus.attention.kernels.shared import MINUS_INF, NO_RANK, finite, float_to_ordered_int, ordered_int_to_float


@triton.jit
def row_ends(row, problem, rows, queries, keys, lengths, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr):
    """One past the last key that each of the R queries of a key problem may look at."""
    length = tl.zeros(row.shape, tl.int32) + keys
    if LENGTHS:
        head = problem * (rows // queries) + row // queries
        length = tl.load(lengths + head, mask=row < rows, other=0)
    return tl.maximum(last_key(row % queries + keys - queries, keys, length, CAUSAL), 0)


@triton.jit(do_not_specialize=["heads", "rows", "queries", "keys", "groups"])  # a cache grows: one compilation serves
def score_keys(
    q, k, mask, lengths, scores, maxima, mask_strides, heads, rows, queries, keys, groups,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """scores (P, R, Lk) and maxima (P, R, n) before sm_scale as ordered integers; NO_RANK where a query may not look.

    A scaled score could be rounded to that of another key, which the kernels of a prefill tell apart.
    Grid: P x splits of SPLIT keys, x tiles of BLOCK_R rows. Splits beyond all lengths read no keys.
    """
    splits = tl.cdiv(keys, SPLIT)
    problem = (tl.program_id(0) // splits).to(tl.int64)
    begin = tl.program_id(0) % splits * SPLIT
    row, channel = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    inside = row < rows
    end = tl.where(inside, row_ends(row, problem, rows, queries, keys, lengths, CAUSAL, LENGTHS), 0)
    last = tl.max(end, axis=0)
    mask_row = problem // heads * mask_strides[0] + problem % heads * mask_strides[1]
    mask_row += (row // queries).to(tl.int64) * mask_strides[2] + (row % queries).to(tl.int64) * mask_strides[3]
    q_tile = tl.load(
        q + (problem * rows + row)[:, None] * D + channel[None, :], mask=inside[:, None] & (channel < D)[None, :],
        other=0.0,
    )  # fmt: skip
    for first in range(begin, begin + SPLIT, BLOCK_N):
        key = first + tl.arange(0, BLOCK_N)
        at = k + (problem * keys + key)[:, None] * D + channel[None, :]
        k_tile = tl.load(at, mask=(key < last)[:, None] & (channel < D)[None, :], other=0.0)
        tile = product(operand(q_tile, 1.0, PRECISION), transpose(operand(k_tile, 1.0, PRECISION)), PRECISION)
        allowed = (key[None, :] < end[:, None]) & (tile != MINUS_INF)
        if MASK:
            at = mask + mask_row[:, None] + key[None, :].to(tl.int64) * mask_strides[4]
            allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
        rank = tl.where(allowed, float_to_ordered_int(tile), NO_RANK)
        at = scores + (problem * rows + row)[:, None] * keys + key[None, :]
        whole = tl.minimum(tl.cdiv(last, GROUP) * GROUP, keys)  # of a group that is chosen all keys are read
        tl.store(at, rank, mask=inside[:, None] & (key < whole)[None, :])
        group = first // GROUP + tl.arange(0, BLOCK_N // GROUP)
        best = tl.max(tl.reshape(rank, (BLOCK_R, BLOCK_N // GROUP, GROUP)), axis=2)
        at = maxima + (problem * rows + row)[:, None] * groups + group[None, :]
        tl.store(at, best, mask=inside[:, None] & (group < groups)[None, :])


@triton.jit
def kth_best(rank, most):
    """The largest number that at least `most` entries reach; NO_RANK if there are fewer."""
    found = tl.max(rank, axis=0) * 0 + NO_RANK
    for step in range(32):
        guess = tl.where(step == 0, 0, found + (1 << tl.minimum(31 - step, 30)))
        found = tl.where(tl.sum((rank >= guess).to(tl.int32), axis=0) >= most, guess, found)
    return found


@triton.jit
def best_places(rank, most):
    """For each entry its place among the `most` best in the order of the entries, -1 for the others.

    Of equal entries the first are better; NO_RANK is none.
    """
    cutoff = kth_best(rank, most)
    above = (rank > cutoff) & (rank > NO_RANK)
    equal = (rank == cutoff) & (rank > NO_RANK)
    room = most - tl.sum(above.to(tl.int32), axis=0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= room))
    return tl.where(chosen, tl.cumsum(chosen.to(tl.int32), axis=0) - 1, -1)


@triton.jit(do_not_specialize=["rows", "keys", "groups", "most"])
def select_and_mix(
    v, scores, maxima, listed, weights, lse, out, rows, keys, groups, most, sm_scale,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_LIST: tl.constexpr,
):  # fmt: skip
    """out (P, R, Dv), listed (P, R, most): the kept keys in increasing order, -1 for none, weights (P, R, most), and
    lse (P, R). Grid: P x R.
    """
    flat = tl.program_id(0).to(tl.int64)
    v += flat // rows * keys * DV
    listed += flat * most
    weights += flat * most
    number = tl.arange(0, BLOCK_GROUPS)
    rank = tl.load(maxima + flat * groups + number, mask=number < groups, other=NO_RANK)
    place = best_places(rank, most)
    tl.store(listed + place, number, mask=place >= 0)
    count = tl.sum((place >= 0).to(tl.int32), axis=0)
    tl.debug_barrier()  # one thread reads what another has written
    slot = tl.arange(0, BLOCK_K * GROUP)
    present = slot // GROUP < count
    key = tl.load(listed + slot // GROUP, mask=present, other=0) * GROUP + slot % GROUP
    rank = tl.load(scores + flat * keys + key, mask=present & (key < keys), other=NO_RANK)
    place = best_places(rank, most)
    top = tl.max(rank, axis=0)
    peak = tl.where(top > NO_RANK, ordered_int_to_float(top), 0.0)
    weight = tl.where(place >= 0, tl.exp((ordered_int_to_float(rank) - peak) * sm_scale), 0.0)
    total = tl.sum(weight, axis=0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(lse + flat, peak * sm_scale + tl.log(total))
    count = tl.sum((place >= 0).to(tl.int32), axis=0)
    tl.debug_barrier()
    tl.store(listed + place, key, mask=place >= 0)
    tl.store(weights + place, weight, mask=place >= 0)
    spare = tl.arange(0, BLOCK_K)
    tl.store(listed + spare, -1, mask=(spare >= count) & (spare < most))
    tl.store(weights + spare, 0.0, mask=(spare >= count) & (spare < most))
    tl.debug_barrier()
    channel = tl.arange(0, BLOCK_DV)
    mixed = tl.zeros((BLOCK_DV,), tl.float32)
    for first in range(0, count, BLOCK_LIST):
        entry = first + tl.arange(0, BLOCK_LIST)
        row = tl.load(listed + entry, mask=entry < count, other=0).to(tl.int64)
        share = tl.load(weights + entry, mask=entry < count, other=0.0)
        values = tl.load(
            v + row[:, None] * DV + channel[None, :], mask=(entry < count)[:, None] & (channel < DV)[None, :], other=0.0
        ).to(tl.float32)  # fmt: skip
        mixed += tl.sum(share[:, None] * values, axis=0)
    mixed = tl.where(finite(mixed), mixed, float("nan"))  # weights are at most 1, so that a value was not finite
    tl.store(out + flat * DV + channel, mixed.to(out.dtype.element_ty), mask=channel < DV)
