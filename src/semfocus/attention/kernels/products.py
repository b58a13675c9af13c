"""Matrix products on tensor cores: how operands are rounded, and what that costs.

    a, b = operand(x, x_scale, PRECISION), operand(y, y_scale, PRECISION)
    z = product(a, transpose(b), PRECISION)                          # x @ y.T, accumulated in float32

    tf32      one product of 11-bit operands
    tf32x3    three of them: 22 bits, about as good as float32
    fp16      the same 11 bits as float16; a power of two, the scale, brings the numbers into its range
    fp16x3    two float16 numbers an operand: 22 bits

float16 takes half the memory of TF32. Tensor cores read float16 operands in either layout, while a TF32 operand must
have the summed dimension innermost, which costs a transposing copy in shared memory. In return the scale needs a bound
on the entries: what is 2**27 times smaller than the bound loses one bit for each power of two. So float16 serves
operands whose size is known: LayerNorm outputs, weights and what follows from both. Arbitrary q, k and v are multiplied
in TF32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import INTERPRETED

LOW_SCALE = tl.constexpr(2.0**11)  # factor of the low float16, so that it has the range of the high one


def precision(tf32: bool, bounded: bool = False) -> str:
    """The precision of float32 products; `bounded`: the largest entry of each operand is known."""
    if bounded:
        return "fp16" if tf32 else "fp16x3"
    return "tf32" if tf32 else "tf32x3"


@triton.jit
def scale_for(bound):
    """The power of two that brings numbers up to `bound` below 2**14, far from the float16 maximum (2**16)."""
    bits = (bound + tl.zeros((), tl.float32)).to(tl.int32, bitcast=True)  # `bound` may be a Python number
    exponent = (bits >> 23) & 0xFF
    return ((tl.maximum(exponent, 14) - 13) << 23).to(tl.float32, bitcast=True)


@triton.jit
def reciprocal(scale):
    """1 / scale of a power of two, exactly."""
    bits = (scale + tl.zeros((), tl.float32)).to(tl.int32, bitcast=True)
    return ((254 << 23) - bits).to(tl.float32, bitcast=True)


@triton.jit
def operand(x, scale, PRECISION: tl.constexpr):
    """x as a tensor core operand: (high, low, scale) with x = scale (high + low / LOW_SCALE).

    A float16 x is taken as already divided by the scale.
    """
    if (PRECISION == "fp16" or PRECISION == "fp16x3") and x.dtype != tl.float16:
        x = x * reciprocal(scale)
    return prescaled_operand(x, scale, PRECISION)


@triton.jit
def prescaled_operand(x, scale, PRECISION: tl.constexpr):
    """The operand scale * x: for an x whose division by the scale is part of another multiplication."""
    high, low = x, x
    if (PRECISION == "fp16" or PRECISION == "fp16x3") and x.dtype != tl.float16:
        high = x.to(tl.float16)
        low = ((x - high.to(tl.float32)) * LOW_SCALE).to(tl.float16)
    return high, low, scale


@triton.jit
def absmax_operand(x, PRECISION: tl.constexpr):
    """A tile as an operand whose scale comes from its own largest entry."""
    return operand(x, scale_for(tl.max(tl.abs(x))), PRECISION)


@triton.jit
def transpose(a):
    """The transposed operand."""
    return tl.trans(a[0]), tl.trans(a[1]), a[2]


@triton.jit
def product(a, b, PRECISION: tl.constexpr, factor=1.0):
    """factor * a @ b of two operands, accumulated in float32."""
    return unscaled_product(a, b, PRECISION) * (a[2] * b[2] * factor)


@triton.jit
def unscaled_product(a, b, PRECISION: tl.constexpr):
    """a @ b divided by the product of the operands' scales."""
    return accumulate(tl.zeros((a[0].shape[0], b[0].shape[1]), tl.float32), a, b, PRECISION)


@triton.jit
def accumulate(acc, a, b, PRECISION: tl.constexpr):
    """acc + a @ b, both divided by the product of the operands' scales: for sums over tiles that share scales."""
    x, y = a[0], b[0]
    if PRECISION == "fp16":
        acc = tl.dot(x, y, acc=acc)
    elif PRECISION == "fp16x3":  # the last add is outside tensor cores: they truncate, which shows in long sums
        acc += tl.dot(x, y, acc=tl.dot(a[1], y, acc=tl.dot(x, b[1])) * (1 / LOW_SCALE))
    else:
        if x.dtype != y.dtype or INTERPRETED:  # two operands of one 16-bit type need no cast; numpy has no bfloat16
            x, y = x.to(tl.float32), y.to(tl.float32)
        acc = tl.dot(x, y, acc=acc, input_precision=PRECISION)
    return acc
