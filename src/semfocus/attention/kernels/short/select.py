"""Which keys of a long row each query keeps: the k best by (score, lower index), a bit for each.

    guess     of all keys that stand in one column of the tiles the four best, running; the k-th best of these is the
              border, or below it
    mark      scores again; a bit for each key that reaches the border, and how many do
    search    where too many do, because five of the k best stand in one column or because there are equals: border by
              border, from the best score down, k passes at most; of the equals at the last one the lowest indices

A score costs eight comparisons and two products wherever the best keys lie, unless a guess fails: where scores are
random, k is 5 and tiles have 32 columns, for one query in a million. Bits are stored (problems, words of 32 keys,
queries).
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import operand, product, turned
from semfocus.attention.kernels.shared import NO_KEY
from semfocus.attention.kernels.short.positions import (
    allowed,
    cut_queries,
    key_tiles,
    length_of,
    load_rows,
    open_tiles,
    start_of,
    units_at,
)
from semfocus.attention.kernels.short.whole import ranked, unranked

WORD = tl.constexpr(32)  # keys whose bits are one number
SMALLEST = tl.constexpr(-3.4028234663852886e38)  # finite float32


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_choice(
    q, k, mask, lengths, bounds, bits, sizes, queries, keys, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr,
    PRECISION: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Q queries of one problem."""
    tiles = tl.cdiv(queries, Q)
    n, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * Q
    rows = first + tl.arange(0, Q)
    limit = length_of(lengths, n, sizes, keys)
    last = tl.minimum(first + Q, queries) - 1
    _start, end, _second, _second_end = key_tiles(first, last, queries, keys, limit, K, "full", 0, 0, CAUSAL)
    end = cut_queries(end, first, limit, RAGGED)
    uq, uk, _uv, _ug, _up, _uo, _us = units_at(bounds, n, sizes, None, scale, D)
    q_tile = operand(load_rows(q, n, sizes, rows, queries, D, DP), uq, PRECISION)
    nothing = unranked(bounds)

    inside = end * 0
    if not is_strict(KIND, bounds):
        inside = open_tiles(end, limit, MASK, "full", CAUSAL, K)

    best = tl.zeros((Q, K), nothing.dtype) + nothing
    second, third, fourth = best, best, best
    for tile in range(inside):
        rank = ranks_in(
            tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
            MASK, KIND, CAUSAL, True, False, PRECISION, K, D, DP,
        )  # fmt: skip
        best, second, third, fourth = merged(best, second, third, fourth, rank)
    for tile in range(inside, end):
        rank = ranks_in(
            tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
            MASK, KIND, CAUSAL, False, False, PRECISION, K, D, DP,
        )  # fmt: skip
        best, second, third, fourth = merged(best, second, third, fourth, rank)
    unknown = tl.max(tl.max((best != best).to(tl.int32), axis=1), axis=0) > 0
    border = tl.max(best, axis=1)
    for _ in range(MOST - 1):
        passed = best == border[:, None]
        best = tl.where(passed, second, best)
        second = tl.where(passed, third, second)
        third = tl.where(passed, fourth, third)
        fourth = tl.where(passed, nothing, fourth)
        border = tl.max(best, axis=1)
    border = tl.maximum(border, lowest(bounds))

    count = tl.zeros((Q,), tl.int32)
    for tile in range(inside):
        rank = ranks_in(
            tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
            MASK, KIND, CAUSAL, True, False, PRECISION, K, D, DP,
        )  # fmt: skip
        count += store_bits(bits, n, tile, rows, queries, keys, rank >= border[:, None])
    for tile in range(inside, end):
        rank = ranks_in(
            tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
            MASK, KIND, CAUSAL, False, False, PRECISION, K, D, DP,
        )  # fmt: skip
        count += store_bits(bits, n, tile, rows, queries, keys, rank >= border[:, None])
    for tile in range(end, tl.cdiv(keys, K)):
        store_bits(bits, n, tile, rows, queries, keys, tl.zeros((Q, K), tl.int1))

    if (tl.max(tl.where(rows < queries, count, 0), axis=0) > MOST) | unknown:
        border, room = searched_border(
            end, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
            MASK, KIND, MOST, CAUSAL, PRECISION, Q, K, D, DP,
        )  # fmt: skip
        for tile in range(end):
            rank = ranks_in(
                tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
                MASK, KIND, CAUSAL, False, True, PRECISION, K, D, DP,
            )  # fmt: skip
            equal = rank == border[:, None]
            place = tl.cumsum(equal.to(tl.int32), axis=1)
            keep = (rank > border[:, None]) | (equal & (place <= room[:, None]))
            store_bits(bits, n, tile, rows, queries, keys, keep)
            room -= tl.sum(equal.to(tl.int32), axis=1)


@triton.constexpr_function
def is_strict(kind: str, bounds: object) -> bool:
    """Whether a score of -inf must be looked for; else its rank is that of no key."""
    return kind == "bottomk" or bounds is None


@triton.jit
def merged(best, second, third, fourth, rank):
    """The four best of each place, after one more."""
    low = tl.minimum(best, rank)
    best = tl.maximum(best, rank, propagate_nan=tl.PropagateNan.ALL)  # a NaN is to be found again
    lower = tl.minimum(second, low)
    return best, tl.maximum(second, low), tl.maximum(third, lower), tl.maximum(fourth, tl.minimum(third, lower))


@triton.jit
def ranks_in(
    tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, CAUSAL: tl.constexpr, OPEN: tl.constexpr, SEES_NAN: tl.constexpr,
    PRECISION: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """How each query ranks the K keys of a tile. OPEN: all are allowed."""
    columns = tile * K + tl.arange(0, K)
    i, j = rows[:, None], columns[None, :]
    k_tile = operand(load_rows(k, n, sizes, columns, keys, D, DP), uk, PRECISION)
    scores = product(q_tile, turned(k_tile), PRECISION, scale)
    PAIRS: tl.constexpr = "pairs" if MASK == "pairs" else "none"
    rank = ranked(scores, KIND, bounds, SEES_NAN)
    free = allowed(
        scores, i, j, n, sizes, queries, keys, limit, mask, PAIRS, "full", 0, 0, CAUSAL, is_strict(KIND, bounds)
    )
    if MASK == "keys":
        free = free & visible(mask, n, sizes, j, limit)
    return rank if OPEN else tl.where(free, rank, unranked(bounds))


@triton.jit
def visible(mask, n, sizes, j, limit):
    """Which keys a mask leaves to all queries. It passes through words of 32 bits, plain numbers: a tile of flags would
    bring the scores into the order in which the flags were loaded."""
    flags = tl.load(start_of(mask, n, sizes) + j * mask.column, mask=j < limit, other=0) != 0
    first, bits = tl.min(j), tl.zeros(j.shape, tl.int32)
    for word in tl.static_range((j.shape[0] * j.shape[1] + 31) // 32):
        here = (j - first) // 32 == word
        whole = tl.sum(tl.where(here & flags, 1 << ((j - first) % 32), 0))
        bits = tl.where(here, whole, bits)
    return ((bits >> ((j - first) % 32)) & 1) != 0


@triton.jit
def lowest(bounds):
    """The rank next to that of no key."""
    rank = tl.full((), NO_KEY + 1, tl.int32)
    if bounds is not None:
        rank = tl.full((), SMALLEST, tl.float32)
    return rank


@triton.jit
def store_bits(bits, n, tile, rows, queries, keys, keep):
    """The bits of a tile, and how many of each row are set. Sixteen bits are the lower half of a sum whose upper half
    is their number."""
    K: tl.constexpr = keep.shape[1]
    tl.static_assert(K % WORD == 0)
    words, at = tl.cdiv(keys, WORD), tl.arange(0, K)[None, :]
    marks = tl.where(keep, (1 << (at % 16)) + (1 << 16), 0)
    count = tl.zeros((keep.shape[0],), tl.int32)
    for part in tl.static_range(K // WORD):
        low = tl.sum(tl.where(at // 16 == 2 * part, marks, 0), axis=1)
        high = tl.sum(tl.where(at // 16 == 2 * part + 1, marks, 0), axis=1)
        word = tile * (K // WORD) + part
        here = bits + (n.to(tl.int64) * words + word) * queries + rows
        tl.store(here, (low & 0xFFFF) | (high << 16), mask=(rows < queries) & (word < words))
        count += (low >> 16) + (high >> 16)
    return count


@triton.jit
def searched_border(
    end, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
    MASK: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The rank of each query's MOST-th best key, and how many keys of that rank it keeps."""
    nothing = unranked(bounds)
    border = tl.zeros((Q,), nothing.dtype) + nothing
    count, room = tl.zeros((Q,), tl.int32), tl.zeros((Q,), tl.int32)
    going, passes = rows < queries, 0
    while tl.max(going.to(tl.int32), axis=0) > 0:
        peak = tl.zeros((Q,), nothing.dtype) + nothing
        equals = tl.zeros((Q,), tl.int32)
        for tile in range(end):
            rank = ranks_in(
                tile, q_tile, k, uk, mask, bounds, rows, n, sizes, queries, keys, limit, scale,
                MASK, KIND, CAUSAL, False, True, PRECISION, K, D, DP,
            )  # fmt: skip
            below = tl.where((rank < border[:, None]) | (passes == 0), rank, nothing)
            higher = tl.maximum(peak, tl.max(below, axis=1))
            here = tl.sum((below == higher[:, None]).to(tl.int32), axis=1)
            equals = tl.where(higher > peak, here, equals + here)
            peak = higher
        border = tl.where(going, peak, border)
        room = tl.where(going, MOST - count, room)
        count += equals
        going = going & (count < MOST) & (peak > nothing)
        passes += 1
    border = tl.maximum(border, lowest(bounds))
    return border, room
