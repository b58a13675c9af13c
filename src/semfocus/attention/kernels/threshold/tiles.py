"""What the threshold kernels share: a tile of queries, its scores, and which pairs are kept.

Every kernel computes a score as the same product, queries first, over all channels at once, so that a score has the
same bits in the search, in the forward pass and in both backward kernels, whatever the tile it stands in: then so has
the kept set. A query keeps what is above its threshold, what equals it up to the last tie, sinks and window. NaN is
above every threshold; what it reaches is NaN in any case.

Shapes: M problems (batch x heads), D and Dv head dimensions of q, k and of v.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from semfocus.attention.kernels.long.queries import Queries, is_always_kept, last_key, mask_start, window_start
from semfocus.attention.kernels.products import operand, product, transpose
from semfocus.attention.kernels.shared import MAX_INDEX, MINUS_INF


class Sizes(NamedTuple):
    """Numbers that all programs share."""

    queries: Any
    keys: Any
    heads_per_key: Any  # query heads that share one key head
    key_heads: Any
    sinks: Any
    window: Any


class Cutoffs(NamedTuple):
    """(BLOCK_M,) what each query keeps: above `score`, and keys of that score up to number `last_tie`."""

    score: Any
    last_tie: Any


@triton.jit
def load_rows(x, row, inside, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK): rows of a matrix of this width, zeros outside."""
    channel = tl.arange(0, BLOCK)
    at = x + row.to(tl.int64)[:, None] * WIDTH + channel[None, :]
    return tl.load(at, mask=inside[:, None] & (channel < WIDTH)[None, :], other=0.0)


@triton.jit
def load_keys(x, key, keys, WIDTH: tl.constexpr, BLOCK: tl.constexpr, UNMASKED: tl.constexpr):
    """(BLOCK_N, BLOCK) of keys or values; UNMASKED: all of them exist."""
    channel = tl.arange(0, BLOCK)
    at = x + key[:, None] * WIDTH + channel[None, :]
    if UNMASKED and WIDTH == BLOCK:
        tile = tl.load(at)
    else:
        tile = tl.load(at, mask=(key < keys)[:, None] & (channel < WIDTH)[None, :], other=0.0)
    return tile


@triton.jit
def tile_scores(q_tile, k_tile, LOOK: tl.constexpr):
    """(BLOCK_M, BLOCK_N) float32 before the softmax scale: the one definition of a score."""
    PRECISION: tl.constexpr = LOOK.precision
    return product(operand(q_tile, 1.0, PRECISION), transpose(operand(k_tile, 1.0, PRECISION)), PRECISION)


@triton.jit
def tile_queries(problem, row, mask, mask_strides, lengths, sizes, LOOK: tl.constexpr):
    """What the queries `row` of a problem may look at."""
    position = row + sizes.keys - sizes.queries
    inside = row < sizes.queries
    length = sizes.keys
    if LOOK.lengths:
        length = tl.load(lengths + problem)
    end = tl.maximum(tl.where(inside, last_key(position, sizes.keys, length, LOOK.causal), 0), 0)
    mask += mask_start(problem, sizes.key_heads, sizes.heads_per_key, mask_strides)
    mask_rows = mask + tl.where(inside, row, 0).to(tl.int64) * mask_strides[3]
    return Queries(inside, position, end, mask_rows, mask_strides[4], sizes.keys, sizes.sinks, sizes.window)


@triton.jit
def tile_ranges(first, length, sizes, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOK: tl.constexpr):
    """Key tiles of the queries from `first` on: from tile 0, from `opening` to `closing` every query may select every
    key, up to `last`."""
    lowest = first + sizes.keys - sizes.queries
    end = tl.maximum(last_key(lowest + BLOCK_M - 1, sizes.keys, length, LOOK.causal), 0)
    clear = last_key(lowest, sizes.keys, length, LOOK.causal)
    opening = first * 0
    closing = clear // BLOCK_N
    if LOOK.always_kept:
        near = tl.maximum(window_start(lowest, sizes.keys, sizes.window, LOOK.causal), 0)
        opening = tl.cdiv(sizes.sinks, BLOCK_N)
        closing = tl.minimum(closing, near // BLOCK_N)
    if LOOK.mask:
        closing = first * 0
    last = tl.cdiv(end, BLOCK_N)
    opening = tl.minimum(opening, last)
    return opening, tl.maximum(tl.minimum(closing, last), opening), last


@triton.jit
def allowed_pairs(queries, key, LOOK: tl.constexpr):
    """(BLOCK_M, BLOCK_N) which keys causality, lengths and the mask leave."""
    allowed = key[None, :] < queries.end[:, None]
    if LOOK.mask:
        at = queries.mask[:, None] + key[None, :].to(tl.int64) * queries.mask_stride
        allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
    return allowed


@triton.jit
def always_pairs(queries, key, LOOK: tl.constexpr):
    """(BLOCK_M, BLOCK_N) sinks and window."""
    return is_always_kept(
        key[None, :], queries.position[:, None], queries.keys, queries.sinks, queries.window, LOOK.causal
    )  # fmt: skip


@triton.jit
def candidate_scores(q_tile, k, queries, tile, LOOK: tl.constexpr, BLOCK_N: tl.constexpr, UNMASKED: tl.constexpr):
    """(BLOCK_M, BLOCK_N) scores of a tile of keys; -inf where a key is not open to selection."""
    key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    scores = tile_scores(q_tile, load_keys(k, key, queries.keys, LOOK.d, LOOK.block_d, UNMASKED), LOOK)
    if not UNMASKED:
        allowed = allowed_pairs(queries, key, LOOK)
        if LOOK.always_kept:
            allowed = allowed & ~always_pairs(queries, key, LOOK)
        scores = tl.where(allowed, scores, MINUS_INF)
    return scores


@triton.jit
def kept_pairs(scores, queries, cutoffs, key, LOOK: tl.constexpr, UNMASKED: tl.constexpr):
    """(BLOCK_M, BLOCK_N) which pairs are kept."""
    # "Not up to", so that NaN is kept. (A score of -inf is below every cutoff, and marks a masked key.)
    tie = (scores == cutoffs.score[:, None]) & (key[None, :] <= cutoffs.last_tie[:, None])
    keep = ~(scores <= cutoffs.score[:, None]) | tie
    if not UNMASKED:
        if LOOK.always_kept:
            keep = keep | (always_pairs(queries, key, LOOK) & (scores != MINUS_INF))
        keep = keep & allowed_pairs(queries, key, LOOK)
    return keep


@triton.jit
def load_cutoffs(thresholds, last_ties, at, inside):
    """The cutoffs of queries; those that do not exist keep nothing."""
    score = tl.load(thresholds + at, mask=inside, other=float("inf"))
    return Cutoffs(score, tl.load(last_ties + at, mask=inside, other=MAX_INDEX))
