"""Everything of a block but attention: one kernel per pass, every product on tiles held in registers.

    ln_qkv_forward       y = LayerNorm(x);  q, k, v = y W + b
    ln_qkv_backward      gradients of x and of W, b from those of q, k, v; adds the gradient of the residual
    proj_mlp_forward     u = x + dropout(attn_out Wo + bo);
                         out = u + dropout(relu(dropout(LayerNorm(u) Wi + bi)) Wt + bt)
    proj_mlp_backward    its gradients; the hidden layer is computed again from u

The grid is members x splits. A program walks over the tiles of one split of a member's positions (count = batch x
length), BLOCK_M at a time, with the member's weights at hand. Backward it sums their gradients over its tiles and
writes one partial sum per split: no sum is atomic, so that results are bitwise reproducible. (One maximum is atomic,
which is the same in any order.) Dropout bits are those of `counter_rng.dropout`.

Weights are float16 pairs (`split_fp16`) with bounds of activations; some gradients are searched for their largest
entry, which bounds the others. Widths: D model, H all heads together, MLP hidden layer; BLOCK_D, BLOCK_H and BLOCK_MLP
are these padded to powers of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from semfocus.attention.kernels.products import accumulate, operand, product, reciprocal, scale_for, transpose
from semfocus.attention.kernels.short import positions as pos
from semfocus.fused import embedding, split_fp16
from semfocus.fused.split_fp16 import load_split_fp16
from semfocus.fused.tiles import (
    GROUP,
    add_column_sums,
    dropout,
    is_inside,
    layer_norm,
    layer_norm_gradient,
    load_bias,
    load_tile,
    program_tiles,
    store_bias,
    store_tile,
    store_weight,
)


class Weights(NamedTuple):
    """Pointers to what `split_fp16_weights` fills."""

    high: Any
    low: Any
    absmax: Any
    bounds: Any


@triton.jit
def norm_operand(y, D: tl.constexpr, PRECISION: tl.constexpr):
    """A tile of LayerNorm rows as an operand: their norm is at most sqrt(D)."""
    return operand(y, scale_for(D**0.5), PRECISION)


@triton.jit
def member_weights(member, weights, D: tl.constexpr, H: tl.constexpr, MLP: tl.constexpr):
    """The weights of one member."""
    own = member.to(tl.int64) * (4 * D * H + 2 * D * MLP)
    return Weights(
        weights.high + own, weights.low + own, weights.absmax + member * split_fp16.NUM_ABSMAX,
        weights.bounds + member * split_fp16.NUM_BOUNDS,
    )  # fmt: skip


@triton.jit
def load_qkv_weights(
    weights, D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Operands of the matrices of q, k and v; they share a scale."""
    high, low, absmax = weights.high, weights.low, tl.load(weights.absmax + split_fp16.QKV)
    return (
        load_split_fp16(high, low, absmax, 3 * H, D, BLOCK_D, H, BLOCK_H, PRECISION),
        load_split_fp16(high + H, low + H, absmax, 3 * H, D, BLOCK_D, H, BLOCK_H, PRECISION),
        load_split_fp16(high + 2 * H, low + 2 * H, absmax, 3 * H, D, BLOCK_D, H, BLOCK_H, PRECISION),
    )


@triton.jit
def load_proj_mlp_weights(
    weights, D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, MLP: tl.constexpr,
    BLOCK_MLP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Operands of the output projection and of both layers of the MLP."""
    high, low, absmax = weights.high, weights.low, weights.absmax
    o, mlp_in, mlp_out = 3 * D * H, 4 * D * H, 4 * D * H + D * MLP
    return (
        load_split_fp16(
            high + o, low + o, tl.load(absmax + split_fp16.O), D, H, BLOCK_H, D, BLOCK_D, PRECISION
        ),
        load_split_fp16(
            high + mlp_in, low + mlp_in, tl.load(absmax + split_fp16.MLP_IN), MLP, D, BLOCK_D, MLP, BLOCK_MLP, PRECISION
        ),
        load_split_fp16(
            high + mlp_out, low + mlp_out, tl.load(absmax + split_fp16.MLP_OUT), D, MLP, BLOCK_MLP, D, BLOCK_D,
            PRECISION,
        ),
    )  # fmt: skip


@triton.jit
def activation_scales(bounds, max_weight, factor):
    """The scales of attention's output, whose weights are at most `max_weight`, and of the hidden layer."""
    attn_scale = scale_for(tl.load(bounds + pos.BOUND_V) * max_weight)
    return attn_scale, scale_for(tl.load(bounds + split_fp16.BOUND_HIDDEN) * factor)


@triton.jit
def store_projection(
    x, rows, count, y, weight, bias, bound, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Store y W + b; in float16 divided by the scale of its bound, as attention expects."""
    value = product(y, weight, PRECISION) + load_bias(bias, WIDTH, BLOCK)
    if x.dtype.element_ty == tl.float16:
        value = value * reciprocal(scale_for(bound))
    store_tile(x, rows, count, value, WIDTH, BLOCK)


@triton.jit(do_not_specialize=["count", "splits"])
def ln_qkv_forward(
    x, weights, qkv_bias, q, k, v, member_stride, count, splits, epsilon,
    D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, MLP: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """q, k, v (E, count, H) from x (E, count, D)."""
    member, _split, first, last = program_tiles(count, splits, BLOCK_M)
    bias, base = qkv_bias + member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    weights = member_weights(member, weights, D, H, MLP)
    wq, wk, wv = load_qkv_weights(weights, D, BLOCK_D, H, BLOCK_H, PRECISION)
    q_bound, k_bound = tl.load(weights.bounds + pos.BOUND_Q), tl.load(weights.bounds + pos.BOUND_K)
    v_bound = tl.load(weights.bounds + pos.BOUND_V)
    for tile in range(first, last):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        x_tile = load_tile(x + base * D, rows, count, D, BLOCK_D)
        y, _rstd = layer_norm(x_tile, is_inside(rows, count, D, BLOCK_D), epsilon, D, BLOCK_D)
        y = norm_operand(y, D, PRECISION)
        store_projection(q + base * H, rows, count, y, wq, bias, q_bound, H, BLOCK_H, PRECISION)
        store_projection(k + base * H, rows, count, y, wk, bias + H, k_bound, H, BLOCK_H, PRECISION)
        store_projection(v + base * H, rows, count, y, wv, bias + 2 * H, v_bound, H, BLOCK_H, PRECISION)


@triton.jit(do_not_specialize=["count", "splits"])
def ln_qkv_backward(
    x, weights, dq, dk, dv, residual, dx, partial, count, splits, epsilon,
    D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, MLP: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dx (E, count, D) from dq, dk, dv (E, count, H) and `residual`, the gradient that reaches x past attention.

    `partial` (E, splits, gradient_size) gets the gradients of W and b. The bounds of dq, dk and dv were found while
    they were computed: those that follow from other bounds are 2^30 times too large where sequences are long and few
    positions have a gradient.
    """
    member, split, first, last = program_tiles(count, splits, BLOCK_M)
    base = member.to(tl.int64) * count
    weights = member_weights(member, weights, D, H, MLP)
    wq, wk, wv = load_qkv_weights(weights, D, BLOCK_D, H, BLOCK_H, PRECISION)
    dwq = tl.zeros((BLOCK_D, BLOCK_H), tl.float32)
    dwk, dwv = tl.zeros((BLOCK_D, BLOCK_H), tl.float32), tl.zeros((BLOCK_D, BLOCK_H), tl.float32)
    dbq = tl.zeros((GROUP, BLOCK_H), tl.float32)
    dbk, dbv = dbq, dbq
    dq_scale = scale_for(tl.load(weights.bounds + pos.BOUND_DQ))
    dk_scale = scale_for(tl.load(weights.bounds + pos.BOUND_DK))
    dv_scale = scale_for(tl.load(weights.bounds + pos.BOUND_DV))
    for tile in range(first, last):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        x_tile = load_tile(x + base * D, rows, count, D, BLOCK_D)
        y, rstd = layer_norm(x_tile, is_inside(rows, count, D, BLOCK_D), epsilon, D, BLOCK_D)
        y_operand = norm_operand(y, D, PRECISION)
        gq = load_tile(dq + base * H, rows, count, H, BLOCK_H)
        gk = load_tile(dk + base * H, rows, count, H, BLOCK_H)
        gv = load_tile(dv + base * H, rows, count, H, BLOCK_H)
        dbq, dbk, dbv = add_column_sums(dbq, gq), add_column_sums(dbk, gk), add_column_sums(dbv, gv)
        gq, gk = operand(gq, dq_scale, PRECISION), operand(gk, dk_scale, PRECISION)
        gv = operand(gv, dv_scale, PRECISION)
        dy = product(gq, transpose(wq), PRECISION) + product(gk, transpose(wk), PRECISION)
        dy += product(gv, transpose(wv), PRECISION)
        dwq = accumulate(dwq, transpose(y_operand), gq, PRECISION)
        dwk = accumulate(dwk, transpose(y_operand), gk, PRECISION)
        dwv = accumulate(dwv, transpose(y_operand), gv, PRECISION)
        change = load_tile(residual + base * D, rows, count, D, BLOCK_D) + layer_norm_gradient(dy, y, rstd, D)
        store_tile(dx + base * D, rows, count, change, D, BLOCK_D)
    out = partial + (member.to(tl.int64) * splits + split) * gradient_size(D, H, MLP)
    y_scale = scale_for(D**0.5)
    store_weight(out, 3 * H, dwq * (y_scale * dq_scale), D, BLOCK_D, H, BLOCK_H)
    store_weight(out + H, 3 * H, dwk * (y_scale * dk_scale), D, BLOCK_D, H, BLOCK_H)
    store_weight(out + 2 * H, 3 * H, dwv * (y_scale * dv_scale), D, BLOCK_D, H, BLOCK_H)
    store_bias(out + D * 3 * H, tl.sum(dbq, axis=0), H, BLOCK_H)
    store_bias(out + D * 3 * H + H, tl.sum(dbk, axis=0), H, BLOCK_H)
    store_bias(out + D * 3 * H + 2 * H, tl.sum(dbv, axis=0), H, BLOCK_H)


@triton.jit(do_not_specialize=["count", "splits"])
def proj_mlp_forward(
    x, attn_out, weights, o_bias, mlp_in_bias, mlp_out_bias, seeds, seed_stride, middle, out, member_stride, count,
    splits, epsilon, threshold, factor, max_weight,
    D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, MLP: tl.constexpr,
    BLOCK_MLP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """out (E, count, D) from x (E, count, D) and attn_out (E, count, H); u goes to `middle` if that is not None.

    `max_weight` bounds the weights of attention. `seeds` (4, E) are those of dropout, with stride `seed_stride`.
    """
    member, _split, first, last = program_tiles(count, splits, BLOCK_M)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    weights = member_weights(member, weights, D, H, MLP)
    wo, wi, wt = load_proj_mlp_weights(weights, D, BLOCK_D, H, BLOCK_H, MLP, BLOCK_MLP, PRECISION)
    attn_scale, hidden_scale = activation_scales(weights.bounds, max_weight, factor)
    for tile in range(first, last):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        a = operand(load_tile(attn_out + base * H, rows, count, H, BLOCK_H), attn_scale, PRECISION)
        a = product(a, wo, PRECISION) + load_bias(o_bias + own, D, BLOCK_D)
        u = dropout(a, seeds, seed_stride + member, rows, threshold, factor, DROPOUT)
        u += load_tile(x + base * D, rows, count, D, BLOCK_D)
        if middle is not None:
            store_tile(middle + base * D, rows, count, u, D, BLOCK_D)
        y, _rstd = layer_norm(u, is_inside(rows, count, D, BLOCK_D), epsilon, D, BLOCK_D)
        h = product(norm_operand(y, D, PRECISION), wi, PRECISION) + load_bias(mlp_in_bias + own, MLP, BLOCK_MLP)
        h = tl.maximum(dropout(h, seeds, 2 * seed_stride + member, rows, threshold, factor, DROPOUT), 0.0)
        z = product(operand(h, hidden_scale, PRECISION), wt, PRECISION) + load_bias(mlp_out_bias + own, D, BLOCK_D)
        z = dropout(z, seeds, 3 * seed_stride + member, rows, threshold, factor, DROPOUT)
        store_tile(out + base * D, rows, count, u + z, D, BLOCK_D)


@triton.jit(do_not_specialize=["count", "splits"])
def proj_mlp_backward(
    grad, middle, attn_out, weights, mlp_in_bias, seeds, seed_stride, dmiddle, d_attn_out, partial,
    member_stride, count, splits, epsilon, threshold, factor, max_weight,
    D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, MLP: tl.constexpr,
    BLOCK_MLP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """d_attn_out (E, count, H) and `dmiddle` (E, count, D), the gradient of x past attention, from grad (E, count, D).

    `partial` (E, splits, gradient_size) gets the gradients of the three layers, `bounds` the bound of d_attn_out.
    """
    member, split, first, last = program_tiles(count, splits, BLOCK_M)
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * count
    weights = member_weights(member, weights, D, H, MLP)
    wo, wi, wt = load_proj_mlp_weights(weights, D, BLOCK_D, H, BLOCK_H, MLP, BLOCK_MLP, PRECISION)
    attn_scale, hidden_scale = activation_scales(weights.bounds, max_weight, factor)
    largest = tiles_absmax(grad + base * D, first, last, count, D, BLOCK_D, BLOCK_M) * factor
    dz_scale = scale_for(largest)
    dh_scale = scale_for(largest * tl.load(weights.absmax + split_fp16.MLP_OUT_ROW_NORM) * D**0.5 * factor)
    da_absmax = 0.0
    dwo, dwi = tl.zeros((BLOCK_H, BLOCK_D), tl.float32), tl.zeros((BLOCK_D, BLOCK_MLP), tl.float32)
    dwt = tl.zeros((BLOCK_MLP, BLOCK_D), tl.float32)
    dbo, dbi = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_MLP,), tl.float32)
    dbt = tl.zeros((BLOCK_D,), tl.float32)
    for tile in range(first, last):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        u = load_tile(middle + base * D, rows, count, D, BLOCK_D)
        y, rstd = layer_norm(u, is_inside(rows, count, D, BLOCK_D), epsilon, D, BLOCK_D)
        y_operand = norm_operand(y, D, PRECISION)
        h = product(y_operand, wi, PRECISION) + load_bias(mlp_in_bias + own, MLP, BLOCK_MLP)
        h = tl.maximum(dropout(h, seeds, 2 * seed_stride + member, rows, threshold, factor, DROPOUT), 0.0)
        g = load_tile(grad + base * D, rows, count, D, BLOCK_D)
        dz = dropout(g, seeds, 3 * seed_stride + member, rows, threshold, factor, DROPOUT)
        dbt += tl.sum(dz, axis=0)
        dz = operand(dz, dz_scale, PRECISION)
        dwt = accumulate(dwt, transpose(operand(h, hidden_scale, PRECISION)), dz, PRECISION)
        # A dropped entry is zero, and so not above zero: one comparison serves ReLU and dropout.
        dh = tl.where(h > 0.0, product(dz, transpose(wt), PRECISION, factor), 0.0)
        dbi += tl.sum(dh, axis=0)
        dh = operand(dh, dh_scale, PRECISION)
        dwi = accumulate(dwi, transpose(y_operand), dh, PRECISION)
        du = g + layer_norm_gradient(product(dh, transpose(wi), PRECISION), y, rstd, D)
        store_tile(dmiddle + base * D, rows, count, du, D, BLOCK_D)
        da = dropout(du, seeds, seed_stride + member, rows, threshold, factor, DROPOUT)
        da = tl.where(is_inside(rows, count, D, BLOCK_D), da, 0.0)
        dbo += tl.sum(da, axis=0)
        tile_absmax = tl.max(tl.abs(da))
        da_absmax = tl.maximum(da_absmax, tile_absmax)
        da = operand(da, scale_for(tile_absmax), PRECISION)
        a = operand(load_tile(attn_out + base * H, rows, count, H, BLOCK_H), attn_scale, PRECISION)
        dwo += product(transpose(a), da, PRECISION)
        store_tile(d_attn_out + base * H, rows, count, product(da, transpose(wo), PRECISION), H, BLOCK_H)
    bound = da_absmax * tl.load(weights.absmax + split_fp16.O_ROW_NORM) * D**0.5
    tl.atomic_max(weights.bounds + pos.BOUND_DO, bound, sem="relaxed")  # the same in any order
    out = partial + (member.to(tl.int64) * splits + split) * gradient_size(D, H, MLP) + (D + 1) * 3 * H
    store_weight(out, D, dwo, H, BLOCK_H, D, BLOCK_D)
    store_bias(out + H * D, dbo, D, BLOCK_D)
    store_weight(out + H * D + D, MLP, dwi * (scale_for(D**0.5) * dh_scale), D, BLOCK_D, MLP, BLOCK_MLP)
    store_bias(out + H * D + D + D * MLP, dbi, MLP, BLOCK_MLP)
    store_weight(out + H * D + D + D * MLP + MLP, D, dwt * (hidden_scale * dz_scale), MLP, BLOCK_MLP, D, BLOCK_D)
    store_bias(out + H * D + D + D * MLP + MLP + MLP * D, dbt, D, BLOCK_D)


@triton.jit
def gradient_size(D: tl.constexpr, H: tl.constexpr, MLP: tl.constexpr):
    """The number of weights and biases of a block: a row of `partial`, in the order of the layout."""
    return (D + 1) * 3 * H + (H + 1) * D + (D + 1) * MLP + (MLP + 1) * D


@triton.jit
def tiles_absmax(x, first, last, count, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """The largest absolute value in the tiles first .. last - 1."""
    largest = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for tile in tl.range(first, last, loop_unroll_factor=4):  # else each load would wait for the one before
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        largest = tl.maximum(largest, tl.abs(load_tile(x, rows, count, D, BLOCK_D)))
    return tl.max(largest)


KERNELS: dict[str, Any] = {
    "split_fp16_weights": split_fp16.split_fp16_weights,
    "embed_forward": embedding.embed_forward,
    "embed_backward": embedding.embed_backward,
    "ln_qkv_forward": ln_qkv_forward,
    "ln_qkv_backward": ln_qkv_backward,
    "proj_mlp_forward": proj_mlp_forward,
    "proj_mlp_backward": proj_mlp_backward,
}
