"""What all kernels share: the order of scores, dropout bits, fast exponentials, and Triton's interpreter.

This module needs Triton, as every kernel module does; they are imported at the first launch. With TRITON_INTERPRET=1
set before Triton is first imported, kernels run on the CPU in numpy: slow, and enough to test them anywhere.
"""

from __future__ import annotations

import warnings

import numpy
import torch
import triton
import triton.language as tl

from semfocus import counter_rng

GOLDEN = tl.constexpr(counter_rng.GOLDEN)
FIRST = tl.constexpr(counter_rng.FIRST)
SECOND = tl.constexpr(counter_rng.SECOND)
NO_RANK = tl.constexpr(-(2**31))  # below the ordered integer of every score
MAX_INDEX = tl.constexpr(2**31 - 1)  # above every key index
MINUS_INF = tl.constexpr(float("-inf"))
QUIET_NAN = tl.constexpr(0x7FC00000)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def float_to_ordered_int(scores):
    """int32 in the order of float32 scores: -0.0 equals 0.0, and NaN comes after all numbers."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(scores == scores, ordered, QUIET_NAN)


@triton.jit
def ordered_int_to_float(ordered):
    """The inverse of `float_to_ordered_int`."""
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def finite(x):
    """Whether each entry is neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def mix(x):
    """`counter_rng.mix` on int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * SECOND
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def row_hash(seed, rows):
    """`counter_rng.row_hash`: int32 hashes from an int64 seed and int32 row ids."""
    low = (seed & 0xFFFFFFFF).to(tl.int32)
    high = (seed >> 32).to(tl.int32)
    first = mix(low ^ GOLDEN)
    second = mix(high + first)
    return mix(mix(rows + mix(first ^ second)) ^ second)


@triton.jit
def survives(hashes, columns, threshold):
    """Whether dropout keeps an entry: the last round of `counter_rng.random_bits` compared with the threshold."""
    x = hashes + columns * GOLDEN
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    return (x ^ ((x >> 15) & 0x1FFFF)) * SECOND >= threshold


def dropout_threshold(p: float) -> int:
    """The threshold that `counter_rng.bernoulli_keep` compares random bits with."""
    return int(p * 2**32) - 2**31


# True only if this module's functions and Triton's own library are both interpreted.
INTERPRETED = tl.constexpr(not isinstance(finite, triton.JITFunction) and not isinstance(tl.sum, triton.JITFunction))


@triton.jit
def fast_exp(x):
    """exp(x) with subnormal results flushed to zero: two instructions instead of five."""
    return fast_exp2(x * LOG2_E)


@triton.jit
def fast_exp2(x):
    """2**x with subnormal results flushed to zero."""
    return tl.exp2(x) if INTERPRETED else _exp2_ftz(x)


@triton.jit
def _exp2_ftz(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )  # fmt: skip


def _patch_interpreter() -> None:
    """Patch Triton 3.6's interpreter where it differs from a GPU or is needlessly slow.

    Loop bounds: numpy 2.4 no longer converts an array of one element to an index. Infinities: a GPU does not warn.
    bfloat16: a GPU rounds to nearest. Products: numpy's depend on the size of the tile in their last bits, a tensor
    core's do not, and sets of kept keys hang on that; summed in float64, hardly any does. Device functions: the
    language is patched once a launch, not once a call, which takes most of the time.
    """
    from triton.runtime import interpreter

    patch, call = interpreter._patch_lang_tensor, interpreter.GridExecutor.__call__
    truncate = interpreter.InterpreterBuilder.create_fp_trunc

    def patch_and_index(tensor, scope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def call_prepared(self, *args, **kwargs):
        prepared = interpreter._patch_lang(tl.sum.fn)
        try:
            with numpy.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # numpy's reductions of all-NaN slices
                return call(self, *args, **kwargs)
        finally:
            prepared.restore()

    def round_and_truncate(self, src, dst_type):
        if dst_type.scalar == tl.bfloat16:
            rounded = torch.from_numpy(src.data.astype("float32")).bfloat16().float().numpy()
            src = interpreter.TensorHandle(rounded, src.dtype)
        return truncate(self, src, dst_type)

    def dot_of_any_tile(self, a, b, d, input_precision, max_num_imprecise_acc):
        product = numpy.matmul(a.data.astype("float64"), b.data.astype("float64")).astype(d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter._patch_lang_tensor = patch_and_index
    interpreter.InterpreterBuilder.create_dot = dot_of_any_tile
    interpreter.InterpreterBuilder.create_fp_trunc = round_and_truncate
    interpreter.GridExecutor.__call__ = call_prepared
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)


if INTERPRETED.value:
    _patch_interpreter()
