"""Everything of a block but attention: one kernel a pass, every product on tiles held in registers.

    enter_forward     y = LayerNorm(x);  q, k, v = y W + b
    enter_backward    gradients of x and of W, b from those of q, k, v; the residual's gradient is added on the way
    leave_forward     u = x + dropout(attn_out Wo + bo);  out = u + dropout(relu(dropout(LayerNorm(u) Wi + bi)) Wt + bt)
    leave_backward    the same backward, hidden layer computed again from u

A program is one piece of one member: it walks over tiles of T positions (N = batch x length a member) and keeps the
member's weights at hand; backward it sums their gradients over its tiles and writes one partial sum a piece, so that
nothing is added atomically and the same bits come out every time. (One maximum is taken so, which is the same in any
order.) Dropout bits are those of `counters.dropout`.

Weights come in 16 bits (`narrowing`), together with what bounds activations; of gradients some are searched for their
largest entry, and bound the others. Widths: D model, H all heads together, M hidden layer, padded to powers of two (DP,
HP, MP).
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import added, inverse, operand, product, turned, unit_of
from semfocus.attention.kernels.short.positions import OF_DK, OF_DQ, OF_DV, OF_GRAD, OF_K, OF_Q, OF_V
from semfocus.fused.split_fp16 import (
    BOUNDS,
    DOWN,
    FACTS,
    HIDDEN,
    IN,
    OUT,
    ROW_DOWN,
    ROW_OUT,
    UP,
    load_narrow,
)
from semfocus.fused.tiles import (
    GROUP,
    dropout,
    is_inside,
    load_bias,
    load_tile,
    norm_gradient,
    normed,
    place_of,
    store_bias,
    store_tile,
    store_weight,
    with_rows,
)


@triton.jit
def layer_normed(y, D: tl.constexpr, PRECISION: tl.constexpr):
    """A tile of LayerNorm's rows as an operand: their norm is at most sqrt(D)."""
    return operand(y, unit_of(D**0.5), PRECISION)


@triton.jit
def of_member(member, high, low, facts, bounds, D: tl.constexpr, H: tl.constexpr, M: tl.constexpr):
    """Where the weights of a member begin, and what is known about them."""
    own = member.to(tl.int64) * (4 * D * H + 2 * D * M)
    return high + own, low + own, facts + member * FACTS, bounds + member * BOUNDS


@triton.jit
def load_before(
    high, low, facts, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The three matrices before attention; they share a unit."""
    largest = tl.load(facts + IN)
    return (
        load_narrow(high, low, largest, 3 * H, D, DP, H, HP, PRECISION),
        load_narrow(high + H, low + H, largest, 3 * H, D, DP, H, HP, PRECISION),
        load_narrow(high + 2 * H, low + 2 * H, largest, 3 * H, D, DP, H, HP, PRECISION),
    )


@triton.jit
def load_after(
    high, low, facts, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr,
    MP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The three matrices behind attention."""
    o, up, down = 3 * D * H, 4 * D * H, 4 * D * H + D * M
    return (
        load_narrow(high + o, low + o, tl.load(facts + OUT), D, H, HP, D, DP, PRECISION),
        load_narrow(high + up, low + up, tl.load(facts + UP), M, D, DP, M, MP, PRECISION),
        load_narrow(high + down, low + down, tl.load(facts + DOWN), D, M, MP, D, DP, PRECISION),
    )


@triton.jit
def store_projection(
    x, rows, count, y, weight, bias, bound, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """y W + b; in 16 bits as so many units as attention expects."""
    value = product(y, weight, PRECISION) + load_bias(bias, WIDTH, PADDED)
    if x.dtype.element_ty == tl.float16:
        value = value * inverse(unit_of(bound))
    store_tile(x, rows, count, value, WIDTH, PADDED)


@triton.jit(do_not_specialize=["count", "pieces"])
def enter_forward(
    x, high, low, facts, bounds, bias, q, k, v, member_stride, count, pieces, epsilon,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    member, _piece, first, last = place_of(count, pieces, T)
    bias, base = bias + member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    high, low, facts, bounds = of_member(member, high, low, facts, bounds, D, H, M)
    wq, wk, wv = load_before(high, low, facts, D, DP, H, HP, PRECISION)
    bq, bk, bv = tl.load(bounds + OF_Q), tl.load(bounds + OF_K), tl.load(bounds + OF_V)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        y, _factor = normed(load_tile(x + base * D, rows, count, D, DP), is_inside(rows, count, D, DP), epsilon, D, DP)
        y = layer_normed(y, D, PRECISION)
        store_projection(q + base * H, rows, count, y, wq, bias, bq, H, HP, PRECISION)
        store_projection(k + base * H, rows, count, y, wk, bias + H, bk, H, HP, PRECISION)
        store_projection(v + base * H, rows, count, y, wv, bias + 2 * H, bv, H, HP, PRECISION)


@triton.jit(do_not_specialize=["count", "pieces"])
def enter_backward(
    x, high, low, facts, bounds, dq, dk, dv, residual, dx, partial, count, pieces, epsilon,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """`residual` is the gradient that reaches x past attention; `partial` gets a row of weights and biases a piece.

    What bounds dq, dk and dv was found while they were computed: what follows for them from other bounds is 2^30 times
    too large where rows are long and few have a gradient.
    """
    member, piece, first, last = place_of(count, pieces, T)
    base = member.to(tl.int64) * count
    high, low, facts, bounds = of_member(member, high, low, facts, bounds, D, H, M)
    wq, wk, wv = load_before(high, low, facts, D, DP, H, HP, PRECISION)
    dwq, dwk, dwv = tl.zeros((DP, HP), tl.float32), tl.zeros((DP, HP), tl.float32), tl.zeros((DP, HP), tl.float32)
    dbq = tl.zeros((GROUP, HP), tl.float32)
    dbk, dbv = dbq, dbq
    uq, uk = unit_of(tl.load(bounds + OF_DQ)), unit_of(tl.load(bounds + OF_DK))
    uv = unit_of(tl.load(bounds + OF_DV))
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        y, factor = normed(load_tile(x + base * D, rows, count, D, DP), is_inside(rows, count, D, DP), epsilon, D, DP)
        input = layer_normed(y, D, PRECISION)
        gq = load_tile(dq + base * H, rows, count, H, HP)
        gk = load_tile(dk + base * H, rows, count, H, HP)
        gv = load_tile(dv + base * H, rows, count, H, HP)
        dbq, dbk, dbv = with_rows(dbq, gq), with_rows(dbk, gk), with_rows(dbv, gv)
        gq, gk, gv = operand(gq, uq, PRECISION), operand(gk, uk, PRECISION), operand(gv, uv, PRECISION)
        dy = product(gq, turned(wq), PRECISION) + product(gk, turned(wk), PRECISION)
        dy += product(gv, turned(wv), PRECISION)
        dwq = added(dwq, turned(input), gq, PRECISION)
        dwk = added(dwk, turned(input), gk, PRECISION)
        dwv = added(dwv, turned(input), gv, PRECISION)
        change = load_tile(residual + base * D, rows, count, D, DP) + norm_gradient(dy, y, factor, D)
        store_tile(dx + base * D, rows, count, change, D, DP)
    out = partial + (member.to(tl.int64) * pieces + piece) * gradient_size(D, H, M)
    unit = unit_of(D**0.5)
    store_weight(out, 3 * H, dwq * (unit * uq), D, DP, H, HP)
    store_weight(out + H, 3 * H, dwk * (unit * uk), D, DP, H, HP)
    store_weight(out + 2 * H, 3 * H, dwv * (unit * uv), D, DP, H, HP)
    store_bias(out + D * 3 * H, tl.sum(dbq, axis=0), H, HP)
    store_bias(out + D * 3 * H + H, tl.sum(dbk, axis=0), H, HP)
    store_bias(out + D * 3 * H + 2 * H, tl.sum(dbv, axis=0), H, HP)


@triton.jit(do_not_specialize=["count", "pieces"])
def leave_forward(
    x, attn_out, high, low, facts, bounds, bo, bi, bt, seeds, seed_stride, middle, out, member_stride, count, pieces,
    epsilon, threshold, factor, weight,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`weight` is what no weight of attention exceeds. `middle` None: nobody will ask for gradients."""
    member, _piece, first, last = place_of(count, pieces, T)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    high, low, facts, bounds = of_member(member, high, low, facts, bounds, D, H, M)
    after, up, down = load_after(high, low, facts, D, DP, H, HP, M, MP, PRECISION)
    um, uh = unit_of(tl.load(bounds + OF_V) * weight), unit_of(tl.load(bounds + HIDDEN) * factor)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        a = operand(load_tile(attn_out + base * H, rows, count, H, HP), um, PRECISION)
        a = product(a, after, PRECISION) + load_bias(bo + own, D, DP)
        u = dropout(a, seeds, seed_stride + member, rows, threshold, factor, DROPS)
        u += load_tile(x + base * D, rows, count, D, DP)
        if middle is not None:
            store_tile(middle + base * D, rows, count, u, D, DP)
        y, _factor = normed(u, is_inside(rows, count, D, DP), epsilon, D, DP)
        h = product(layer_normed(y, D, PRECISION), up, PRECISION) + load_bias(bi + own, M, MP)
        h = tl.maximum(dropout(h, seeds, 2 * seed_stride + member, rows, threshold, factor, DROPS), 0.0)
        z = product(operand(h, uh, PRECISION), down, PRECISION) + load_bias(bt + own, D, DP)
        z = dropout(z, seeds, 3 * seed_stride + member, rows, threshold, factor, DROPS)
        store_tile(out + base * D, rows, count, u + z, D, DP)


@triton.jit(do_not_specialize=["count", "pieces"])
def leave_backward(
    grad, middle, attn_out, high, low, facts, bounds, bi, seeds, seed_stride, dmiddle, d_attn_out, partial,
    member_stride, count, pieces, epsilon, threshold, factor, weight,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of `attn_out`, of x past attention (`dmiddle`), and of the three layers, a row a piece; and what no
    entry of `d_attn_out` exceeds."""
    member, piece, first, last = place_of(count, pieces, T)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    high, low, facts, bounds = of_member(member, high, low, facts, bounds, D, H, M)
    after, up, down = load_after(high, low, facts, D, DP, H, HP, M, MP, PRECISION)
    um, uh = unit_of(tl.load(bounds + OF_V) * weight), unit_of(tl.load(bounds + HIDDEN) * factor)
    largest = largest_of(grad + base * D, first, last, count, D, DP, T) * factor
    uz, udh = unit_of(largest), unit_of(largest * tl.load(facts + ROW_DOWN) * D**0.5 * factor)
    top = 0.0
    dwo, dwi, dwt = tl.zeros((HP, DP), tl.float32), tl.zeros((DP, MP), tl.float32), tl.zeros((MP, DP), tl.float32)
    dbo, dbi, dbt = tl.zeros((DP,), tl.float32), tl.zeros((MP,), tl.float32), tl.zeros((DP,), tl.float32)
    for tile in range(first, last):
        rows = tile * T + tl.arange(0, T)
        u = load_tile(middle + base * D, rows, count, D, DP)
        y, scale = normed(u, is_inside(rows, count, D, DP), epsilon, D, DP)
        input = layer_normed(y, D, PRECISION)
        h = product(input, up, PRECISION) + load_bias(bi + own, M, MP)
        h = tl.maximum(dropout(h, seeds, 2 * seed_stride + member, rows, threshold, factor, DROPS), 0.0)
        g = load_tile(grad + base * D, rows, count, D, DP)
        dz = dropout(g, seeds, 3 * seed_stride + member, rows, threshold, factor, DROPS)
        dbt += tl.sum(dz, axis=0)
        dz = operand(dz, uz, PRECISION)
        dwt = added(dwt, turned(operand(h, uh, PRECISION)), dz, PRECISION)
        # What was dropped is zero, and so is not above it: one comparison stands for both gradients.
        dh = tl.where(h > 0.0, product(dz, turned(down), PRECISION, factor), 0.0)
        dbi += tl.sum(dh, axis=0)
        dh = operand(dh, udh, PRECISION)
        dwi = added(dwi, turned(input), dh, PRECISION)
        du = g + norm_gradient(product(dh, turned(up), PRECISION), y, scale, D)
        store_tile(dmiddle + base * D, rows, count, du, D, DP)
        da = dropout(du, seeds, seed_stride + member, rows, threshold, factor, DROPS)
        da = tl.where(is_inside(rows, count, D, DP), da, 0.0)
        dbo += tl.sum(da, axis=0)
        steepest = tl.max(tl.abs(da))
        top = tl.maximum(top, steepest)
        da = operand(da, unit_of(steepest), PRECISION)
        a = operand(load_tile(attn_out + base * H, rows, count, H, HP), um, PRECISION)
        dwo += product(turned(a), da, PRECISION)
        store_tile(d_attn_out + base * H, rows, count, product(da, turned(after), PRECISION), H, HP)
    largest = top * tl.load(facts + ROW_OUT) * D**0.5
    tl.atomic_max(bounds + OF_GRAD, largest, sem="relaxed")  # the same in whatever order
    out = partial + (member.to(tl.int64) * pieces + piece) * gradient_size(D, H, M) + (D + 1) * 3 * H
    store_weight(out, D, dwo, H, HP, D, DP)
    store_bias(out + H * D, dbo, D, DP)
    store_weight(out + H * D + D, M, dwi * (unit_of(D**0.5) * udh), D, DP, M, MP)
    store_bias(out + H * D + D + D * M, dbi, M, MP)
    store_weight(out + H * D + D + D * M + M, D, dwt * (uh * uz), M, MP, D, DP)
    store_bias(out + H * D + D + D * M + M + M * D, dbt, D, DP)


@triton.jit
def gradient_size(D: tl.constexpr, H: tl.constexpr, M: tl.constexpr):
    """All weights and biases of a block: a row of `partial`, those before attention first."""
    return (D + 1) * 3 * H + (H + 1) * D + (D + 1) * M + (M + 1) * D


@triton.jit
def largest_of(x, first, last, count, D: tl.constexpr, DP: tl.constexpr, T: tl.constexpr):
    """The largest entry of all tiles of a program."""
    largest = tl.zeros((T, DP), tl.float32)
    for tile in tl.range(first, last, loop_unroll_factor=4):  # else each load would wait for the one before
        largest = tl.maximum(largest, tl.abs(load_tile(x, tile * T + tl.arange(0, T), count, D, DP)))
    return tl.max(largest)
