"""What a tile of queries may look at: causality, lengths, masks, and the sinks and window that are always kept.

Shared by the kernels for lists of keys (`long`) and those for thresholds (`threshold`). Query i is at position
i + keys - queries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Queries(NamedTuple):
    """What a tile of queries may look at: (BLOCK_M,) each, but for numbers that all of them share."""

    inside: Any  # whether the query exists
    position: Any
    end: Any  # one past the last key that it may look at
    mask: Any  # address of its mask
    mask_stride: Any  # between keys
    keys: Any
    sinks: Any
    window: Any


@triton.jit
def window_start(position, keys, window, CAUSAL: tl.constexpr):
    """The first of the `window` nearest keys: `Positions.window_start` without globals."""
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
def is_always_kept(key, position, keys, sinks, window, CAUSAL: tl.constexpr):
    """Whether a key is kept whatever its score, as a sink or in the window."""
    start = window_start(position, keys, window, CAUSAL)
    return (key < sinks) | ((key >= start) & (key < start + window))


@triton.jit
def mask_start(problem, key_heads, heads_per_key, strides):
    """The offset of a problem's mask; strides are those of batch, key heads and query heads, 0 where it is shared."""
    head = problem // heads_per_key
    return head // key_heads * strides[0] + head % key_heads * strides[1] + problem % heads_per_key * strides[2]
