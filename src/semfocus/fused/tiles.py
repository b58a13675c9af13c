"""Pieces that the fused kernels are made of: tiles of positions, weights, LayerNorm, dropout."""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import INTERPRETED, row_hash, survives

GROUP = tl.constexpr(8)


@triton.jit
def is_inside(rows, count, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Which entries of a tile exist."""
    inside = (rows < count)[:, None]
    if WIDTH < PADDED:
        inside = inside & (tl.arange(0, PADDED) < WIDTH)[None, :]
    return inside


@triton.jit
def load_tile(x, rows, count, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(rows, PADDED) of a matrix with `count` rows, WIDTH columns and no gaps; zeros beyond."""
    at = rows[:, None] * WIDTH + tl.arange(0, PADDED)[None, :]
    return tl.load(x + at, mask=is_inside(rows, count, WIDTH, PADDED), other=0.0)


@triton.jit
def store_tile(x, rows, count, values, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The other way round."""
    at = rows[:, None] * WIDTH + tl.arange(0, PADDED)[None, :]
    tl.store(x + at, values, mask=is_inside(rows, count, WIDTH, PADDED))


@triton.jit
def load_weight(w, stride, ROWS: tl.constexpr, RP: tl.constexpr, COLUMNS: tl.constexpr, CP: tl.constexpr):
    """(RP, CP): a matrix of ROWS and COLUMNS whose rows lie `stride` apart."""
    i, j = tl.arange(0, RP)[:, None], tl.arange(0, CP)[None, :]
    return tl.load(w + i * stride + j, mask=(i < ROWS) & (j < COLUMNS), other=0.0)


@triton.jit
def store_weight(w, stride, values, ROWS: tl.constexpr, RP: tl.constexpr, COLUMNS: tl.constexpr, CP: tl.constexpr):
    i, j = tl.arange(0, RP)[:, None], tl.arange(0, CP)[None, :]
    tl.store(w + i * stride + j, values, mask=(i < ROWS) & (j < COLUMNS))


@triton.jit
def load_bias(b, COLUMNS: tl.constexpr, CP: tl.constexpr):
    j = tl.arange(0, CP)
    return tl.load(b + j, mask=j < COLUMNS, other=0.0)[None, :]


@triton.jit
def store_bias(b, values, COLUMNS: tl.constexpr, CP: tl.constexpr):
    j = tl.arange(0, CP)
    tl.store(b + j, values, mask=j < COLUMNS)


@triton.jit
def with_rows(total, x):
    """Column sums so far (GROUP, width), and those of a tile: of rows that one thread holds, so that threads need not
    wait for each other until `tl.sum(total, axis=0)` behind the last tile."""
    return total + tl.sum(tl.reshape(x, (x.shape[0] // GROUP, GROUP, x.shape[1])), axis=0)


@triton.jit
def normed(x, inside, epsilon, D: tl.constexpr, DP: tl.constexpr):
    """LayerNorm of each row, zero where a row or column is not `inside`; and what each row was multiplied by."""
    centred = tl.where(inside, x - (tl.sum(x, axis=1) / D)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + epsilon)
    return tl.where(inside, centred * factor[:, None], 0.0), factor


@triton.jit
def norm_gradient(dy, y, factor, D: tl.constexpr):
    """The gradient of LayerNorm's input."""
    if INTERPRETED:  # which has no such reductions
        total, along = tl.sum(dy, axis=1), tl.sum(dy * y, axis=1)
    else:  # both at once, since threads wait for each other in it
        total, along = tl.reduce((dy, dy * y), 1, _both_added)
    return (dy - (total / D)[:, None] - y * (along / D)[:, None]) * factor[:, None]


@triton.jit
def _both_added(a, b, x, y):
    return a + x, b + y


@triton.jit
def dropout(x, seeds, at, rows, threshold, factor, DROPS: tl.constexpr):
    """`counters.dropout` by the seed that stands at `at`, and its gradient: the same entries fall, the same factor."""
    if DROPS:
        columns = tl.arange(0, x.shape[1])
        kept = survives(row_hash(tl.load(seeds + at), rows)[:, None], columns[None, :], threshold)
        x = tl.where(kept, x * factor, 0.0)
    return x


@triton.jit
def place_of(count, pieces, T: tl.constexpr):
    """The member and piece of a program, and its tiles: first and one past the last."""
    member, piece = tl.program_id(0) // pieces, tl.program_id(0) % pieces
    tiles = tl.cdiv(count, T)
    each = tl.cdiv(tiles, pieces)
    return member, piece, piece * each, tl.minimum(piece * each + each, tiles)
