"""Everything of a block but attention, and the embedding: one kernel a pass, every product on tiles held in registers.

    embed_forward     x = dropout(table[token] sqrt(d) + wave)
    embed_backward    gradient of the table: one-hot' (dropout' g), summed over positions
    enter_forward     y = LayerNorm(x);  q, k, v = y W + b
    enter_backward    gradients of x and of W, b from those of q, k, v; the residual's gradient is added on the way
    leave_forward     u = x + dropout(mixed Wo + bo);  out = u + dropout(relu(dropout(LayerNorm(u) Wi + bi)) Wt + bt)
    leave_backward    the same backward, hidden layer computed again from u

A program is one piece of one member: it walks over tiles of T positions (N = batch x length a member) and keeps the
member's weights at hand; backward it sums their gradients over its tiles and writes one partial sum a piece, so that
nothing is added atomically and the same bits come out every time. Dropout bits are those of `counters.dropout`.

Widths: D model, H all heads together, M hidden layer, each padded to a power of two (DP, HP, MP).
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import product, row_hash, survives


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
def normed(x, inside, epsilon, D: tl.constexpr, DP: tl.constexpr):
    """LayerNorm of each row, zero where a row or column is not `inside`; and what each row was multiplied by."""
    centred = tl.where(inside, x - (tl.sum(x, axis=1) / D)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + epsilon)
    return tl.where(inside, centred * factor[:, None], 0.0), factor


@triton.jit
def norm_gradient(dy, y, factor, D: tl.constexpr):
    """The gradient of LayerNorm's input."""
    mean, along = tl.sum(dy, axis=1) / D, tl.sum(dy * y, axis=1) / D
    return (dy - mean[:, None] - y * along[:, None]) * factor[:, None]


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


@triton.jit(do_not_specialize=["count", "pieces"])
def embed_forward(
    table, tokens, waves, seeds, x, table_stride, count, length, pieces, scale, threshold, factor,
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
        wave = load_tile(waves, rows % length, length, D, DP)
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
        chosen = (ids[:, None] == token[None, :]).to(tl.float32)
        total += product(chosen, g, PRECISION)
    out = partial + (member.to(tl.int64) * pieces + piece) * (IDS * D)
    store_weight(out, D, total, IDS, IDP, D, DP)


@triton.jit(do_not_specialize=["count", "pieces"])
def enter_forward(
    x, weight, bias, q, k, v, member_stride, count, pieces, epsilon,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    member, _piece, first, last = place_of(count, pieces, T)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    wq = load_weight(weight + own, 3 * H, D, DP, H, HP)
    wk = load_weight(weight + own + H, 3 * H, D, DP, H, HP)
    wv = load_weight(weight + own + 2 * H, 3 * H, D, DP, H, HP)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        y, _factor = normed(load_tile(x + base * D, rows, count, D, DP), is_inside(rows, count, D, DP), epsilon, D, DP)
        store_tile(q + base * H, rows, count, product(y, wq, PRECISION) + load_bias(bias + own, H, HP), H, HP)
        store_tile(k + base * H, rows, count, product(y, wk, PRECISION) + load_bias(bias + own + H, H, HP), H, HP)
        store_tile(v + base * H, rows, count, product(y, wv, PRECISION) + load_bias(bias + own + 2 * H, H, HP), H, HP)


@triton.jit(do_not_specialize=["count", "pieces"])
def enter_backward(
    x, weight, dq, dk, dv, residual, dx, partial, member_stride, count, pieces, epsilon,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`residual` is the gradient that reaches x past attention; `partial` gets a row of weights and biases a piece."""
    member, piece, first, last = place_of(count, pieces, T)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    wq = tl.trans(load_weight(weight + own, 3 * H, D, DP, H, HP))
    wk = tl.trans(load_weight(weight + own + H, 3 * H, D, DP, H, HP))
    wv = tl.trans(load_weight(weight + own + 2 * H, 3 * H, D, DP, H, HP))
    dwq, dwk, dwv = tl.zeros((DP, HP), tl.float32), tl.zeros((DP, HP), tl.float32), tl.zeros((DP, HP), tl.float32)
    dbq, dbk, dbv = tl.zeros((HP,), tl.float32), tl.zeros((HP,), tl.float32), tl.zeros((HP,), tl.float32)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        inside = is_inside(rows, count, D, DP)
        y, factor = normed(load_tile(x + base * D, rows, count, D, DP), inside, epsilon, D, DP)
        g = load_tile(dq + base * H, rows, count, H, HP)
        dy = product(g, wq, PRECISION)
        dwq += product(tl.trans(y), g, PRECISION)
        dbq += tl.sum(g, axis=0)
        g = load_tile(dk + base * H, rows, count, H, HP)
        dy += product(g, wk, PRECISION)
        dwk += product(tl.trans(y), g, PRECISION)
        dbk += tl.sum(g, axis=0)
        g = load_tile(dv + base * H, rows, count, H, HP)
        dy += product(g, wv, PRECISION)
        dwv += product(tl.trans(y), g, PRECISION)
        dbv += tl.sum(g, axis=0)
        change = load_tile(residual + base * D, rows, count, D, DP) + norm_gradient(dy, y, factor, D)
        store_tile(dx + base * D, rows, count, change, D, DP)
    out = partial + (member.to(tl.int64) * pieces + piece) * ((D + 1) * 3 * H)
    store_weight(out, 3 * H, dwq, D, DP, H, HP)
    store_weight(out + H, 3 * H, dwk, D, DP, H, HP)
    store_weight(out + 2 * H, 3 * H, dwv, D, DP, H, HP)
    store_bias(out + D * 3 * H, dbq, H, HP)
    store_bias(out + D * 3 * H + H, dbk, H, HP)
    store_bias(out + D * 3 * H + 2 * H, dbv, H, HP)


@triton.jit(do_not_specialize=["count", "pieces"])
def leave_forward(
    x, mixed, wo, bo, wi, bi, wt, bt, seeds, seed_stride, middle, out, member_stride, count, pieces, epsilon,
    threshold, factor,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`middle` None: nobody will ask for gradients."""
    member, _piece, first, last = place_of(count, pieces, T)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    after, up, down = (
        load_weight(wo + own, D, H, HP, D, DP),
        load_weight(wi + own, M, D, DP, M, MP),
        load_weight(wt + own, D, M, MP, D, DP),
    )
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        a = product(load_tile(mixed + base * H, rows, count, H, HP), after, PRECISION) + load_bias(bo + own, D, DP)
        u = dropout(a, seeds, seed_stride + member, rows, threshold, factor, DROPS)
        u += load_tile(x + base * D, rows, count, D, DP)
        if middle is not None:
            store_tile(middle + base * D, rows, count, u, D, DP)
        y, _factor = normed(u, is_inside(rows, count, D, DP), epsilon, D, DP)
        h = product(y, up, PRECISION) + load_bias(bi + own, M, MP)
        h = tl.maximum(dropout(h, seeds, 2 * seed_stride + member, rows, threshold, factor, DROPS), 0.0)
        z = product(h, down, PRECISION) + load_bias(bt + own, D, DP)
        z = dropout(z, seeds, 3 * seed_stride + member, rows, threshold, factor, DROPS)
        store_tile(out + base * D, rows, count, u + z, D, DP)


@triton.jit(do_not_specialize=["count", "pieces"])
def leave_backward(
    grad, middle, mixed, wo, wi, bi, wt, seeds, seed_stride, dmiddle, dmixed, partial, member_stride, count, pieces,
    epsilon, threshold, factor,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of `mixed`, of x past attention (`dmiddle`), and of the three layers, a row a piece."""
    member, piece, first, last = place_of(count, pieces, T)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    after, up, down = (
        load_weight(wo + own, D, H, HP, D, DP),
        load_weight(wi + own, M, D, DP, M, MP),
        load_weight(wt + own, D, M, MP, D, DP),
    )
    dwo, dwi, dwt = tl.zeros((HP, DP), tl.float32), tl.zeros((DP, MP), tl.float32), tl.zeros((MP, DP), tl.float32)
    dbo, dbi, dbt = tl.zeros((DP,), tl.float32), tl.zeros((MP,), tl.float32), tl.zeros((DP,), tl.float32)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        u = load_tile(middle + base * D, rows, count, D, DP)
        y, scale = normed(u, is_inside(rows, count, D, DP), epsilon, D, DP)
        h = product(y, up, PRECISION) + load_bias(bi + own, M, MP)
        h = tl.maximum(dropout(h, seeds, 2 * seed_stride + member, rows, threshold, factor, DROPS), 0.0)
        g = load_tile(grad + base * D, rows, count, D, DP)
        dz = dropout(g, seeds, 3 * seed_stride + member, rows, threshold, factor, DROPS)
        dwt += product(tl.trans(h), dz, PRECISION)
        dbt += tl.sum(dz, axis=0)
        dh = product(dz, tl.trans(down), PRECISION)
        # What was dropped is zero, and so is not above it: one comparison stands for both gradients.
        dh = tl.where(h > 0.0, dh * factor, 0.0)
        dwi += product(tl.trans(y), dh, PRECISION)
        dbi += tl.sum(dh, axis=0)
        dy = product(dh, tl.trans(up), PRECISION)
        du = g + norm_gradient(dy, y, scale, D)
        store_tile(dmiddle + base * D, rows, count, du, D, DP)
        da = dropout(du, seeds, seed_stride + member, rows, threshold, factor, DROPS)
        da = tl.where(is_inside(rows, count, D, DP), da, 0.0)
        dwo += product(tl.trans(load_tile(mixed + base * H, rows, count, H, HP)), da, PRECISION)
        dbo += tl.sum(da, axis=0)
        store_tile(dmixed + base * H, rows, count, product(da, tl.trans(after), PRECISION), H, HP)
    out = partial + (member.to(tl.int64) * pieces + piece) * (H * D + D + D * M + M + M * D + D)
    store_weight(out, D, dwo, H, HP, D, DP)
    store_bias(out + H * D, dbo, D, DP)
    store_weight(out + H * D + D, M, dwi, D, DP, M, MP)
    store_bias(out + H * D + D + D * M, dbi, M, MP)
    store_weight(out + H * D + D + D * M + M, D, dwt, M, MP, D, DP)
    store_bias(out + H * D + D + D * M + M + M * D, dbt, D, DP)
