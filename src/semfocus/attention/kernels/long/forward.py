"""Top-k attention over long rows, forward: the maximum of each small group of keys, then the best groups alone.

    group_maxima     all scores once, on tensor cores; of each group of G neighbouring keys only the maximum is written
    best_groups      per query: the k best groups
    select_and_mix   per query: the k * G scores of those again, the k best keys, softmax, sum of values

The k best groups by (maximum, lower number) hold the k best keys by (score, lower index): were a chosen key's group
not among them, k other groups would each hold a better key. Tile t of a stretch of BN groups takes the t-th key of each
group, so that the running maximum of G tiles is the maximum of each group: one operation a score and no exchange
between threads.

The same holds one level up, for octets of groups: `best_groups` looks for the k best octets first.

Shapes: M problems (batch x heads), C queries of this launch, n groups, BN groups a stretch, F stretches, D width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import operand, product, turned
from semfocus.attention.kernels.shared import (
    BEYOND,
    MINUS_INF,
    NO_KEY,
    finite,
    ordered,
    survives,
    unordered,
)

AHEAD = tl.constexpr(8)  # loads in flight
LARGEST = tl.constexpr(3.4028234663852886e38)  # finite float32


@triton.jit
def window_start(position, keys, window, CAUSAL: tl.constexpr):
    """The first of the `window` nearest keys, as `Positions.window_start` has it."""
    if CAUSAL:
        start = position - (window - 1)
    else:
        last = tl.maximum(keys - window, 0)
        start = tl.minimum(tl.maximum(position - (window - 1) // 2, 0), last)
    return start


@triton.jit
def last_key(position, keys, length, CAUSAL: tl.constexpr):
    """One past the last key that a query at `position` may look at."""
    end = tl.minimum(length, keys)
    if CAUSAL:
        end = tl.minimum(end, position + 1)
    return end


@triton.jit
def is_forced(key, position, keys, sinks, window, CAUSAL: tl.constexpr):
    """Whether sinks or window keep this key in any case."""
    start = window_start(position, keys, window, CAUSAL)
    return (key < sinks) | ((key >= start) & (key < start + window))


@triton.jit
def mask_start(inputs, key_heads, heads_per_key, stride_b, stride_h, stride_g):
    """Where the mask of a problem begins; a mask for all heads is not copied for each, its stride is 0."""
    head = inputs // heads_per_key
    return head // key_heads * stride_b + head % key_heads * stride_h + inputs % heads_per_key * stride_g


@triton.jit
def group_maxima(
    q, k, mask, lengths, maxima, leads,
    stride_mask_b, stride_mask_h, stride_mask_g, stride_mask_q, stride_mask_k, key_heads,
    first, chunk, queries, keys, groups, sinks, window, heads_per_key,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, FORCED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """maxima (M, n, C): the largest score (unscaled) of each group among the keys open to selection; +inf stands for
    NaN, which is above all numbers, and the largest finite number for +inf.

    leads (M, n / 8, C): the largest of each octet of groups. Rows lie side by side, as `best_groups` reads them.
    """
    tiles = tl.cdiv(chunk, BM)
    inputs = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tiles - 1 - tl.program_id(0) % tiles  # the longest causal rows first
    row = tile * BM + tl.arange(0, BM)
    query = first + row
    inside = (row < chunk) & (query < queries)
    position = query + keys - queries
    channel = tl.arange(0, DP)
    q_tile = tl.load(
        q + (inputs * queries + query[:, None]) * D + channel[None, :],
        mask=inside[:, None] & (channel < D)[None, :], other=0.0,
    )  # fmt: skip
    k += inputs // heads_per_key * keys * D
    length = keys
    if LENGTHS:
        length = tl.load(lengths + inputs)
    lowest = first + tile * BM + keys - queries
    end = last_key(lowest + BM - 1, keys, length, CAUSAL)
    clear = last_key(lowest, keys, length, CAUSAL)  # up to here every query of the tile may look
    span: tl.constexpr = BN * G
    near = tl.maximum(window_start(lowest, keys, window, CAUSAL), 0)
    # Stretches where every query may choose every key go the short way; with a mask there are none.
    opening = 0
    closing = clear // span
    if FORCED:
        opening = tl.cdiv(sinks, span)
        closing = tl.minimum(closing, near // span)
    if MASK:
        closing = 0
    last = tl.cdiv(end, span)
    opening = tl.minimum(opening, last)
    closing = tl.maximum(tl.minimum(closing, last), opening)
    row_limit = tl.where(inside, last_key(position, keys, length, CAUSAL), 0)
    maxima += inputs * groups * chunk + row
    leads += inputs * tl.cdiv(groups, 8) * chunk + row
    mask += mask_start(inputs, key_heads, heads_per_key, stride_mask_b, stride_mask_h, stride_mask_g)
    mask_rows = mask + query.to(tl.int64) * stride_mask_q
    if FORCED:
        _maxima_of_stretches(
            0, opening, q_tile, k, maxima, leads, inside, position, row_limit, mask_rows, stride_mask_k, keys, groups,
            chunk, sinks, window, D, DP, BM, BN, G, False, CAUSAL, MASK, FORCED, PRECISION,
        )  # fmt: skip
    _maxima_of_stretches(
        opening, closing, q_tile, k, maxima, leads, inside, position, row_limit, mask_rows, stride_mask_k, keys, groups,
        chunk, sinks, window, D, DP, BM, BN, G, True, CAUSAL, MASK, FORCED, PRECISION,
    )  # fmt: skip
    _maxima_of_stretches(
        closing, last, q_tile, k, maxima, leads, inside, position, row_limit, mask_rows, stride_mask_k, keys, groups,
        chunk, sinks, window, D, DP, BM, BN, G, False, CAUSAL, MASK, FORCED, PRECISION,
    )  # fmt: skip


@triton.jit
def _maxima_of_stretches(
    begin, end, q_tile, k, maxima, leads, inside, position, row_limit, mask_rows, stride_mask_k, keys, groups,
    chunk, sinks, window,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, UNMASKED: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, FORCED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the group maxima of stretches begin .. end - 1; UNMASKED: every key of them is open to every query."""
    lane = tl.arange(0, BN)
    channel = tl.arange(0, DP)
    best = tl.full((BM, BN), MINUS_INF, tl.float32)
    for step in range(begin * G, end * G):  # one loop over all tiles, so that loads run ahead across stretches
        stretch = step // G
        key = (stretch * BN + lane) * G + step % G
        at = k + key[:, None] * D + channel[None, :]
        if UNMASKED and D == DP:
            k_tile = tl.load(at)
        else:
            k_tile = tl.load(at, mask=(key < keys)[:, None] & (channel < D)[None, :], other=0.0)
        scores = product(operand(q_tile, 1.0, PRECISION), turned(operand(k_tile, 1.0, PRECISION)), PRECISION)
        if not UNMASKED:
            allowed = key[None, :] < row_limit[:, None]
            if FORCED:
                allowed = allowed & ~is_forced(key[None, :], position[:, None], keys, sinks, window, CAUSAL)
            if MASK:
                seen = tl.load(mask_rows[:, None] + key[None, :] * stride_mask_k, mask=allowed, other=0)
                allowed = allowed & (seen != 0)
            scores = tl.where(allowed, scores, MINUS_INF)
        best = tl.maximum(best, scores, propagate_nan=tl.PropagateNan.ALL)
        if step % G == G - 1:
            number = stretch * BN + lane
            found = tl.where(best != best, float("inf"), tl.minimum(best, LARGEST))
            tl.store(
                maxima[:, None] + number[None, :] * chunk, found, mask=inside[:, None] & (number < groups)[None, :]
            )
            octet = stretch * (BN // 8) + tl.arange(0, BN // 8)
            lead = tl.max(tl.reshape(found, (BM, BN // 8, 8)), axis=2)
            tl.store(
                leads[:, None] + octet[None, :] * chunk, lead, mask=inside[:, None] & (octet * 8 < groups)[None, :]
            )
            best = tl.full((BM, BN), MINUS_INF, tl.float32)


@triton.jit
def replace_worst(values, numbers, value, number):
    """The lists (KP, R) with their worst entry exchanged for (value, number) where that is better; ties: lower number.

    Entries run along registers and rows along threads, so that nothing here is exchanged between threads.
    """
    worst = tl.min(values, axis=0)
    last = tl.max(tl.where(values == worst[None, :], numbers, -BEYOND), axis=0)
    better = (value > worst) | ((value == worst) & (number < last) & (value > MINUS_INF))
    here = (numbers == last[None, :]) & better[None, :]
    return tl.where(here, value[None, :], values), tl.where(here, number[None, :], numbers)


@triton.jit
def best_groups(
    maxima, leads, lengths, chosen, first, chunk, queries, keys, groups,
    K: tl.constexpr, KP: tl.constexpr, R: tl.constexpr, G: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """chosen (M, C, K) int32: the k best groups of each row by (maximum, lower number), negative where none is left."""
    tiles = tl.cdiv(chunk, R)
    inputs = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * R + tl.arange(0, R)
    inside = row < chunk
    length = keys
    if LENGTHS:
        length = tl.load(lengths + inputs)
    end = last_key(first + row + keys - queries, keys, length, CAUSAL)
    open_groups = tl.where(inside, tl.cdiv(tl.maximum(end, 0), G), 0)
    open_octets = tl.cdiv(open_groups, 8)
    maxima += inputs * groups * chunk + row
    leads += inputs * tl.cdiv(groups, 8) * chunk + row
    slot = tl.arange(0, KP)[:, None] + tl.zeros((KP, R), tl.int32)
    # Positions beyond k are never the worst; empty ones have numbers of their own, so that one at a time is filled.
    empty = tl.where(slot < K, MINUS_INF, float("inf"))
    values, octets = empty, -1 - slot
    for start in range(0, tl.max(open_octets, axis=0), AHEAD):
        for offset in tl.static_range(AHEAD):  # unrolled, so that loads do not wait for each other
            index = start + offset
            lead = tl.load(leads + index * chunk, mask=index < open_octets, other=MINUS_INF)
            values, octets = replace_worst(values, octets, lead, tl.zeros((R,), tl.int32) + index)
    best, numbers = empty, -1 - slot
    for j in range(K):
        octet = tl.max(tl.where(slot == j, octets, -BEYOND), axis=0)
        for e in tl.static_range(8):
            number = octet * 8 + e
            value = tl.load(maxima + number * chunk, mask=(octet >= 0) & (number < open_groups), other=MINUS_INF)
            best, numbers = replace_worst(best, numbers, value, number)
    at = chosen + (inputs * chunk + row)[None, :] * K + slot
    tl.store(at, numbers, mask=(slot < K) & inside[None, :])


@triton.jit
def pair_scores(q_rows, k, key, present, R: tl.constexpr, N: tl.constexpr, D: tl.constexpr, DC: tl.constexpr):
    """(R, N) float32 dot products of each row's query with the keys it lists; 0 where `present` is false."""
    total = tl.zeros((R, N), tl.float32)
    for start in tl.static_range(0, D, DC):
        channel = start + tl.arange(0, DC)
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
    stride_mask_b, stride_mask_h, stride_mask_g, stride_mask_q, stride_mask_k, key_heads,
    first, chunk, queries, keys, sinks, window, heads_per_key, scale, threshold, dropout,
    K: tl.constexpr, KP: tl.constexpr, LIST: tl.constexpr, NP: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, DC: tl.constexpr, DVC: tl.constexpr,
    R: tl.constexpr, G: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, FORCED: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """out (M, Lq, Dv), indices (M, Lq, LIST) int32 in no particular order, -1 = none, and lse (M, Lq)."""
    tiles = tl.cdiv(chunk, R)
    inputs = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * R + tl.arange(0, R)
    query = first + row
    inside = (row < chunk) & (query < queries)
    query = tl.where(inside, query, first)
    row = tl.where(inside, row, 0)
    position = query + keys - queries
    length = keys
    if LENGTHS:
        length = tl.load(lengths + inputs)
    end = tl.maximum(tl.where(inside, last_key(position, keys, length, CAUSAL), 0), 0)
    flat = inputs * queries + query
    q_rows = q + flat * D
    kv = inputs // heads_per_key * keys
    k += kv * D
    v += kv * DV
    mask += mask_start(inputs, key_heads, heads_per_key, stride_mask_b, stride_mask_h, stride_mask_g)

    entry = tl.arange(0, KP)
    at = chosen + (inputs * chunk + row)[:, None] * K + entry[None, :]
    group = tl.load(at, mask=(entry < K)[None, :], other=-1)
    within = tl.arange(0, G)
    key = tl.reshape(group[:, :, None] * G + within[None, None, :], (R, KP * G))
    real = tl.reshape((group >= 0)[:, :, None] & (within >= 0)[None, None, :], (R, KP * G))
    allowed = real & (key < end[:, None])
    if FORCED:
        allowed = allowed & ~is_forced(key, position[:, None], keys, sinks, window, CAUSAL)
    if MASK:
        at = mask + query[:, None].to(tl.int64) * stride_mask_q + key * stride_mask_k
        allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
    scores = pair_scores(q_rows, k, key, allowed, R, KP * G, D, DC) * scale
    # As integers of the same order, which a whole warp compares in one instruction.
    rank = tl.where(allowed & (scores != MINUS_INF), ordered(scores), NO_KEY)

    place = tl.arange(0, NP)
    listed = tl.full((R, NP), -1, tl.int32)
    listed_scores = tl.full((R, NP), MINUS_INF, tl.float32)
    for j in range(K):
        top = tl.max(rank, axis=1)
        best = tl.min(tl.where(rank == top[:, None], key, BEYOND), axis=1)
        rank = tl.where((rank == top[:, None]) & (key == best[:, None]), NO_KEY, rank)
        here = (place[None, :] == j) & (top > NO_KEY)[:, None]
        listed = tl.where(here, best[:, None], listed)
        listed_scores = tl.where(here, unordered(top)[:, None], listed_scores)
    if FORCED:
        start = window_start(position, keys, window, CAUSAL)
        sink = place - K
        near = start[:, None] + (place - K - sinks)[None, :]
        extra = tl.where((sink < sinks)[None, :], sink[None, :], near)
        fits = (place >= K)[None, :] & (place < K + sinks + window)[None, :] & (extra >= 0) & (extra < end[:, None])
        fits = fits & ((sink < sinks)[None, :] | (near >= sinks))  # a sink inside the window counts once
        if MASK:
            at = mask + query[:, None].to(tl.int64) * stride_mask_q + extra * stride_mask_k
            fits = fits & (tl.load(at, mask=fits, other=0) != 0)
        more = pair_scores(q_rows, k, extra, fits, R, NP, D, DC) * scale
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
    for begin in tl.static_range(0, DV, DVC):
        channel = begin + tl.arange(0, DVC)
        values = tl.load(
            v + listed[:, :, None] * DV + channel[None, None, :],
            mask=present[:, :, None] & (channel < DV)[None, None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        mixed = tl.sum(weights[:, :, None] * values, axis=1)
        mixed = tl.where(finite(mixed), mixed * dropout, float("nan"))  # weights are at most 1: a value was not finite
        tl.store(
            out + flat[:, None] * DV + channel[None, :], mixed.to(out.dtype.element_ty),
            mask=inside[:, None] & (channel < DV)[None, :],
        )  # fmt: skip
