"""Products on tensor cores: how operands are rounded, and what that costs.

    a, b = operand(x, unit, PRECISION), operand(y, unit, PRECISION)
    z = product(a, turned(b), PRECISION)                            # x @ y.T, summed in float32

    tf32      one product of 11 bits an operand
    tf32x3    three of them: 22 bits, about as good as float32
    fp16      the same 11 bits as a 16-bit float, times a power of two, the unit, that brings the numbers into its range
    fp16x3    two such floats: 22 bits

Floats of 16 bits take half the room, and tensor cores take them either way round, while of TF32 each operand has to lie
with the summed dimension innermost: in shared memory it is written there crosswise, four bytes at a time. But they need
to know beforehand how large a number can be. What is 2**27 times smaller than that loses bits, one for each power of
two. So they are for those who can tell: a LayerNorm's output, weights, what follows from both. Anybody's q, k and v are
multiplied in TF32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import INTERPRETED

LOW = tl.constexpr(2.0**11)  # what the second float is multiplied by, so that its range is that of the first


def precision(tf32: bool, bounded: bool = False) -> str:
    """How products of float32 numbers are taken; `bounded`: how large they are is known."""
    if bounded:
        return "fp16" if tf32 else "fp16x3"
    return "tf32" if tf32 else "tf32x3"


@triton.jit
def unit_of(bound):
    """A power of two; numbers up to `bound` are less than 2**14 of them, far from what 16 bits hold at most (2**16)."""
    bits = (bound + tl.zeros((), tl.float32)).to(tl.int32, bitcast=True)  # a number may be no tensor yet
    exponent = (bits >> 23) & 0xFF
    return ((tl.maximum(exponent, 14) - 13) << 23).to(tl.float32, bitcast=True)


@triton.jit
def inverse(unit):
    """One over a power of two, exactly."""
    bits = (unit + tl.zeros((), tl.float32)).to(tl.int32, bitcast=True)
    return ((254 << 23) - bits).to(tl.float32, bitcast=True)


@triton.jit
def operand(x, unit, PRECISION: tl.constexpr):
    """x as tensor cores take it: (high, low, unit), of which x = unit (high + low / LOW). 16-bit floats are units."""
    if (PRECISION == "fp16" or PRECISION == "fp16x3") and x.dtype != tl.float16:
        x = x * inverse(unit)
    return counted_operand(x, unit, PRECISION)


@triton.jit
def counted_operand(x, unit, PRECISION: tl.constexpr):
    """The operand that is x units: for numbers that are multiplied by something anyway."""
    high, low = x, x
    if (PRECISION == "fp16" or PRECISION == "fp16x3") and x.dtype != tl.float16:
        high = x.to(tl.float16)
        low = ((x - high.to(tl.float32)) * LOW).to(tl.float16)
    return high, low, unit


@triton.jit
def searched(x, PRECISION: tl.constexpr):
    """A tile as an operand, of which nobody knows how large its entries are."""
    return operand(x, unit_of(tl.max(tl.abs(x))), PRECISION)


@triton.jit
def turned(a):
    """The transposed operand."""
    return tl.trans(a[0]), tl.trans(a[1]), a[2]


@triton.jit
def product(a, b, PRECISION: tl.constexpr, factor=1.0):
    """a @ b of two operands, times a number, summed in float32."""
    return summed(a, b, PRECISION) * (a[2] * b[2] * factor)


@triton.jit
def summed(a, b, PRECISION: tl.constexpr):
    """a @ b, counted in the product of their units."""
    return added(tl.zeros((a[0].shape[0], b[0].shape[1]), tl.float32), a, b, PRECISION)


@triton.jit
def added(total, a, b, PRECISION: tl.constexpr):
    """total + a @ b, both counted in the product of the operands' units: for sums over tiles that share them."""
    x, y = a[0], b[0]
    if PRECISION == "fp16":
        total = tl.dot(x, y, acc=total)
    elif PRECISION == "fp16x3":  # tensor cores cut off what they add to a sum, so that long sums are not for them
        total += tl.dot(x, y, acc=tl.dot(a[1], y, acc=tl.dot(x, b[1])) * (1 / LOW))
    else:
        if x.dtype != y.dtype or INTERPRETED:  # of one 16-bit type they multiply exactly; but numpy has no bfloat16
            x, y = x.to(tl.float32), y.to(tl.float32)
        total = tl.dot(x, y, acc=total, input_precision=PRECISION)
    return total
