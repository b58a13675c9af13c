"""Each query's threshold: a number between its k-th best score and the next, or that score and the last tie it keeps.

    sample    a few tiles of keys: mean and deviation of a query's scores, from which the first guess follows
    count     one pass over all keys: how many reach each of three guesses; the threshold is between two of them
    lanes     once at most RANKS keys are missing: one pass that keeps the four best keys of each tile column below the
              upper guess; the missing ones are among these unless four of them stand in one column
    span      where counts do not get there soon, because scores repeat: one pass for the lowest and the highest score
              in between; if these are one, it is the k-th
    ties      only where several keys have the threshold's score and not all are kept: the number of the last one

All in one kernel, which repeats `count` and `lanes` until every query of its tile is done: of random scores three or
four passes, whatever k. Guesses follow the counts; from pass MANY on they halve the range of floats, so that no data
takes more than a few dozen passes. Memory: two numbers a query. A score that is NaN or infinite counts for nothing
here: its query gets NaN in any case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from semfocus.attention.kernels.long.queries import window_start
from semfocus.attention.kernels.shared import (
    MAX_INDEX,
    MINUS_INF,
    finite,
    float_to_ordered_int,
    ordered_int_to_float,
)
from semfocus.attention.kernels.short.select import LOWEST_FLOAT, merge_top4
from semfocus.attention.kernels.threshold.tiles import (
    Sizes,
    candidate_scores,
    load_rows,
    tile_queries,
    tile_ranges,
)

RANKS = tl.constexpr(16)  # missing keys that `lanes` looks for
SAMPLED_TILES = tl.constexpr(32)
FEW = tl.constexpr(4)  # passes after which every other one is `span`
MANY = tl.constexpr(8)  # passes after which the search halves
LOWEST_RANK = tl.constexpr(-(0x7F7FFFFF + 1))  # the ordered integer of LOWEST_FLOAT
INFINITE_RANK = tl.constexpr(0x7F800000)


class Bracket(NamedTuple):
    """(BLOCK_M,) where the thresholds are: ordered integers low < high, and how many keys reach each."""

    low: Any
    high: Any
    low_count: Any
    high_count: Any


class Found(NamedTuple):
    """(BLOCK_M,) thresholds as ordered integers, how many of the keys that equal it are kept (0: all), and whether the
    query is still without one."""

    rank: Any
    ties: Any
    active: Any


@triton.jit(do_not_specialize=["most", "sinks", "window"])
def find_thresholds(
    q, k, mask, lengths, thresholds, last_ties, passes, mask_strides, key_heads, queries, keys, heads_per_key, sinks,
    window, most,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """thresholds (M, Lq) float32, last_ties (M, Lq) int32, and passes (M, tiles) int32 that each tile took.

    `most` is k. Grid: M x tiles of BLOCK_M queries.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    number = tiles - 1 - tl.program_id(0) % tiles  # the queries with the most causal keys first
    first = number * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)
    sizes = Sizes(queries, keys, heads_per_key, key_heads, sinks, window)
    looking = tile_queries(problem, row, mask, mask_strides, lengths, sizes, LOOK)
    length = keys
    if LOOK.lengths:
        length = tl.load(lengths + problem)
    ranges = tile_ranges(first, length, sizes, BLOCK_M, BLOCK_N, LOOK)
    q_tile = load_rows(q + problem * queries * LOOK.d, row, looking.inside, LOOK.d, LOOK.block_d)
    k += problem // heads_per_key * keys * LOOK.d

    candidates = count_candidates(looking, length, sizes, LOOK)
    rank = tl.full((BLOCK_M,), LOWEST_RANK, tl.int32)  # which keeps all
    found = Found(rank, rank * 0, candidates > most)
    bracket = Bracket(rank, rank * 0 + INFINITE_RANK, candidates.to(tl.float32), candidates.to(tl.float32) * 0.0)
    mean, deviation = sample_scores(q_tile, k, looking, ranges[2], LOOK, BLOCK_N)
    taken, counted = first * 0, first * 0 + 1  # passes; whether the last one was `count`
    while tl.max(found.active.to(tl.int32), axis=0) > 0:
        missing = tl.where(found.active, most - bracket.high_count, 0.0)
        if (tl.max(missing, axis=0) <= RANKS) & (counted == 1):
            bracket, found = search_lanes(
                bracket, found, missing, most, q_tile, k, looking, ranges, LOOK, BLOCK_M, BLOCK_N
            )
            counted = 0
        elif (taken >= FEW) & (taken % 2 == 0):
            bracket, found = search_span(bracket, found, most, q_tile, k, looking, ranges, LOOK, BLOCK_M, BLOCK_N)
        else:
            guesses = place_guesses(bracket, most, mean, deviation, taken, counted, ranges[2], LOOK)
            counts = count_reaching(guesses, q_tile, k, looking, ranges, LOOK, BLOCK_M, BLOCK_N)
            bracket, found = narrow(bracket, found, guesses, counts, most)
            counted = 1
        taken += 1
    threshold = ordered_int_to_float(found.rank)
    last = tl.full((BLOCK_M,), MAX_INDEX, tl.int32)
    if tl.max(found.ties, axis=0) > 0:
        last = find_last_tie(threshold, found.ties, q_tile, k, looking, ranges[2], LOOK, BLOCK_M, BLOCK_N)
        taken += 1
    at = problem * queries + row
    tl.store(thresholds + at, threshold, mask=looking.inside)
    tl.store(last_ties + at, last, mask=looking.inside)
    tl.store(passes + problem * tiles + number, taken)


@triton.jit
def count_candidates(looking, length, sizes, LOOK: tl.constexpr):
    """(BLOCK_M,) how many keys a query may select; with a mask at most so many."""
    count = looking.end
    if LOOK.always_kept:
        start = window_start(looking.position, sizes.keys, sizes.window, LOOK.causal)
        sinks = tl.minimum(sizes.sinks, looking.end)
        near = tl.minimum(start + sizes.window, looking.end) - tl.maximum(tl.maximum(start, 0), sinks)
        count = count - sinks - tl.maximum(near, 0)
    return count


@triton.jit
def sample_scores(q_tile, k, looking, last, LOOK: tl.constexpr, BLOCK_N: tl.constexpr):
    """(BLOCK_M,) mean and deviation of the scores of some SAMPLED_TILES tiles, evenly spaced."""
    total = tl.zeros(looking.end.shape, tl.float32)
    squares, count = total, total
    for tile in range(0, last, sample_stride(last)):
        scores = candidate_scores(q_tile, k, looking, tile, LOOK, BLOCK_N, False)
        real = finite(scores)
        count += tl.sum(real.to(tl.float32), axis=1)
        total += tl.sum(tl.where(real, scores, 0.0), axis=1)
        squares += tl.sum(tl.where(real, scores * scores, 0.0), axis=1)
    count = tl.maximum(count, 1.0)
    mean = total / count
    return mean, tl.sqrt(tl.maximum(squares / count - mean * mean, 0.0)) + tl.abs(mean) * 1e-6


@triton.jit
def sample_stride(last):
    return tl.maximum(tl.cdiv(last, SAMPLED_TILES), 2)


@triton.jit
def normal_quantile(share):
    """z such that a standard normal number exceeds it with this probability (Abramowitz and Stegun 26.2.23)."""
    share = tl.minimum(tl.maximum(share, 1e-7), 1.0 - 1e-7)
    t = tl.sqrt(-2.0 * tl.log(tl.minimum(share, 1.0 - share)))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return tl.where(share < 0.5, z, -z)


@triton.jit
def place_guesses(bracket, most, mean, deviation, taken, counted, last, LOOK: tl.constexpr):
    """Three ordered integers (BLOCK_M,) inside the bracket, increasing: where the k-th score may be."""
    low, high = ordered_int_to_float(bracket.low), ordered_int_to_float(bracket.high)
    between = tl.maximum(bracket.low_count - bracket.high_count, 1.0)
    if taken == 0:  # from the sample, as if scores were normal
        spread = 1.5 * tl.sqrt(most * sample_stride(last).to(tl.float32))
        one = mean + deviation * normal_quantile((most + spread) / between)
        two = mean + deviation * normal_quantile(tl.maximum(most - 0.5 * RANKS, 0.5 * most) / between)
        three = mean + deviation * normal_quantile(tl.maximum(most - spread, 0.3) / between)
        if LOOK.mask:  # how many keys are left is not known: do k reach anything at all?
            one = tl.zeros(one.shape, tl.float32) + LOWEST_FLOAT
    else:  # by the line between both ends, a deviation of its error to each side
        wanted = tl.maximum(most - bracket.high_count - 0.5 * RANKS, 0.5)
        share = tl.minimum(wanted / between, 0.98)
        error = 1.3 * tl.sqrt(tl.maximum(between * share * (1.0 - share), 1.0))
        slope = (high - low) / between
        one = low + slope * tl.maximum(between - wanted - error, 0.5)
        two = low + slope * tl.maximum(tl.minimum(between - wanted, between - 0.5), 0.5)
        three = low + slope * tl.minimum(between - wanted + error, between - 0.5)
        if_open = bracket.low == LOWEST_RANK
        open_above = bracket.high == INFINITE_RANK
        one = tl.where(open_above, low + 0.05 * deviation, tl.where(if_open, high - 2.0 * deviation, one))
        two = tl.where(open_above, low + 0.3 * deviation, tl.where(if_open, high - 0.3 * deviation, two))
        three = tl.where(open_above, low + 2.0 * deviation, tl.where(if_open, high - 0.05 * deviation, three))
    one, two, three = float_to_ordered_int(one), float_to_ordered_int(two), float_to_ordered_int(three)
    if (taken >= MANY) | (taken % 4 == 3):  # whatever the counts say: halve
        quarter = (bracket.high >> 2) - (bracket.low >> 2)
        two, three = bracket.low + quarter, bracket.low + 2 * quarter
    if (counted == 0) | (taken >= MANY) | (taken % 4 == 3):  # are there only equals?
        one = bracket.low
    lowest, highest = bracket.low + 1, bracket.high - 1
    one = tl.minimum(tl.maximum(one, lowest), highest)
    two = tl.minimum(tl.maximum(two, one), highest)
    return one, two, tl.minimum(tl.maximum(three, two), highest)


@triton.jit
def count_reaching(
    guesses, q_tile, k, looking, ranges, LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Three (BLOCK_M,) numbers of keys whose scores reach each guess."""
    one, two, three = guesses
    floats = ordered_int_to_float(one), ordered_int_to_float(two), ordered_int_to_float(three)
    zero = tl.zeros((BLOCK_M,), tl.int32)
    counts = zero, zero, zero
    counts = count_tiles(0, ranges[0], counts, floats, q_tile, k, looking, LOOK, BLOCK_N, False)
    counts = count_tiles(ranges[0], ranges[1], counts, floats, q_tile, k, looking, LOOK, BLOCK_N, True)
    return count_tiles(ranges[1], ranges[2], counts, floats, q_tile, k, looking, LOOK, BLOCK_N, False)


@triton.jit
def count_tiles(
    begin, end, counts, guesses, q_tile, k, looking, LOOK: tl.constexpr, BLOCK_N: tl.constexpr, UNMASKED: tl.constexpr
):  # fmt: skip
    """The counts after key tiles begin .. end - 1. One sum gives all three: ten bits each."""
    tl.static_assert(BLOCK_N < 1024)
    one, two, three = counts
    low, middle, high = guesses
    for tile in range(begin, end):
        scores = candidate_scores(q_tile, k, looking, tile, LOOK, BLOCK_N, UNMASKED)
        marks = tl.where(scores >= low[:, None], 1, 0)
        marks = tl.where(scores >= middle[:, None], 1 + (1 << 10), marks)
        marks = tl.where(scores >= high[:, None], 1 + (1 << 10) + (1 << 20), marks)
        total = tl.sum(marks, axis=1)
        one += total & 1023
        two += (total >> 10) & 1023
        three += total >> 20
    return one, two, three


@triton.jit
def narrow(bracket, found, guesses, counts, most):
    """Bracket and thresholds after a count."""
    low, high, low_count, high_count = bracket.low, bracket.high, bracket.low_count, bracket.high_count
    rank, ties, active = found.rank, found.ties, found.active
    for i in tl.static_range(3):
        count = counts[i].to(tl.float32)
        rank = tl.where(active & (counts[i] == most), guesses[i], rank)
        above = (counts[i] >= most) & (guesses[i] > low)
        below = (counts[i] < most) & (guesses[i] < high)
        low, low_count = tl.where(above, guesses[i], low), tl.where(above, count, low_count)
        high, high_count = tl.where(below, guesses[i], high), tl.where(below, count, high_count)
    exact = (counts[0] == most) | (counts[1] == most) | (counts[2] == most)
    equals = active & ~exact & (low + 1 >= high)  # all keys between have the score `low`
    rank = tl.where(equals, low, rank)
    ties = tl.where(equals, most - high_count.to(tl.int32), ties)
    return Bracket(low, high, low_count, high_count), Found(rank, ties, active & ~exact & ~equals)


@triton.jit
def search_span(
    bracket, found, most, q_tile, k, looking, ranges,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Bracket and thresholds after a look at the lowest and the highest score in between; the one below the upper guess
    becomes the middle one of the next count."""
    low, high = ordered_int_to_float(bracket.low), ordered_int_to_float(bracket.high)
    lowest = tl.full((BLOCK_M,), float("inf"), tl.float32)
    highest = tl.full((BLOCK_M,), MINUS_INF, tl.float32)
    for tile in range(ranges[2]):
        scores = candidate_scores(q_tile, k, looking, tile, LOOK, BLOCK_N, False)
        inside = (scores >= low[:, None]) & (scores < high[:, None])
        lowest = tl.minimum(lowest, tl.min(tl.where(inside, scores, float("inf")), axis=1))
        highest = tl.maximum(highest, tl.max(tl.where(inside, scores, MINUS_INF), axis=1))
    some = found.active & (lowest <= highest)
    same = some & (lowest == highest)
    floor, ceiling = float_to_ordered_int(lowest), float_to_ordered_int(highest)
    rank = tl.where(same, floor, found.rank)
    ties = tl.where(same, most - bracket.high_count.to(tl.int32), found.ties)
    return (
        Bracket(
            tl.where(some, floor, bracket.low), tl.where(some, ceiling + 1, bracket.high), bracket.low_count,
            bracket.high_count,
        ),
        Found(rank, ties, found.active & ~same),
    )  # fmt: skip


@triton.jit
def search_lanes(
    bracket, found, missing, most, q_tile, k, looking, ranges,
    LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Bracket and thresholds after a look at the best keys below the upper guess, of which `missing` are kept."""
    high = ordered_int_to_float(bracket.high)
    best = tl.full((BLOCK_M, BLOCK_N), MINUS_INF, tl.float32)
    lanes = best, best, best, best
    lanes = lane_tiles(0, ranges[0], lanes, high, q_tile, k, looking, LOOK, BLOCK_N, False)
    lanes = lane_tiles(ranges[0], ranges[1], lanes, high, q_tile, k, looking, LOOK, BLOCK_N, True)
    best, second, third, fourth = lane_tiles(
        ranges[1], ranges[2], lanes, high, q_tile, k, looking, LOOK, BLOCK_N, False
    )
    deepest = tl.max(fourth, axis=1)
    # Score by score from the best one down: `above` keys are better than `score`, and `reached` are at least as good.
    score = tl.full((BLOCK_M,), float("inf"), tl.float32)
    reached = tl.zeros((BLOCK_M,), tl.float32)
    above = reached
    rounds = tl.max(missing, axis=0).to(tl.int32) + 4  # a column holds four of one score
    for _ in range(rounds):
        peak = tl.max(best, axis=1)
        going = ((reached < missing) | (peak == score)) & (peak > MINUS_INF)
        above = tl.where(going & (peak != score), reached, above)
        score = tl.where(going, peak, score)
        here = (best == peak[:, None]) & going[:, None]
        reached += tl.sum(here.to(tl.float32), axis=1)
        best = tl.where(here, second, best)
        second = tl.where(here, third, second)
        third = tl.where(here, fourth, third)
        fourth = tl.where(here, MINUS_INF, fourth)
    few = reached < missing  # fewer keys than k: all are kept
    hidden = ~few & (deepest >= score)  # a column may hold a fifth
    done = found.active & ~hidden
    rank = tl.where(few, LOWEST_RANK, float_to_ordered_int(score))
    all_kept = few | (reached == missing)
    ties = tl.where(all_kept, 0, (missing - above).to(tl.int32))
    # Half way to the next score, so that the last bit of a product decides nothing unless it decides the order.
    half = 0.5 * score + 0.5 * tl.maximum(tl.max(best, axis=1), LOWEST_FLOAT)
    apart = (reached == missing) & (half < score) & (half > tl.max(best, axis=1))
    final = tl.where(apart, float_to_ordered_int(half), rank)
    low = tl.where(hidden, tl.maximum(rank, bracket.low), bracket.low)
    low_count = tl.where(hidden, tl.maximum(bracket.high_count + reached, most + 1.0), bracket.low_count)
    return (
        Bracket(low, bracket.high, low_count, bracket.high_count),
        Found(tl.where(done, final, found.rank), tl.where(done, ties, found.ties), found.active & hidden),
    )


@triton.jit
def lane_tiles(
    begin, end, lanes, high, q_tile, k, looking, LOOK: tl.constexpr, BLOCK_N: tl.constexpr, UNMASKED: tl.constexpr
):  # fmt: skip
    """Of each tile column the four best scores below `high`, after key tiles begin .. end - 1."""
    best, second, third, fourth = lanes
    for tile in range(begin, end):
        scores = candidate_scores(q_tile, k, looking, tile, LOOK, BLOCK_N, UNMASKED)
        scores = tl.where(scores < high[:, None], scores, MINUS_INF)  # NaN too
        best, second, third, fourth = merge_top4(best, second, third, fourth, scores)
    return best, second, third, fourth


@triton.jit
def find_last_tie(
    threshold, ties, q_tile, k, looking, last, LOOK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """(BLOCK_M,) the key that is number `ties` among those whose score is the threshold; the largest index if 0."""
    found = tl.full((BLOCK_M,), MAX_INDEX, tl.int32)
    seen = tl.zeros((BLOCK_M,), tl.int32)
    for tile in range(last):
        scores = candidate_scores(q_tile, k, looking, tile, LOOK, BLOCK_N, False)
        equal = (scores == threshold[:, None]).to(tl.int32)
        now = seen + tl.sum(equal, axis=1)
        crossing = (seen < ties) & (now >= ties)
        if tl.max(crossing.to(tl.int32), axis=0) > 0:
            number = seen[:, None] + tl.cumsum(equal, axis=1)
            key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            here = tl.where((equal == 1) & (number == ties[:, None]), key[None, :], -1)
            found = tl.where(crossing, tl.max(here, axis=1), found)
        seen = now
    return found
