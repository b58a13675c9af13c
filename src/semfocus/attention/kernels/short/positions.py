"""Which pairs of query and key a short kernel computes: addresses, positions, masks and dropout, for all of them.

A problem is one batch row and head; `n` is its number. Leading dimensions are as many as the tensors need: each
tensor comes with its own strides for them, 0 where it is shared. `i` are queries, `j` keys, in any two shapes that
broadcast; query i stands at position i + keys - queries.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import inverse, unit_of
from semfocus.attention.kernels.shared import MINUS_INF, row_hash, survives
from semfocus.attention.kernels.short import arguments

LEAD = tl.constexpr(arguments.LEAD)
# What bounds are of: inputs, gradient of the output, and those of the inputs, which are found on the way.
OF_Q, OF_K, OF_V, OF_GRAD, OF_DQ, OF_DK, OF_DV = (tl.constexpr(place) for place in range(7))


@triton.jit
def offset(n, sizes, x, FIRST: tl.constexpr):
    """Where the part of a tensor that belongs to problem n begins, by the strides x[FIRST], x[FIRST + 1] and so on."""
    rest = n
    total = n.to(tl.int64) * 0
    for back in tl.static_range(1, len(sizes) + 1):
        size = sizes[len(sizes) - back]
        total += (rest % size).to(tl.int64) * x[FIRST + len(sizes) - back]
        rest = rest // size
    return total


@triton.jit
def start_of(x, n, sizes):
    """The address of the part of a tensor that belongs to problem n."""
    return x.data + offset(n, sizes, x, LEAD)


@triton.jit
def load_rows(x, n, sizes, rows, count, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(rows, PADDED): these rows of the matrix of problem n, zeros beyond its `count` rows and WIDTH columns."""
    columns = tl.arange(0, PADDED)
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    at = start_of(x, n, sizes) + rows[:, None] * x.row + columns[None, :] * x.column
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(x, n, sizes, rows, count, values, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The other way round."""
    columns = tl.arange(0, PADDED)
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    at = start_of(x, n, sizes) + rows[:, None] * x.row + columns[None, :] * x.column
    tl.store(at, values.to(x.data.dtype.element_ty), mask=inside)


@triton.jit
def units_at(bounds, n, sizes, dropout, scale, DV: tl.constexpr):
    """What operands of problem n are counted in: q, k, v, the output's gradient, weights, output and dS. All 1 where
    nobody knows how large they are."""
    uq, uk, uv, ug, up, uo, us = 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0
    if bounds is not None:
        weight = kept_factor(dropout)
        at = start_of(bounds, n, sizes)
        value, grad = tl.load(at + OF_V * bounds.column), tl.load(at + OF_GRAD * bounds.column)
        uq, uk = unit_of(tl.load(at + OF_Q * bounds.column)), unit_of(tl.load(at + OF_K * bounds.column))
        uv, ug, up, uo = unit_of(value), unit_of(grad), unit_of(weight), unit_of(value * weight)
        # |dP| <= DV grad value weight, and so its mean; where that is zero, scale over the unit is to be finite still.
        us = unit_of(tl.maximum(2 * DV * grad * value * weight, 2.0**-110) * tl.abs(scale))
    return uq, uk, uv, ug, up, uo, us


@triton.jit
def row_absmax(values):
    """The largest size in each row: what `note_bounds` takes."""
    return tl.max(tl.abs(values), axis=1)


@triton.jit
def note_bounds(bounds, FIRST: tl.constexpr, n, sizes, tops):
    """Tell who comes next how large the entries of some gradients are, one after the other from place FIRST on: the
    largest that any program tells, in whatever order. (Their order is that of their bits as whole numbers.)"""
    if bounds is not None:
        at = (start_of(bounds, n, sizes) + FIRST * bounds.column).to(tl.pointer_type(tl.int32), bitcast=True)
        for place in tl.static_range(len(tops)):
            top = tl.max(tops[place].to(tl.int32, bitcast=True))
            tl.atomic_max(at + place * bounds.column, top, sem="relaxed")


@triton.jit
def unit_in(x, unit):
    """What entries of a tensor are counted in: 16 bits of what is bounded are so many units."""
    return unit if x.data.dtype.element_ty == tl.float16 else 1.0


@triton.jit
def store_counted(x, n, sizes, rows, count, values, unit, bounds, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Values whose bounds are known, in 16 bits: so many units."""
    if bounds is not None and x.data.dtype.element_ty == tl.float16:
        values = values * inverse(unit)
    store_rows(x, n, sizes, rows, count, values, WIDTH, PADDED)


@triton.jit
def counted(loaded, unit, bounds):
    """The other way round: what was loaded, in float32."""
    values = loaded.to(tl.float32)
    if bounds is not None and loaded.dtype == tl.float16:
        values = values * unit
    return values


@triton.jit
def length_of(lengths, n, sizes, keys):
    """How many keys of problem n are not padding."""
    limit = keys
    if lengths is not None:
        limit = tl.maximum(tl.minimum(tl.load(start_of(lengths, n, sizes)), keys), 0).to(tl.int32)
    return limit


@triton.jit
def cut_queries(count, first, limit, RAGGED: tl.constexpr):
    """How many tiles of keys the queries from `first` on look at. RAGGED: from the length on queries are padding too,
    whose output nobody reads (zeros, unless others share their tile), and whose gradient is zero."""
    return tl.where(first < limit, count, 0) if RAGGED else count


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
def allowed(
    scores, i, j, n, sizes, queries, keys, limit, mask, MASK: tl.constexpr,
    KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr, STRICT: tl.constexpr,
):  # fmt: skip
    """Pairs that pattern, causality, length and mask leave; a selective mechanism chooses among them.

    MASK is "keys" where all queries share one row of the mask, "pairs" where not, "none" where there is none. STRICT:
    a score of -inf is no pair either; where its weight of zero says enough, one comparison a score is saved. Queries
    beyond the last are not looked at: their results are not stored, and their gradients are zeros.
    """
    p = i + (keys - queries)
    keep = j < limit
    if STRICT:
        keep = keep & (scores != MINUS_INF)
    if KIND == "banded":
        pattern = in_window(p, j, keys, WIDTH, GLOBALS, CAUSAL)
        keep = keep & (pattern | (j >= keys - GLOBALS) | (p >= keys - GLOBALS))
    if KIND == "block_local":
        pattern = (p >= 0) & (j // WIDTH == p // WIDTH)
        keep = keep & (pattern | (j >= keys - GLOBALS) | (p >= keys - GLOBALS))
    if CAUSAL:
        keep = keep & (j <= p)
    if MASK == "keys":
        keep = keep & (tl.load(start_of(mask, n, sizes) + j * mask.column, mask=j < limit, other=0) != 0)
    if MASK == "pairs":
        at = start_of(mask, n, sizes) + i * mask.row + j * mask.column
        keep = keep & (tl.load(at, mask=keep & (i < queries), other=0) != 0)
    return keep


@triton.constexpr_function
def is_plain(mask: str, kind: str, causal: bool) -> bool:
    """Whether every query sees every key that is not padding: of most tiles no pair need be asked."""
    return mask == "none" and kind == "full" and not causal


@triton.jit
def open_tiles(count, limit, MASK: tl.constexpr, KIND: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr):
    """How many of `count` tiles of keys, the first ones, hold pairs that are all allowed."""
    inside = count * 0
    if is_plain(MASK, KIND, CAUSAL):
        inside = tl.minimum(count, limit // KEYS)
    return inside


@triton.jit
def key_tiles(
    first, last, queries, keys, limit,
    KEYS: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Tiles of keys that the queries first .. last may see, as two ranges: start, end, start and end of the second."""
    p, p_last = first + keys - queries, last + keys - queries
    low, high = p * 0, p * 0 + keys
    if KIND == "banded":
        low = tl.maximum(window_start(p, keys, WIDTH, GLOBALS, CAUSAL), 0)
        high = window_start(p_last, keys, WIDTH, GLOBALS, CAUSAL) + WIDTH
    if KIND == "block_local":
        low = tl.maximum(p, 0) // WIDTH * WIDTH
        high = (tl.maximum(p_last, 0) // WIDTH + 1) * WIDTH
    if CAUSAL:
        high = tl.minimum(high, p_last + 1)
    border = tl.maximum(keys - GLOBALS, 0)
    sees_all = (p_last >= border) & (GLOBALS > 0)
    low, high = tl.where(sees_all, 0, low), tl.where(sees_all, keys, high)
    start, end = low // KEYS, tl.cdiv(tl.maximum(tl.minimum(high, limit), 0), KEYS)
    end = tl.maximum(start, end)
    shared_end = tl.cdiv(tl.maximum(limit, 0), KEYS) if GLOBALS > 0 else end
    return start, end, tl.maximum(end, border // KEYS), tl.maximum(end, shared_end)


@triton.jit
def query_tiles(
    first, last, queries, keys, limit,
    QUERIES: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, GLOBALS: tl.constexpr, CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr,
):  # fmt: skip
    """Tiles of queries that may see the keys first .. last, as two ranges likewise."""
    shift = keys - queries
    if RAGGED:
        queries = tl.minimum(queries, limit)
    low, high = first * 0, first * 0 + queries
    if KIND == "banded":
        low, high = first - WIDTH - shift, last + WIDTH + 1 - shift
        if not CAUSAL:  # queries before the first key, where they are more than keys, share its window
            low = tl.where(first < WIDTH, 0, low)
    if KIND == "block_local":
        low, high = first // WIDTH * WIDTH - shift, (last // WIDTH + 1) * WIDTH - shift
    if CAUSAL:
        low = tl.maximum(low, first - shift)
    border = tl.maximum(keys - GLOBALS, 0)
    seen_by_all = (last >= border) & (GLOBALS > 0)
    low, high = tl.where(seen_by_all, 0, low), tl.where(seen_by_all, queries, high)
    high = tl.where(first < limit, tl.minimum(high, queries), 0)
    start, end = tl.maximum(low, 0) // QUERIES, tl.cdiv(tl.maximum(high, 0), QUERIES)
    end = tl.maximum(start, end)
    everyone = tl.where(first < limit, tl.cdiv(queries, QUERIES), 0)
    global_end = everyone if GLOBALS > 0 else end
    return start, end, tl.maximum(end, tl.maximum(border - shift, 0) // QUERIES), tl.maximum(end, global_end)


@triton.jit
def tiles_in(start, end, second, second_end):
    """How many tiles two ranges hold."""
    return end - start + tl.maximum(second_end - second, 0)


@triton.jit
def tile_at(t, start, end, second):
    """The t-th tile of two ranges."""
    return tl.where(t < end - start, start + t, second + t - (end - start))


@triton.jit
def hashes_of(dropout, n, sizes, i):
    """The hash of each query's row, from which its dropout bits come; nobody looks at it without dropout."""
    hashes = i
    if dropout is not None:
        seed = tl.load(start_of(dropout, n, sizes))
        hashes = row_hash(seed, (offset(n, sizes, dropout, LEAD + len(sizes)).to(tl.int32) + i) & 0x7FFFFFFF)
    return hashes


@triton.jit
def drop(weights, hashes, j, dropout, factor=1.0):
    """Weights times a number, with some dropped and the rest scaled up."""
    return weights * thinned(kept_factor(dropout) * factor, hashes, j, dropout)


@triton.jit
def thinned(x, hashes, j, dropout):
    """Something of each pair, zero where its weight is dropped."""
    if dropout is not None:
        x = tl.where(survives(hashes, j, dropout.threshold), x, 0.0)
    return x


@triton.jit
def kept_factor(dropout):
    """What dropout multiplies the rest by."""
    factor = 1.0
    if dropout is not None:
        factor = dropout.factor
    return factor
