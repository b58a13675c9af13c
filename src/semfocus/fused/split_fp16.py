"""A member's weights as pairs of float16 numbers, once a pass, with bounds of weights and activations.

    high, low        (E, S) float16: the weights as operands, S = 4 D H + 2 D MLP: qkv, o, mlp_in, mlp_out, contiguous
    weight_absmax    (E, 6) float32: the largest entry of each matrix, and the largest row norm of o and mlp_out
    bounds           (E, 8) float32: bounds of q, k and v; of the gradients of attention's output, q, k and v, which
                     later kernels fill in; of the hidden layer

A row y of LayerNorm has |y| <= sqrt(D), so that |y W + b| <= sqrt(D) |column of W| + |b|: the scales of operands follow
from the weights, and no tile is searched for its largest entry.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import operand, scale_for
from semfocus.attention.kernels.short.positions import BOUND_DO, BOUND_DV, BOUND_K, BOUND_Q, BOUND_V
from semfocus.fused.tiles import load_bias, load_weight, store_weight

NUM_MATRICES = tl.constexpr(4)
NUM_ABSMAX, NUM_BOUNDS = tl.constexpr(6), tl.constexpr(8)
# Columns of `weight_absmax`; the first four also number the matrices.
QKV, O, MLP_IN, MLP_OUT, O_ROW_NORM, MLP_OUT_ROW_NORM = (tl.constexpr(column) for column in range(6))  # noqa: E741
BOUND_HIDDEN = tl.constexpr(7)  # the column of `bounds` after those of attention
GRADIENT_BOUNDS = slice(BOUND_DO.value, BOUND_DV.value + 1)


@triton.jit
def split_fp16_weights(
    qkv_weight, qkv_bias, o_weight, mlp_in_weight, mlp_in_bias, mlp_out_weight, high, low, weight_absmax, bounds,
    member_stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, MLP: tl.constexpr,
    BLOCK_MLP: tl.constexpr,
):  # fmt: skip
    """Fill high, low, weight_absmax and the bounds of activations. Grid: members x NUM_MATRICES."""
    member, matrix = tl.program_id(0) // NUM_MATRICES, tl.program_id(0) % NUM_MATRICES
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * (4 * D * H + 2 * D * MLP)
    absmax, bounds = weight_absmax + member * NUM_ABSMAX, bounds + member * NUM_BOUNDS
    high, low = high + base, low + base
    # Each branch is a function of its own: where branches meet, Triton wants one shape for one name.
    if matrix == QKV:
        split_fp16_qkv(qkv_weight + own, qkv_bias + own, high, low, absmax + QKV, bounds, D, BLOCK_D, H, BLOCK_H)
    elif matrix == O:
        at = 3 * D * H
        split_fp16_matrix(
            o_weight + own, None, high + at, low + at, absmax + O, absmax + O_ROW_NORM, H, BLOCK_H, D, BLOCK_D
        )
    elif matrix == MLP_IN:
        at = 4 * D * H
        split_fp16_matrix(
            mlp_in_weight + own, mlp_in_bias + own, high + at, low + at, absmax + MLP_IN, bounds + BOUND_HIDDEN,
            D, BLOCK_D, MLP, BLOCK_MLP,
        )  # fmt: skip
    else:
        at = 4 * D * H + D * MLP
        split_fp16_matrix(
            mlp_out_weight + own, None, high + at, low + at, absmax + MLP_OUT, absmax + MLP_OUT_ROW_NORM,
            MLP, BLOCK_MLP, D, BLOCK_D,
        )  # fmt: skip


@triton.jit
def split_fp16_qkv(
    w, b, high, low, absmax_out, bounds, D: tl.constexpr, BLOCK_D: tl.constexpr, H: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    """The matrices of q, k and v, which share a scale."""
    q, k = load_weight(w, 3 * H, D, BLOCK_D, H, BLOCK_H), load_weight(w + H, 3 * H, D, BLOCK_D, H, BLOCK_H)
    v = load_weight(w + 2 * H, 3 * H, D, BLOCK_D, H, BLOCK_H)
    absmax = tl.maximum(tl.maximum(tl.max(tl.abs(q)), tl.max(tl.abs(k))), tl.max(tl.abs(v)))
    tl.store(absmax_out, absmax)
    store_split_fp16(high, low, q, absmax, 3 * H, D, BLOCK_D, H, BLOCK_H)
    store_split_fp16(high + H, low + H, k, absmax, 3 * H, D, BLOCK_D, H, BLOCK_H)
    store_split_fp16(high + 2 * H, low + 2 * H, v, absmax, 3 * H, D, BLOCK_D, H, BLOCK_H)
    tl.store(bounds + BOUND_Q, output_bound(q, load_bias(b, H, BLOCK_H), D))
    tl.store(bounds + BOUND_K, output_bound(k, load_bias(b + H, H, BLOCK_H), D))
    tl.store(bounds + BOUND_V, output_bound(v, load_bias(b + 2 * H, H, BLOCK_H), D))


@triton.jit
def split_fp16_matrix(
    w, b, high, low, absmax_out, norm_out,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """One matrix. `norm_out` gets the bound of its outputs if there is a bias, else the largest norm of a row."""
    weight = load_weight(w, COLUMNS, ROWS, BLOCK_ROWS, COLUMNS, BLOCK_COLUMNS)
    absmax = tl.max(tl.abs(weight))
    tl.store(absmax_out, absmax)
    store_split_fp16(high, low, weight, absmax, COLUMNS, ROWS, BLOCK_ROWS, COLUMNS, BLOCK_COLUMNS)
    if b is not None:
        tl.store(norm_out, output_bound(weight, load_bias(b, COLUMNS, BLOCK_COLUMNS), ROWS))
    else:
        tl.store(norm_out, tl.sqrt(tl.max(tl.sum(weight * weight, axis=1))))


@triton.jit
def output_bound(weight, bias, D: tl.constexpr):
    """A bound of the entries of y W + b, for rows y of LayerNorm."""
    return tl.sqrt(tl.max(tl.sum(weight * weight, axis=0)) * D) + tl.max(tl.abs(bias))


@triton.jit
def store_split_fp16(
    high, low, weight, absmax, stride,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store a matrix as two float16 matrices, divided by the scale of its largest entry."""
    upper, lower, _scale = operand(weight, scale_for(absmax), "fp16x3")
    store_weight(high, stride, upper, ROWS, BLOCK_ROWS, COLUMNS, BLOCK_COLUMNS)
    store_weight(low, stride, lower, ROWS, BLOCK_ROWS, COLUMNS, BLOCK_COLUMNS)


@triton.jit
def load_split_fp16(
    high, low, absmax, stride,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A matrix that `store_split_fp16` stored, as an operand."""
    upper = load_weight(high, stride, ROWS, BLOCK_ROWS, COLUMNS, BLOCK_COLUMNS)
    lower = upper
    if PRECISION == "fp16x3":
        lower = load_weight(low, stride, ROWS, BLOCK_ROWS, COLUMNS, BLOCK_COLUMNS)
    return upper, lower, scale_for(absmax)
