"""The embedding, one kernel per pass. Grid: members x splits, as in `kernels`.

embed_forward     x = dropout(table[token] sqrt(d) + pos_enc)
embed_backward    gradient of the table: one-hot' (dropout' g), summed over positions
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import absmax_operand, operand, product, scale_for
from semfocus.fused.tiles import dropout, is_inside, load_tile, program_tiles, store_tile, store_weight


@triton.jit(do_not_specialize=["count", "splits"])
def embed_forward(
    table, tokens, pos_enc, seeds, x, table_stride, count, length, splits, scale, threshold, factor,
    D: tl.constexpr, BLOCK_D: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """x (E, count, D) from tokens (E, count), table (E, ids, D) and pos_enc (length, D)."""
    member, _split, first, last = program_tiles(count, splits, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    base = member.to(tl.int64) * count
    for tile in range(first, last):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        token = tl.load(tokens + base + rows, mask=rows < count, other=0)
        at = table + member.to(tl.int64) * table_stride + token[:, None] * D + columns[None, :]
        vectors = tl.load(at, mask=is_inside(rows, count, D, BLOCK_D), other=0.0)
        encoding = load_tile(pos_enc, rows % length, length, D, BLOCK_D)
        value = dropout(vectors * scale + encoding, seeds, member, rows, threshold, factor, DROPOUT)
        store_tile(x + base * D, rows, count, value, D, BLOCK_D)


@triton.jit(do_not_specialize=["count", "splits"])
def embed_backward(
    grad, tokens, seeds, partial, count, splits, scale, threshold, factor,
    IDS: tl.constexpr, BLOCK_IDS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """partial (E, splits, IDS, D): the gradient of the table from grad (E, count, D), summed over each split."""
    member, split, first, last = program_tiles(count, splits, BLOCK_M)
    base = member.to(tl.int64) * count
    ids = tl.arange(0, BLOCK_IDS)
    total = tl.zeros((BLOCK_IDS, BLOCK_D), tl.float32)
    for tile in range(first, last):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        token = tl.load(tokens + base + rows, mask=rows < count, other=-1)
        g = load_tile(grad + base * D, rows, count, D, BLOCK_D)
        g = dropout(g, seeds, member, rows, threshold, factor, DROPOUT) * scale
        one_hot = operand((ids[:, None] == token[None, :]).to(tl.float32), scale_for(1.0), PRECISION)
        total += product(one_hot, absmax_operand(g, PRECISION), PRECISION)
    out = partial + (member.to(tl.int64) * splits + split) * (IDS * D)
    store_weight(out, D, total, IDS, BLOCK_IDS, D, BLOCK_D)
