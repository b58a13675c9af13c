"""The embedding, a kernel a pass; programs and pieces are those of `kernels`.

embed_forward     x = dropout(table[token] sqrt(d) + wave)
embed_backward    gradient of the table: one-hot' (dropout' g), summed over positions
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import operand, product, searched, unit_of
from semfocus.fused.tiles import dropout, is_inside, load_tile, place_of, store_tile, store_weight


@triton.jit(do_not_specialize=["count", "pieces"])
def embed_forward(
    table, tokens, pos_enc, seeds, x, table_stride, count, length, pieces, scale, threshold, factor,
    D: tl.constexpr, DP: tl.constexpr, DROPS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    member, _piece, first, last = place_of(count, pieces, T)
    columns = tl.arange(0, DP)
    base = member.to(tl.int64) * count
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        token = tl.load(tokens + base + rows, mask=rows < count, other=0)
        at = table + member.to(tl.int64) * table_stride + token[:, None] * D + columns[None, :]
        vectors = tl.load(at, mask=is_inside(rows, count, D, DP), other=0.0)
        wave = load_tile(pos_enc, rows % length, length, D, DP)
        value = dropout(vectors * scale + wave, seeds, member, rows, threshold, factor, DROPS)
        store_tile(x + base * D, rows, count, value, D, DP)


@triton.jit(do_not_specialize=["count", "pieces"])
def embed_backward(
    grad, tokens, seeds, partial, count, pieces, scale, threshold, factor,
    IDS: tl.constexpr, IDP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    member, piece, first, last = place_of(count, pieces, T)
    base = member.to(tl.int64) * count
    ids = tl.arange(0, IDP)
    total = tl.zeros((IDP, DP), tl.float32)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        token = tl.load(tokens + base + rows, mask=rows < count, other=-1)
        g = load_tile(grad + base * D, rows, count, D, DP)
        g = dropout(g, seeds, member, rows, threshold, factor, DROPS) * scale
        chosen = operand((ids[:, None] == token[None, :]).to(tl.float32), unit_of(1.0), PRECISION)
        total += product(chosen, searched(g, PRECISION), PRECISION)
    out = partial + (member.to(tl.int64) * pieces + piece) * (IDS * D)
    store_weight(out, D, total, IDS, IDP, D, DP)
