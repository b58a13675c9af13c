"""Top-k attention over long sequences, forward: the maximum of each small group of keys, then the best groups alone.

    group_maxima     computes all scores once, on tensor cores; stores the maximum of each group of neighbouring keys
    best_groups      per query: the k best groups
    select_and_mix   per query: the scores of these groups again, the k best keys, softmax, sum of values

The k best groups by (maximum, lower number) hold the k best keys by (score, lower index): if a selected key's group
were not among them, k other groups would each hold a better key. Tile t of a stretch of BLOCK_N groups takes the t-th
key of each group, so that the running maximum over GROUP_SIZE tiles is the maximum of each group: one operation per
score and no exchange between threads. The same argument holds for octets of groups: `best_groups` finds the k best
octets first.

Shapes: M problems (batch x heads), C queries of this launch, n groups, D and Dv head dimensions of q, k and of v.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from semfocus.attention.kernels.long.queries import (
    Queries,
    is_always_kept,
    last_key,
    mask_start,
    window_start,
)
from semfocus.attention.kernels.products import operand, product, transpose
from semfocus.attention.kernels.shared import (
    MAX_INDEX,
    MINUS_INF,
    NO_RANK,
    finite,
    float_to_ordered_int,
    ordered_int_to_float,
    survives,
)

AHEAD = tl.constexpr(8)  # loads in flight
LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)  # finite float32


class Outputs(NamedTuple):
    """Where the maxima of a tile of queries are stored: addresses (BLOCK_M,), and the number of groups and queries."""

    maxima: Any
    octet_maxima: Any
    groups: Any
    chunk: Any


@triton.jit
def group_maxima(
    q, k, mask, lengths, maxima, octet_maxima,
    mask_strides, key_heads, first, chunk, queries, keys, groups, sinks, window, heads_per_key,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, ALWAYS_KEPT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """maxima (M, n, C): the largest score (before sm_scale) of each group among the keys open to selection; +inf stands
    for NaN, which ranks above all numbers, and the largest finite number for +inf.

    octet_maxima (M, n / 8, C): the largest of each octet of groups. Queries are innermost, as `best_groups` reads them.
    Grid: M x tiles of BLOCK_M queries.
    """
    tiles = tl.cdiv(chunk, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tiles - 1 - tl.program_id(0) % tiles  # the queries with the most causal keys first
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query = first + row
    inside = (row < chunk) & (query < queries)
    position = query + keys - queries
    channel = tl.arange(0, BLOCK_D)
    q_tile = tl.load(
        q + (problem * queries + query[:, None]) * D + channel[None, :],
        mask=inside[:, None] & (channel < D)[None, :], other=0.0,
    )  # fmt: skip
    k += problem // heads_per_key * keys * D
    length = keys
    if LENGTHS:
        length = tl.load(lengths + problem)
    lowest = first + tile * BLOCK_M + keys - queries
    end = last_key(lowest + BLOCK_M - 1, keys, length, CAUSAL)
    clear = last_key(lowest, keys, length, CAUSAL)  # up to here every query of the tile may look
    span: tl.constexpr = BLOCK_N * GROUP_SIZE
    near = tl.maximum(window_start(lowest, keys, window, CAUSAL), 0)
    # Stretches in which every query may select every key need no masking; with a mask there are none.
    opening = 0
    closing = clear // span
    if ALWAYS_KEPT:
        opening = tl.cdiv(sinks, span)
        closing = tl.minimum(closing, near // span)
    if MASK:
        closing = 0
    last = tl.cdiv(end, span)
    opening = tl.minimum(opening, last)
    closing = tl.maximum(tl.minimum(closing, last), opening)
    row_end = tl.where(inside, last_key(position, keys, length, CAUSAL), 0)
    maxima += problem * groups * chunk + row
    octet_maxima += problem * tl.cdiv(groups, 8) * chunk + row
    mask += mask_start(problem, key_heads, heads_per_key, mask_strides)
    mask_rows = mask + query.to(tl.int64) * mask_strides[3]
    tile_queries = Queries(inside, position, row_end, mask_rows, mask_strides[4], keys, sinks, window)
    outputs = Outputs(maxima, octet_maxima, groups, chunk)
    if ALWAYS_KEPT:
        store_stretch_maxima(
            0, opening, q_tile, k, tile_queries, outputs, D, BLOCK_D, BLOCK_M, BLOCK_N, GROUP_SIZE, False,
            CAUSAL, MASK, ALWAYS_KEPT, PRECISION,
        )  # fmt: skip
    store_stretch_maxima(
        opening, closing, q_tile, k, tile_queries, outputs, D, BLOCK_D, BLOCK_M, BLOCK_N, GROUP_SIZE, True,
        CAUSAL, MASK, ALWAYS_KEPT, PRECISION,
    )  # fmt: skip
    store_stretch_maxima(
        closing, last, q_tile, k, tile_queries, outputs, D, BLOCK_D, BLOCK_M, BLOCK_N, GROUP_SIZE, False,
        CAUSAL, MASK, ALWAYS_KEPT, PRECISION,
    )  # fmt: skip


@triton.jit
def store_stretch_maxima(
    begin, end, q_tile, k, queries, outputs,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_SIZE: tl.constexpr,
    UNMASKED: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, ALWAYS_KEPT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the group maxima of stretches begin .. end - 1; UNMASKED: every query may select every key of them."""
    lane = tl.arange(0, BLOCK_N)
    channel = tl.arange(0, BLOCK_D)
    groups, chunk, keys = outputs.groups, outputs.chunk, queries.keys
    best = tl.full((BLOCK_M, BLOCK_N), MINUS_INF, tl.float32)
    for step in range(begin * GROUP_SIZE, end * GROUP_SIZE):  # one loop, so that loads run ahead across stretches
        stretch = step // GROUP_SIZE
        key = (stretch * BLOCK_N + lane) * GROUP_SIZE + step % GROUP_SIZE
        at = k + key[:, None] * D + channel[None, :]
        if UNMASKED and D == BLOCK_D:
            k_tile = tl.load(at)
        else:
            k_tile = tl.load(at, mask=(key < keys)[:, None] & (channel < D)[None, :], other=0.0)
        scores = product(operand(q_tile, 1.0, PRECISION), transpose(operand(k_tile, 1.0, PRECISION)), PRECISION)
        if not UNMASKED:
            allowed = key[None, :] < queries.end[:, None]
            if ALWAYS_KEPT:
                allowed = allowed & ~is_always_kept(
                    key[None, :], queries.position[:, None], keys, queries.sinks, queries.window, CAUSAL
                )  # fmt: skip
            if MASK:
                at = queries.mask[:, None] + key[None, :].to(tl.int64) * queries.mask_stride
                allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
            scores = tl.where(allowed, scores, MINUS_INF)
        best = tl.maximum(best, scores, propagate_nan=tl.PropagateNan.ALL)
        if step % GROUP_SIZE == GROUP_SIZE - 1:
            number = stretch * BLOCK_N + lane
            maximum = tl.where(best != best, float("inf"), tl.minimum(best, LARGEST_FLOAT))
            tl.store(
                outputs.maxima[:, None] + number[None, :] * chunk, maximum,
                mask=queries.inside[:, None] & (number < groups)[None, :],
            )  # fmt: skip
            octet = stretch * (BLOCK_N // 8) + tl.arange(0, BLOCK_N // 8)
            octet_max = tl.max(tl.reshape(maximum, (BLOCK_M, BLOCK_N // 8, 8)), axis=2)
            tl.store(
                outputs.octet_maxima[:, None] + octet[None, :] * chunk, octet_max,
                mask=queries.inside[:, None] & (octet * 8 < groups)[None, :],
            )  # fmt: skip
            best = tl.full((BLOCK_M, BLOCK_N), MINUS_INF, tl.float32)


@triton.jit
def replace_worst(values, numbers, value, number):
    """The lists (BLOCK_K, BLOCK_M) with their worst entry replaced by (value, number) where that is better.

    Among ties the lower number is better. Entries run along registers and queries along threads, so that threads
    exchange nothing.
    """
    worst = tl.min(values, axis=0)
    last = tl.max(tl.where(values == worst[None, :], numbers, -MAX_INDEX), axis=0)
    better = (value > worst) | ((value == worst) & (number < last) & (value > MINUS_INF))
    here = (numbers == last[None, :]) & better[None, :]
    return tl.where(here, value[None, :], values), tl.where(here, number[None, :], numbers)


@triton.jit
def best_groups(
    maxima, octet_maxima, lengths, chosen, first, chunk, queries, keys, groups,
    TOPK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, GROUP_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """chosen (M, C, TOPK) int32: the k best groups of each query by (maximum, lower number), negative for none.

    Grid: M x tiles of BLOCK_M queries, one a thread.
    """
    tiles = tl.cdiv(chunk, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < chunk
    length = keys
    if LENGTHS:
        length = tl.load(lengths + problem)
    end = last_key(first + row + keys - queries, keys, length, CAUSAL)
    open_groups = tl.where(inside, tl.cdiv(tl.maximum(end, 0), GROUP_SIZE), 0)
    open_octets = tl.cdiv(open_groups, 8)
    maxima += problem * groups * chunk + row
    octet_maxima += problem * tl.cdiv(groups, 8) * chunk + row
    slot = tl.arange(0, BLOCK_K)[:, None] + tl.zeros((BLOCK_K, BLOCK_M), tl.int32)
    # Entries beyond k are never the worst. Empty entries have distinct numbers, so that one at a time is replaced.
    empty = tl.where(slot < TOPK, MINUS_INF, float("inf"))
    values, octets = empty, -1 - slot
    for start in range(0, tl.max(open_octets, axis=0), AHEAD):
        for offset in tl.static_range(AHEAD):  # unrolled, so that loads do not wait for each other
            index = start + offset
            octet_max = tl.load(octet_maxima + index * chunk, mask=index < open_octets, other=MINUS_INF)
            values, octets = replace_worst(values, octets, octet_max, tl.zeros((BLOCK_M,), tl.int32) + index)
    best, numbers = empty, -1 - slot
    for j in range(TOPK):
        octet = tl.max(tl.where(slot == j, octets, -MAX_INDEX), axis=0)
        for e in tl.static_range(8):
            number = octet * 8 + e
            value = tl.load(maxima + number * chunk, mask=(octet >= 0) & (number < open_groups), other=MINUS_INF)
            best, numbers = replace_worst(best, numbers, value, number)
    at = chosen + (problem * chunk + row)[None, :] * TOPK + slot
    tl.store(at, numbers, mask=(slot < TOPK) & inside[None, :])


@triton.jit
def pair_scores(
    q_rows, k, key, present, BLOCK_M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    """(BLOCK_M, N) float32: products of each query with its listed keys; 0 where `present` is false."""
    total = tl.zeros((BLOCK_M, N), tl.float32)
    for start in tl.static_range(0, D, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        ok = channel < D
        q_part = tl.load(q_rows[:, None] + channel[None, :], mask=ok[None, :], other=0.0).to(tl.float32)
        k_part = tl.load(
            k + key[:, :, None] * D + channel[None, None, :],
            mask=present[:, :, None] & ok[None, None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        total += tl.sum(q_part[:, None, :] * k_part, axis=2)
    return total


@triton.jit
def select_and_mix(
    q, k, v, mask, lengths, hashes, chosen, out, indices, lse,
    mask_strides, key_heads, first, chunk, queries, keys, sinks, window, heads_per_key, sm_scale, threshold, dropout,
    TOPK: tl.constexpr, BLOCK_K: tl.constexpr, LIST: tl.constexpr, BLOCK_LIST: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, GROUP_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, ALWAYS_KEPT: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """out (M, Lq, Dv), indices (M, Lq, LIST) int32 in no particular order, -1 for none, and lse (M, Lq).

    Grid: M x tiles of BLOCK_M queries.
    """
    tiles = tl.cdiv(chunk, BLOCK_M)
    problem = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    query = first + row
    inside = (row < chunk) & (query < queries)
    query = tl.where(inside, query, first)
    row = tl.where(inside, row, 0)
    position = query + keys - queries
    length = keys
    if LENGTHS:
        length = tl.load(lengths + problem)
    end = tl.maximum(tl.where(inside, last_key(position, keys, length, CAUSAL), 0), 0)
    flat = problem * queries + query
    q_rows = q + flat * D
    kv = problem // heads_per_key * keys
    k += kv * D
    v += kv * DV
    mask += mask_start(problem, key_heads, heads_per_key, mask_strides)

    entry = tl.arange(0, BLOCK_K)
    at = chosen + (problem * chunk + row)[:, None] * TOPK + entry[None, :]
    group = tl.load(at, mask=(entry < TOPK)[None, :], other=-1)
    within = tl.arange(0, GROUP_SIZE)
    key = tl.reshape(group[:, :, None] * GROUP_SIZE + within[None, None, :], (BLOCK_M, BLOCK_K * GROUP_SIZE))
    real = tl.reshape((group >= 0)[:, :, None] & (within >= 0)[None, None, :], (BLOCK_M, BLOCK_K * GROUP_SIZE))
    allowed = real & (key < end[:, None])
    if ALWAYS_KEPT:
        allowed = allowed & ~is_always_kept(key, position[:, None], keys, sinks, window, CAUSAL)
    if MASK:
        at = mask + query[:, None].to(tl.int64) * mask_strides[3] + key.to(tl.int64) * mask_strides[4]
        allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
    scores = pair_scores(q_rows, k, key, allowed, BLOCK_M, BLOCK_K * GROUP_SIZE, D, BLOCK_D) * sm_scale
    # Ordered integers, which a warp reduces in one instruction.
    rank = tl.where(allowed & (scores != MINUS_INF), float_to_ordered_int(scores), NO_RANK)

    place = tl.arange(0, BLOCK_LIST)
    listed = tl.full((BLOCK_M, BLOCK_LIST), -1, tl.int32)
    listed_scores = tl.full((BLOCK_M, BLOCK_LIST), MINUS_INF, tl.float32)
    for j in range(TOPK):
        top = tl.max(rank, axis=1)
        best = tl.min(tl.where(rank == top[:, None], key, MAX_INDEX), axis=1)
        rank = tl.where((rank == top[:, None]) & (key == best[:, None]), NO_RANK, rank)
        here = (place[None, :] == j) & (top > NO_RANK)[:, None]
        listed = tl.where(here, best[:, None], listed)
        listed_scores = tl.where(here, ordered_int_to_float(top)[:, None], listed_scores)
    if ALWAYS_KEPT:
        start = window_start(position, keys, window, CAUSAL)
        sink = place - TOPK
        near = start[:, None] + (place - TOPK - sinks)[None, :]
        extra = tl.where((sink < sinks)[None, :], sink[None, :], near)
        fits = (
            (place >= TOPK)[None, :] & (place < TOPK + sinks + window)[None, :] & (extra >= 0) & (extra < end[:, None])
        )
        fits = fits & ((sink < sinks)[None, :] | (near >= sinks))  # a sink inside the window is listed once
        if MASK:
            at = mask + query[:, None].to(tl.int64) * mask_strides[3] + extra.to(tl.int64) * mask_strides[4]
            fits = fits & (tl.load(at, mask=fits, other=0) != 0)
        more = pair_scores(q_rows, k, extra, fits, BLOCK_M, BLOCK_LIST, D, BLOCK_D) * sm_scale
        fits = fits & (more != MINUS_INF)
        listed = tl.where(fits, extra, listed)
        listed_scores = tl.where(fits, more, listed_scores)

    present = listed >= 0
    top = tl.max(listed_scores, axis=1)
    top = tl.where(top > MINUS_INF, top, 0.0)
    weights = tl.where(present, tl.exp(listed_scores - top[:, None]), 0.0)
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(lse + flat, top + tl.log(total), mask=inside)
    tl.store(indices + flat[:, None] * LIST + place[None, :], listed, mask=inside[:, None] & (place < LIST)[None, :])
    if DROPOUT:
        weights = tl.where(survives(tl.load(hashes + flat)[:, None], listed, threshold), weights, 0.0)
    for begin in tl.static_range(0, DV, BLOCK_DV):
        channel = begin + tl.arange(0, BLOCK_DV)
        values = tl.load(
            v + listed[:, :, None] * DV + channel[None, None, :],
            mask=present[:, :, None] & (channel < DV)[None, None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        mixed = tl.sum(weights[:, :, None] * values, axis=1)
        mixed = tl.where(
            finite(mixed), mixed * dropout, float("nan")
        )  # weights are at most 1, so that a value was not finite
        tl.store(
            out + flat[:, None] * DV + channel[None, :], mixed.to(out.dtype.element_ty),
            mask=inside[:, None] & (channel < DV)[None, :],
        )  # fmt: skip
