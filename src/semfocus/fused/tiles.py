"""Device functions of the fused kernels: tiles of positions, weights, LayerNorm, dropout."""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import INTERPRETED, row_hash, survives

GROUP = tl.constexpr(8)


@triton.jit
def is_inside(rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK) bool: which entries of a tile are inside a matrix (count, WIDTH)."""
    inside = (rows < count)[:, None]
    if WIDTH < BLOCK:
        inside = inside & (tl.arange(0, BLOCK) < WIDTH)[None, :]
    return inside


@triton.jit
def load_tile(x, rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK): these rows of a contiguous matrix (count, WIDTH), zeros outside."""
    at = rows[:, None] * WIDTH + tl.arange(0, BLOCK)[None, :]
    return tl.load(x + at, mask=is_inside(rows, count, WIDTH, BLOCK), other=0.0)


@triton.jit
def store_tile(x, rows, count, values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store values (rows, BLOCK) in these rows of a contiguous matrix (count, WIDTH)."""
    at = rows[:, None] * WIDTH + tl.arange(0, BLOCK)[None, :]
    tl.store(x + at, values, mask=is_inside(rows, count, WIDTH, BLOCK))


@triton.jit
def load_weight(
    w, stride, ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):  # fmt: skip
    """(BLOCK_ROWS, BLOCK_COLUMNS): a matrix (ROWS, COLUMNS) with row stride `stride`, zeros outside."""
    i, j = tl.arange(0, BLOCK_ROWS)[:, None], tl.arange(0, BLOCK_COLUMNS)[None, :]
    return tl.load(w + i * stride + j, mask=(i < ROWS) & (j < COLUMNS), other=0.0)


@triton.jit
def store_weight(
    w, stride, values, ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):  # fmt: skip
    """Store values (BLOCK_ROWS, BLOCK_COLUMNS) in a matrix (ROWS, COLUMNS) with row stride `stride`."""
    i, j = tl.arange(0, BLOCK_ROWS)[:, None], tl.arange(0, BLOCK_COLUMNS)[None, :]
    tl.store(w + i * stride + j, values, mask=(i < ROWS) & (j < COLUMNS))


@triton.jit
def load_bias(b, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """(1, BLOCK_COLUMNS): a vector (COLUMNS,), zeros outside."""
    j = tl.arange(0, BLOCK_COLUMNS)
    return tl.load(b + j, mask=j < COLUMNS, other=0.0)[None, :]


@triton.jit
def store_bias(b, values, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """Store values (BLOCK_COLUMNS,) in a vector (COLUMNS,)."""
    j = tl.arange(0, BLOCK_COLUMNS)
    tl.store(b + j, values, mask=j < COLUMNS)


@triton.jit
def add_column_sums(total, x):
    """total (GROUP, width) plus the column sums of a tile, over rows that one thread holds.

    Threads exchange nothing until `tl.sum(total, axis=0)` after the last tile.
    """
    return total + tl.sum(tl.reshape(x, (x.shape[0] // GROUP, GROUP, x.shape[1])), axis=0)


@triton.jit
def layer_norm(x, inside, epsilon, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """LayerNorm of each row (without affine parameters), zero outside; and the factor 1 / std of each row."""
    centred = tl.where(inside, x - (tl.sum(x, axis=1) / D)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + epsilon)
    return tl.where(inside, centred * rstd[:, None], 0.0), rstd


@triton.jit
def layer_norm_gradient(dy, y, rstd, D: tl.constexpr):
    """The gradient of LayerNorm's input from that of its output y."""
    if INTERPRETED:  # the interpreter has no reductions of several tensors
        total, along = tl.sum(dy, axis=1), tl.sum(dy * y, axis=1)
    else:  # one reduction for both, because threads synchronise in it
        total, along = tl.reduce((dy, dy * y), 1, _add_pairs)
    return (dy - (total / D)[:, None] - y * (along / D)[:, None]) * rstd[:, None]


@triton.jit
def _add_pairs(a, b, x, y):
    return a + x, b + y


@triton.jit
def dropout(x, seeds, at, rows, threshold, factor, DROPOUT: tl.constexpr):
    """`counter_rng.dropout` with the seed seeds[at], and its gradient, which has the same mask and factor."""
    if DROPOUT:
        columns = tl.arange(0, x.shape[1])
        kept = survives(row_hash(tl.load(seeds + at), rows)[:, None], columns[None, :], threshold)
        x = tl.where(kept, x * factor, 0.0)
    return x


@triton.jit
def program_tiles(count, splits, BLOCK_M: tl.constexpr):
    """The member and split of a program, and its range of tiles: first and one past the last."""
    member, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    tiles = tl.cdiv(count, BLOCK_M)
    each = tl.cdiv(tiles, splits)
    return member, split, split * each, tl.minimum(split * each + each, tiles)
