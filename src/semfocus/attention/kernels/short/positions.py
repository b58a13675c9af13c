"""Device functions that all short kernels share: addresses, operand scales, allowed pairs, tile ranges and dropout.

A problem is one sequence of one head of one member. Each tensor has its own strides for the leading dimensions, 0 where
it is shared. `i` are query indices and `j` key indices in two shapes that broadcast; query i is at position
i + keys - queries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from semfocus.attention.kernels.products import reciprocal, scale_for
from semfocus.attention.kernels.shared import MINUS_INF, row_hash, survives
from semfocus.attention.kernels.short import arguments

LEAD = tl.constexpr(arguments.LEAD)
# Columns of `bounds`: inputs, the gradient of the output, and gradients of the inputs, which kernels fill in.
BOUND_Q, BOUND_K, BOUND_V, BOUND_DO, BOUND_DQ, BOUND_DK, BOUND_DV = (tl.constexpr(column) for column in range(7))


class Problem(NamedTuple):
    """The problem of a program, and what its pairs depend on; None where a kernel has no such input."""

    index: Any
    sizes: Any  # merged leading dimensions
    queries: Any
    keys: Any
    sm_scale: Any  # softmax scale
    mask: Any
    dropout: Any
    bounds: Any


class Scales(NamedTuple):
    """Scales of the operands (`products.operand`): q, k, v, gradient of the output, weights, output and dS."""

    q: Any
    k: Any
    v: Any
    do: Any
    p: Any
    out: Any
    ds: Any


@triton.jit
def program_tile(count, BLOCK: tl.constexpr):
    """The problem, the first row and the rows (BLOCK,) of a program: a grid of problems x tiles of `count` rows."""
    tiles = tl.cdiv(count, BLOCK)
    index, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK
    return index, first, first + tl.arange(0, BLOCK)


@triton.jit
def lead_offset(problem, x, FIRST: tl.constexpr):
    """The offset of a problem in a tensor whose leading strides are x[FIRST], x[FIRST + 1] and so on."""
    sizes, rest = problem.sizes, problem.index
    total = rest.to(tl.int64) * 0
    for back in tl.static_range(1, len(sizes) + 1):
        size = sizes[len(sizes) - back]
        total += (rest % size).to(tl.int64) * x[FIRST + len(sizes) - back]
        rest = rest // size
    return total


@triton.jit
def base_pointer(x, problem):
    """The address of a problem's part of a tensor."""
    return x.data + lead_offset(problem, x, LEAD)


@triton.jit
def load_rows(x, problem, rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK): these rows of the problem's matrix (count, WIDTH), zeros outside."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    at = base_pointer(x, problem) + rows[:, None] * x.row + columns[None, :] * x.column
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(x, problem, rows, count, values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store values (rows, BLOCK) in these rows of the problem's matrix (count, WIDTH)."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    at = base_pointer(x, problem) + rows[:, None] * x.row + columns[None, :] * x.column
    tl.store(at, values.to(x.data.dtype.element_ty), mask=inside)


@triton.jit
def operand_scales(problem, DV: tl.constexpr):
    """The scales of a problem's operands from its bounds; all 1 without bounds."""
    q, k, v, do, p, out, ds = 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0
    bounds = problem.bounds
    if bounds is not None:
        weight = dropout_factor(problem.dropout)
        at = base_pointer(bounds, problem)
        value, grad = tl.load(at + BOUND_V * bounds.column), tl.load(at + BOUND_DO * bounds.column)
        q, k = scale_for(tl.load(at + BOUND_Q * bounds.column)), scale_for(tl.load(at + BOUND_K * bounds.column))
        v, do, p, out = scale_for(value), scale_for(grad), scale_for(weight), scale_for(value * weight)
        # |dP| <= DV grad value weight, and so is its mean. Where that is zero, sm_scale / scale must stay finite.
        ds = scale_for(tl.maximum(2 * DV * grad * value * weight, 2.0**-110) * tl.abs(problem.sm_scale))
    return Scales(q, k, v, do, p, out, ds)


@triton.jit
def row_absmax(values):
    """The largest absolute value of each row: what `update_bounds` takes."""
    return tl.max(tl.abs(values), axis=1)


@triton.jit
def update_bounds(problem, FIRST: tl.constexpr, absmaxes):
    """Raise the bounds from column FIRST on to the maxima of these gradients, by atomic maxima in any order.

    Nonnegative floats compare as their bits do as integers.
    """
    bounds = problem.bounds
    if bounds is not None:
        at = (base_pointer(bounds, problem) + FIRST * bounds.column).to(tl.pointer_type(tl.int32), bitcast=True)
        for number in tl.static_range(len(absmaxes)):
            absmax = tl.max(absmaxes[number].to(tl.int32, bitcast=True))
            tl.atomic_max(at + number * bounds.column, absmax, sem="relaxed")


@triton.jit
def stored_scale(x, scale):
    """The scale of a tensor's entries in memory: float16 entries of a bounded tensor are divided by it."""
    return scale if x.data.dtype.element_ty == tl.float16 else 1.0


@triton.jit
def store_rescaled(x, problem, rows, count, values, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store values; a bounded float16 tensor holds them divided by the scale."""
    if problem.bounds is not None and x.data.dtype.element_ty == tl.float16:
        values = values * reciprocal(scale)
    store_rows(x, problem, rows, count, values, WIDTH, BLOCK)


@triton.jit
def rescaled(loaded, scale, bounds):
    """The float32 values of what `store_rescaled` stored."""
    values = loaded.to(tl.float32)
    if bounds is not None and loaded.dtype == tl.float16:
        values = values * scale
    return values


@triton.jit
def load_grad_lse(grad_lse, problem, rows):
    """(rows,) the gradient of each query's log-sum-exp; zeros without one."""
    grad = tl.zeros(rows.shape, tl.float32)
    if grad_lse is not None:
        at = base_pointer(grad_lse, problem) + rows * grad_lse.row
        grad = tl.load(at, mask=rows < problem.queries, other=0.0).to(tl.float32)
    return grad


@triton.jit
def valid_length(lengths, problem):
    """The number of keys of a problem that are not padding."""
    valid = problem.keys
    if lengths is not None:
        valid = tl.maximum(tl.minimum(tl.load(base_pointer(lengths, problem)), problem.keys), 0).to(tl.int32)
    return valid


@triton.jit
def skip_padded_queries(count, first, valid, RAGGED: tl.constexpr):
    """How many of `count` key tiles the queries from `first` on visit.

    RAGGED: queries from the length on are padding too. Their output is not read (zeros, unless their tile holds valid
    queries), and its gradient is zero.
    """
    return tl.where(first < valid, count, 0) if RAGGED else count


@triton.jit
def window_start(p, keys, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr):
    """`Positions.window_start`."""
    if CAUSAL:
        start = p - (WIDTH - 1)
    else:
        start = tl.minimum(tl.maximum(p - (WIDTH - 1) // 2, 0), tl.maximum(keys - GLOBALS - WIDTH, 0))
    return start


@triton.jit
def in_window(p, j, keys, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr):
    """`Positions.window`."""
    start = window_start(p, keys, WIDTH, GLOBALS, CAUSAL)
    return (j >= start) & (j < start + WIDTH) & (j < keys - GLOBALS)


@triton.jit
def allowed_pairs(scores, i, j, problem, valid, PATTERN: tl.constexpr, EXCLUDE_NEG_INF: tl.constexpr):
    """Pairs that pattern, causality, length and mask allow; mechanisms that rank scores select among them.

    EXCLUDE_NEG_INF: a score of -inf is not allowed either; where its weight of zero is enough, the comparison is saved.
    Queries beyond the last are not masked: their results are not stored, and their gradients are zeros.
    """
    queries, keys, mask = problem.queries, problem.keys, problem.mask
    p = i + (keys - queries)
    keep = j < valid
    if EXCLUDE_NEG_INF:
        keep = keep & (scores != MINUS_INF)
    if PATTERN.kind == "banded":
        pattern = in_window(p, j, keys, PATTERN.width, PATTERN.globals, PATTERN.causal)
        keep = keep & (pattern | (j >= keys - PATTERN.globals) | (p >= keys - PATTERN.globals))
    if PATTERN.kind == "block_local":
        pattern = (p >= 0) & (j // PATTERN.width == p // PATTERN.width)
        keep = keep & (pattern | (j >= keys - PATTERN.globals) | (p >= keys - PATTERN.globals))
    if PATTERN.causal:
        keep = keep & (j <= p)
    if PATTERN.mask == "keys":
        keep = keep & (tl.load(base_pointer(mask, problem) + j * mask.column, mask=j < valid, other=0) != 0)
    if PATTERN.mask == "pairs":
        at = base_pointer(mask, problem) + i * mask.row + j * mask.column
        keep = keep & (tl.load(at, mask=keep & (i < queries), other=0) != 0)
    return keep


@triton.constexpr_function
def is_unmasked(pattern: arguments.Pattern) -> bool:
    """Whether every query sees every key that is not padding."""
    return pattern.mask == "none" and pattern.kind == "full" and not pattern.causal


@triton.jit
def count_unmasked_tiles(count, valid, PATTERN: tl.constexpr, BLOCK_N: tl.constexpr):
    """How many of the first `count` key tiles hold only allowed pairs."""
    unmasked = count * 0
    if is_unmasked(PATTERN):
        unmasked = tl.minimum(count, valid // BLOCK_N)
    return unmasked


@triton.jit
def key_tile_ranges(first, last, problem, valid, BLOCK_N: tl.constexpr, PATTERN: tl.constexpr):
    """Key tiles that the queries first .. last may see, as two ranges: start, end, second start, second end."""
    queries, keys = problem.queries, problem.keys
    p, p_last = first + keys - queries, last + keys - queries
    low, high = p * 0, p * 0 + keys
    if PATTERN.kind == "banded":
        low = tl.maximum(window_start(p, keys, PATTERN.width, PATTERN.globals, PATTERN.causal), 0)
        high = window_start(p_last, keys, PATTERN.width, PATTERN.globals, PATTERN.causal) + PATTERN.width
    if PATTERN.kind == "block_local":
        low = tl.maximum(p, 0) // PATTERN.width * PATTERN.width
        high = (tl.maximum(p_last, 0) // PATTERN.width + 1) * PATTERN.width
    if PATTERN.causal:
        high = tl.minimum(high, p_last + 1)
    first_global = tl.maximum(keys - PATTERN.globals, 0)
    sees_all = (p_last >= first_global) & (PATTERN.globals > 0)
    low, high = tl.where(sees_all, 0, low), tl.where(sees_all, keys, high)
    start, end = low // BLOCK_N, tl.cdiv(tl.maximum(tl.minimum(high, valid), 0), BLOCK_N)
    end = tl.maximum(start, end)
    global_end = tl.cdiv(tl.maximum(valid, 0), BLOCK_N) if PATTERN.globals > 0 else end
    return start, end, tl.maximum(end, first_global // BLOCK_N), tl.maximum(end, global_end)


@triton.jit
def query_tile_ranges(
    first, last, problem, valid, BLOCK_M: tl.constexpr, PATTERN: tl.constexpr, RAGGED: tl.constexpr
):  # fmt: skip
    """Query tiles that may see the keys first .. last, as two ranges like those of `key_tile_ranges`."""
    queries, keys = problem.queries, problem.keys
    shift = keys - queries
    if RAGGED:
        queries = tl.minimum(queries, valid)
    low, high = first * 0, first * 0 + queries
    if PATTERN.kind == "banded":
        low, high = first - PATTERN.width - shift, last + PATTERN.width + 1 - shift
        if not PATTERN.causal:  # with more queries than keys, queries before the first key share its window
            low = tl.where(first < PATTERN.width, 0, low)
    if PATTERN.kind == "block_local":
        low = first // PATTERN.width * PATTERN.width - shift
        high = (last // PATTERN.width + 1) * PATTERN.width - shift
    if PATTERN.causal:
        low = tl.maximum(low, first - shift)
    first_global = tl.maximum(keys - PATTERN.globals, 0)
    seen_by_all = (last >= first_global) & (PATTERN.globals > 0)
    low, high = tl.where(seen_by_all, 0, low), tl.where(seen_by_all, queries, high)
    high = tl.where(first < valid, tl.minimum(high, queries), 0)
    start, end = tl.maximum(low, 0) // BLOCK_M, tl.cdiv(tl.maximum(high, 0), BLOCK_M)
    end = tl.maximum(start, end)
    all_tiles = tl.where(first < valid, tl.cdiv(queries, BLOCK_M), 0)
    global_end = all_tiles if PATTERN.globals > 0 else end
    return start, end, tl.maximum(end, tl.maximum(first_global - shift, 0) // BLOCK_M), tl.maximum(end, global_end)


@triton.jit
def count_tiles(ranges):
    """How many tiles two ranges hold."""
    return ranges[1] - ranges[0] + tl.maximum(ranges[3] - ranges[2], 0)


@triton.jit
def tile_at(t, ranges):
    """The t-th tile of two ranges."""
    return tl.where(t < ranges[1] - ranges[0], ranges[0] + t, ranges[2] + t - (ranges[1] - ranges[0]))


@triton.jit
def dropout_hashes(problem, i):
    """The hash of each query's row id, from which its dropout bits come; unused without dropout."""
    hashes = i
    dropout = problem.dropout
    if dropout is not None:
        seed = tl.load(base_pointer(dropout, problem))
        row_id = lead_offset(problem, dropout, LEAD + len(problem.sizes)).to(tl.int32) + i
        hashes = row_hash(seed, row_id & 0x7FFFFFFF)
    return hashes


@triton.jit
def apply_dropout(weights, hashes, j, dropout, factor=1.0):
    """factor * dropout(weights): some weights are dropped, the rest scaled up."""
    return weights * apply_dropout_mask(dropout_factor(dropout) * factor, hashes, j, dropout)


@triton.jit
def apply_dropout_mask(x, hashes, j, dropout):
    """x, zero for pairs whose weight is dropped."""
    if dropout is not None:
        x = tl.where(survives(hashes, j, dropout.threshold), x, 0.0)
    return x


@triton.jit
def dropout_factor(dropout):
    """The factor by which dropout scales up what it keeps."""
    factor = 1.0
    if dropout is not None:
        factor = dropout.factor
    return factor
