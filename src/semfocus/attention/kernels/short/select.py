"""Which keys each query of a longer sequence selects: the k best by (score, lower index), one bit per key.

    guess     keeps the four best keys of each tile column, running over tiles; the k-th best of these is the cutoff, or
              a lower bound of it
    mark      computes scores again, sets a bit for each key that reaches the cutoff and counts them
    search    runs only where too many keys reach the cutoff, because five of the k best share a column or because of
              ties: finds the exact cutoff in at most k passes, and keeps the lowest indices among ties

A score costs eight comparisons and two products wherever the best keys are, unless a guess fails: with random scores,
k = 5 and tiles of 32 columns that happens to one query in a million. Bits are (problems, words of 32 keys, queries).
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import operand, product, transpose
from semfocus.attention.kernels.shared import NO_RANK
from semfocus.attention.kernels.short import positions as pos
from semfocus.attention.kernels.short.arguments import Pattern
from semfocus.attention.kernels.short.positions import Problem
from semfocus.attention.kernels.short.whole import rank_of_none, rank_scores

WORD = tl.constexpr(32)  # keys whose bits form one integer
LOWEST_FLOAT = tl.constexpr(-3.4028234663852886e38)  # finite float32


@triton.jit(do_not_specialize=["queries", "keys"])
def listed_select(
    q, k, mask, lengths, bounds, bits, sizes, queries, keys, sm_scale,
    PATTERN: tl.constexpr, TOPK: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """bits (problems, words, Lq) of BLOCK_M queries of one problem. Grid: problems x tiles of queries."""
    n, first, rows = pos.program_tile(queries, BLOCK_M)
    problem = Problem(n, sizes, queries, keys, sm_scale, mask, None, bounds)
    valid = pos.valid_length(lengths, problem)
    last = tl.minimum(first + BLOCK_M, queries) - 1
    ranges = pos.key_tile_ranges(first, last, problem, valid, BLOCK_N, PATTERN.before_selection())
    end = pos.skip_padded_queries(ranges[1], first, valid, RAGGED)
    scales = pos.operand_scales(problem, DIMS.d)
    q_tile = operand(pos.load_rows(q, problem, rows, queries, DIMS.d, DIMS.block_d), scales.q, PRECISION)
    no_rank = rank_of_none(bounds)

    unmasked = end * 0
    if not excludes_neg_inf(PATTERN, bounds):
        unmasked = pos.count_unmasked_tiles(end, valid, PATTERN.before_selection(), BLOCK_N)

    best = tl.zeros((BLOCK_M, BLOCK_N), no_rank.dtype) + no_rank
    second, third, fourth = best, best, best
    for tile in range(unmasked):
        rank = rank_tile(
            tile, q_tile, k, scales.k, problem, rows, valid, PATTERN, True, False, PRECISION, BLOCK_N, DIMS
        )
        best, second, third, fourth = merge_top4(best, second, third, fourth, rank)
    for tile in range(unmasked, end):
        rank = rank_tile(
            tile, q_tile, k, scales.k, problem, rows, valid, PATTERN, False, False, PRECISION, BLOCK_N, DIMS
        )
        best, second, third, fourth = merge_top4(best, second, third, fourth, rank)
    has_nan = tl.max(tl.max((best != best).to(tl.int32), axis=1), axis=0) > 0
    cutoff = tl.max(best, axis=1)
    for _ in range(TOPK - 1):
        passed = best == cutoff[:, None]
        best = tl.where(passed, second, best)
        second = tl.where(passed, third, second)
        third = tl.where(passed, fourth, third)
        fourth = tl.where(passed, no_rank, fourth)
        cutoff = tl.max(best, axis=1)
    cutoff = tl.maximum(cutoff, min_rank(bounds))

    count = tl.zeros((BLOCK_M,), tl.int32)
    for tile in range(unmasked):
        rank = rank_tile(
            tile, q_tile, k, scales.k, problem, rows, valid, PATTERN, True, False, PRECISION, BLOCK_N, DIMS
        )
        count += store_tile_bits(bits, problem, tile, rows, rank >= cutoff[:, None])
    for tile in range(unmasked, end):
        rank = rank_tile(
            tile, q_tile, k, scales.k, problem, rows, valid, PATTERN, False, False, PRECISION, BLOCK_N, DIMS
        )
        count += store_tile_bits(bits, problem, tile, rows, rank >= cutoff[:, None])
    for tile in range(end, tl.cdiv(keys, BLOCK_N)):
        store_tile_bits(bits, problem, tile, rows, tl.zeros((BLOCK_M, BLOCK_N), tl.int1))

    if (tl.max(tl.where(rows < queries, count, 0), axis=0) > TOPK) | has_nan:
        cutoff, room = exact_cutoff(
            end, q_tile, k, scales.k, problem, rows, valid, PATTERN, TOPK, PRECISION, BLOCK_M, BLOCK_N, DIMS
        )
        for tile in range(end):
            rank = rank_tile(
                tile, q_tile, k, scales.k, problem, rows, valid, PATTERN, False, True, PRECISION, BLOCK_N, DIMS
            )
            equal = rank == cutoff[:, None]
            number = tl.cumsum(equal.to(tl.int32), axis=1)
            keep = (rank > cutoff[:, None]) | (equal & (number <= room[:, None]))
            store_tile_bits(bits, problem, tile, rows, keep)
            room -= tl.sum(equal.to(tl.int32), axis=1)


@triton.constexpr_function
def excludes_neg_inf(pattern: Pattern, bounds: object) -> bool:
    """Whether scores of -inf must be excluded explicitly; otherwise their rank is that of no key."""
    return pattern.kind == "bottomk" or bounds is None


@triton.jit
def merge_top4(best, second, third, fourth, rank):
    """The four best of each entry, after one more."""
    low = tl.minimum(best, rank)
    best = tl.maximum(best, rank, propagate_nan=tl.PropagateNan.ALL)  # NaN must be detected later
    lower = tl.minimum(second, low)
    return best, tl.maximum(second, low), tl.maximum(third, lower), tl.maximum(fourth, tl.minimum(third, lower))


@triton.jit
def rank_tile(
    tile, q_tile, k, k_scale, problem, rows, valid,
    PATTERN: tl.constexpr, UNMASKED: tl.constexpr, NAN_FIRST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N): how each query ranks the keys of a tile. UNMASKED: all are allowed."""
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    i, j = rows[:, None], columns[None, :]
    k_tile = operand(pos.load_rows(k, problem, columns, problem.keys, DIMS.d, DIMS.block_d), k_scale, PRECISION)
    scores = product(q_tile, transpose(k_tile), PRECISION, problem.sm_scale)
    rank = rank_scores(scores, PATTERN, problem.bounds, NAN_FIRST)
    free = pos.allowed_pairs(
        scores, i, j, problem, valid, PATTERN.before_selection_and_key_mask(), excludes_neg_inf(PATTERN, problem.bounds)
    )
    if PATTERN.mask == "keys":
        free = free & visible_keys(problem, j, valid)
    return rank if UNMASKED else tl.where(free, rank, rank_of_none(problem.bounds))


@triton.jit
def visible_keys(problem, j, valid):
    """Which keys the mask shows to all queries.

    The flags pass through words of 32 bits, which are scalars: a tile of flags would impose its layout on the scores.
    """
    mask = problem.mask
    flags = tl.load(pos.base_pointer(mask, problem) + j * mask.column, mask=j < valid, other=0) != 0
    first, bits = tl.min(j), tl.zeros(j.shape, tl.int32)
    for number in tl.static_range((j.shape[0] * j.shape[1] + 31) // 32):
        here = (j - first) // 32 == number
        word = tl.sum(tl.where(here & flags, 1 << ((j - first) % 32), 0))
        bits = tl.where(here, word, bits)
    return ((bits >> ((j - first) % 32)) & 1) != 0


@triton.jit
def min_rank(bounds):
    """The lowest rank that a key can have."""
    rank = tl.full((), NO_RANK + 1, tl.int32)
    if bounds is not None:
        rank = tl.full((), LOWEST_FLOAT, tl.float32)
    return rank


@triton.jit
def store_tile_bits(bits, problem, tile, rows, keep):
    """Store the bits of a tile; return how many of each row are set.

    One sum gives sixteen bits in its lower half and their number in its upper half.
    """
    BLOCK_N: tl.constexpr = keep.shape[1]
    tl.static_assert(BLOCK_N % WORD == 0)
    words, column = tl.cdiv(problem.keys, WORD), tl.arange(0, BLOCK_N)[None, :]
    marks = tl.where(keep, (1 << (column % 16)) + (1 << 16), 0)
    count = tl.zeros((keep.shape[0],), tl.int32)
    for part in tl.static_range(BLOCK_N // WORD):
        low = tl.sum(tl.where(column // 16 == 2 * part, marks, 0), axis=1)
        high = tl.sum(tl.where(column // 16 == 2 * part + 1, marks, 0), axis=1)
        word = tile * (BLOCK_N // WORD) + part
        at = bits + (problem.index.to(tl.int64) * words + word) * problem.queries + rows
        tl.store(at, (low & 0xFFFF) | (high << 16), mask=(rows < problem.queries) & (word < words))
        count += (low >> 16) + (high >> 16)
    return count


@triton.jit
def exact_cutoff(
    end, q_tile, k, k_scale, problem, rows, valid,
    PATTERN: tl.constexpr, TOPK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """The rank of each query's TOPK-th best key, and how many keys of that rank it keeps."""
    no_rank = rank_of_none(problem.bounds)
    cutoff = tl.zeros((BLOCK_M,), no_rank.dtype) + no_rank
    count, room = tl.zeros((BLOCK_M,), tl.int32), tl.zeros((BLOCK_M,), tl.int32)
    active, passes = rows < problem.queries, 0
    while tl.max(active.to(tl.int32), axis=0) > 0:
        peak = tl.zeros((BLOCK_M,), no_rank.dtype) + no_rank
        equals = tl.zeros((BLOCK_M,), tl.int32)
        for tile in range(end):
            rank = rank_tile(
                tile, q_tile, k, k_scale, problem, rows, valid, PATTERN, False, True, PRECISION, BLOCK_N, DIMS
            )
            below = tl.where((rank < cutoff[:, None]) | (passes == 0), rank, no_rank)
            higher = tl.maximum(peak, tl.max(below, axis=1))
            here = tl.sum((below == higher[:, None]).to(tl.int32), axis=1)
            equals = tl.where(higher > peak, here, equals + here)
            peak = higher
        cutoff = tl.where(active, peak, cutoff)
        room = tl.where(active, TOPK - count, room)
        count += equals
        active = active & (count < TOPK) & (peak > no_rank)
        passes += 1
    cutoff = tl.maximum(cutoff, min_rank(problem.bounds))
    return cutoff, room
