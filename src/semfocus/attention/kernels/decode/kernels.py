"""Top-k attention of a few queries over many keys.

    score_keys         tiles of keys on all multiprocessors: scores of the queries that share a key head, and the
                       maximum of each group of GROUP neighbouring keys
    select             a program a query: the k best groups, of their keys the k best, softmax; of short lists also the
                       sum of their values
    mix                of long lists: a program a query and slice of channels adds the values

The k best groups by (maximum, lower number) hold the k best keys by (score, lower index), as in `long.forward`. What a
query gets does not depend on the other queries or the batch: groups and tiles follow from the size of the cache, the
width and k alone.

Shapes: P key problems (batch x key heads), R queries that share a key head (heads x queries), n groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.long.queries import last_key
from semfocus.attention.kernels.products import operand, product, transpose
from semfocus.attention.kernels.shared import (
    MAX_INDEX,
    MINUS_INF,
    NO_RANK,
    finite,
    float_to_ordered_int,
    ordered_int_to_float,
)


@triton.jit
def row_ends(
    row, problem, heads, rows, queries, keys, lengths, length_strides, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr
):  # fmt: skip
    """One past the last key that each of the R queries of a key problem may look at; 0 for others."""
    length = tl.zeros(row.shape, tl.int32) + keys
    if LENGTHS:
        lengths += problem // heads * length_strides[0] + problem % heads * length_strides[1]
        given = tl.load(lengths + (row // queries).to(tl.int64) * length_strides[2], mask=row < rows, other=0)
        length = tl.minimum(tl.maximum(given, 0), keys).to(tl.int32)
    end = last_key(row % queries + keys - queries, keys, length, CAUSAL)
    return tl.where(row < rows, tl.maximum(end, 0), 0)


@triton.jit(do_not_specialize=["heads", "rows", "queries", "keys", "groups", "splits"])  # a cache grows: one serves all
def score_keys(
    q, k, mask, lengths, ranks, mask_strides, length_strides, heads, rows, queries, keys, groups, splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    KEYS_FIRST: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """ranks (P, R, Lk + n): scores before sm_scale as ordered integers, NO_RANK where a query may not look; maxima.

    A scaled score could be rounded to that of another key, which the kernels of a prefill tell apart.
    Grid: P x splits, x tiles of BLOCK_R rows. A split takes every splits-th tile of keys, so that a short row in a
    large cache is work for all. Of groups that no row of a tile may look at nothing is written.
    """
    problem = (tl.program_id(0) // splits).to(tl.int64)
    row, channel = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    inside = row < rows
    end = row_ends(row, problem, heads, rows, queries, keys, lengths, length_strides, CAUSAL, LENGTHS)
    last = tl.max(end, axis=0)
    mask_row = problem // heads * mask_strides[0] + problem % heads * mask_strides[1]
    mask_row += (row // queries).to(tl.int64) * mask_strides[2] + (row % queries).to(tl.int64) * mask_strides[3]
    q_tile = tl.load(
        q + (problem * rows + row)[:, None] * D + channel[None, :], mask=inside[:, None] & (channel < D)[None, :],
        other=0.0,
    )  # fmt: skip
    q_tile = operand(q_tile, 1.0, PRECISION)
    k += problem * keys * D
    ranks += (problem * rows + row)[None, :] * (keys + groups)
    for number in range(tl.program_id(0) % splits, tl.cdiv(last, BLOCK_N), splits):
        key = number * BLOCK_N + tl.arange(0, BLOCK_N)
        at = k + key[:, None] * D + channel[None, :]
        k_tile = operand(
            tl.load(at, mask=(key < last)[:, None] & (channel < D)[None, :], other=0.0), 1.0, PRECISION
        )  # fmt: skip
        if KEYS_FIRST:  # the few queries are the short side of the tile
            tile = product(k_tile, transpose(q_tile), PRECISION)
        else:
            tile = tl.trans(product(q_tile, transpose(k_tile), PRECISION))
        allowed = (key[:, None] < end[None, :]) & (tile != MINUS_INF)
        if MASK:
            at = mask + mask_row[None, :] + key[:, None].to(tl.int64) * mask_strides[4]
            allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
        rank = tl.where(allowed, float_to_ordered_int(tile), NO_RANK)
        tl.store(ranks + key[:, None], rank, mask=inside[None, :] & (key < keys)[:, None])
        group = number * (BLOCK_N // GROUP) + tl.arange(0, BLOCK_N // GROUP)
        best = tl.max(tl.reshape(rank, (BLOCK_N // GROUP, GROUP, BLOCK_R)), axis=1)
        tl.store(ranks + keys + group[:, None], best, mask=inside[None, :] & (group < groups)[:, None])


@triton.jit
def find_cutoff(rank, most, floor):
    """A number from `floor` on that the `most` best entries reach, and whether no others do.

    Where equal entries leave no such number it is theirs. If fewer reach the floor, these are the best. The range of
    numbers is halved until one has been found: some dozen times where scores are random, 31 at most.
    """
    low = tl.maximum(floor, tl.min(tl.where(rank >= floor, rank, MAX_INDEX), axis=0))
    high = tl.max(rank, axis=0) + 1  # NaN, the largest, is below the largest integer
    exact = tl.sum((rank >= low).to(tl.int32), axis=0) <= most
    while (exact == 0) & (low + 1 < high):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count = tl.sum((rank >= middle).to(tl.int32), axis=0)
        low, high = tl.where(count >= most, middle, low), tl.where(count >= most, high, middle)
        exact = count == most
    return low, exact


@triton.jit
def best_places(rank, most, floor):
    """For each entry its place among the `most` best in the order of the entries, -1 for the others; and the cutoff.

    Of equal entries the first are better; what does not reach `floor` is none, see `find_cutoff`.
    """
    cutoff, exact = find_cutoff(rank, most, floor)
    chosen = (rank >= cutoff).to(tl.int32)
    if exact == 0:
        equal = (rank == cutoff).to(tl.int32)
        room = most - tl.sum((rank > cutoff).to(tl.int32), axis=0)
        chosen = chosen * (1 - equal * (tl.cumsum(equal, axis=0) > room).to(tl.int32))
    return tl.where(chosen == 1, tl.cumsum(chosen, axis=0) - 1, -1), cutoff


@triton.jit(do_not_specialize=["heads", "rows", "queries", "keys", "groups", "most"])
def select(
    v, lengths, ranks, found, out, length_strides, heads, rows, queries, keys, groups, most, sm_scale,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    MIX: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """found (P, R, 2 most + 1): the kept keys in increasing order, -1 for none, the bits of their weights and of the
    log-sum-exp; with MIX also out (P, R, Dv). Grid: P x R.
    """
    flat = tl.program_id(0).to(tl.int64)
    ranks += flat * (keys + groups)
    listed = found + flat * (2 * most + 1)
    weights = listed + most
    row, problem = (flat % rows).to(tl.int32), flat // rows
    end = row_ends(row, problem, heads, rows, queries, keys, lengths, length_strides, CAUSAL, LENGTHS)
    number = tl.arange(0, BLOCK_GROUPS)
    rank = tl.load(ranks + keys + number, mask=number < tl.cdiv(end, GROUP), other=NO_RANK)
    place, cutoff = best_places(rank, most, NO_RANK + 1)
    tl.store(listed + place, number, mask=place >= 0)
    count = tl.sum((place >= 0).to(tl.int32), axis=0)
    floor = tl.where(count < most, NO_RANK + 1, cutoff)  # each of `most` groups holds a key that reaches the cutoff
    tl.debug_barrier()  # one thread reads what another has written
    slot = tl.arange(0, BLOCK_K * GROUP)
    present = slot // GROUP < count
    key = tl.load(listed + slot // GROUP, mask=present, other=0) * GROUP + slot % GROUP
    rank = tl.load(ranks + key, mask=present & (key < keys), other=NO_RANK)
    place, _ = best_places(rank, most, floor)
    top = tl.max(rank, axis=0)
    peak = tl.where(top > NO_RANK, ordered_int_to_float(top), 0.0)
    weight = tl.where(place >= 0, tl.exp((ordered_int_to_float(rank) - peak) * sm_scale), 0.0)
    total = tl.sum(weight, axis=0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(weights + most, (peak * sm_scale + tl.log(total)).to(tl.int32, bitcast=True))
    count = tl.sum((place >= 0).to(tl.int32), axis=0)
    tl.debug_barrier()
    tl.store(listed + place, key, mask=place >= 0)
    tl.store(weights + place, weight.to(tl.int32, bitcast=True), mask=place >= 0)
    spare = tl.arange(0, BLOCK_K)
    tl.store(listed + spare, -1, mask=(spare >= count) & (spare < most))
    tl.store(weights + spare, 0, mask=(spare >= count) & (spare < most))
    if MIX:
        tl.debug_barrier()
        add_values(v, found, out, flat, 0, rows, keys, most, DV, BLOCK_DV, BLOCK_K)


@triton.jit(do_not_specialize=["rows", "keys", "most"])
def mix(v, found, out, rows, keys, most, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_LIST: tl.constexpr):
    """out (P, R, Dv) from the lists. Grid: P x R, x slices of BLOCK_DV channels."""
    flat = tl.program_id(0).to(tl.int64)
    add_values(v, found, out, flat, tl.program_id(1) * BLOCK_DV, rows, keys, most, DV, BLOCK_DV, BLOCK_LIST)


@triton.jit
def add_values(
    v, found, out, flat, begin, rows, keys, most, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_LIST: tl.constexpr
):  # fmt: skip
    """The channels from `begin` on of a query's output, its list taken BLOCK_LIST keys at a time."""
    v += flat // rows * keys * DV
    listed = found + flat * (2 * most + 1)
    channel = begin + tl.arange(0, BLOCK_DV)
    mixed = tl.zeros((BLOCK_DV,), tl.float32)
    for first in range(0, most, BLOCK_LIST):
        entry = first + tl.arange(0, BLOCK_LIST)
        key = tl.load(listed + entry, mask=entry < most, other=-1)
        weight = tl.load(listed + most + entry, mask=entry < most, other=0).to(tl.float32, bitcast=True)
        values = tl.load(
            v + key[:, None] * DV + channel[None, :], mask=(key >= 0)[:, None] & (channel < DV)[None, :], other=0.0
        ).to(tl.float32)  # fmt: skip
        mixed += tl.sum(weight[:, None] * values, axis=0)
    mixed = tl.where(finite(mixed), mixed, float("nan"))  # weights are at most 1, so that a value was not finite
    tl.store(out + flat * DV + channel, mixed.to(out.dtype.element_ty), mask=channel < DV)
