"""What the kernels have in common: the order of scores, the dropout bits, and kernels without a GPU.

A kernel module is imported only where it runs: this one needs Triton. With TRITON_INTERPRET=1 set before Triton is
first imported, kernels run on the CPU, step by step in numpy: slow, and enough to test them anywhere.
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
NO_KEY = tl.constexpr(-(2**31))  # below the key of every score
BEYOND = tl.constexpr(2**31 - 1)  # an index beyond every column
MINUS_INF = tl.constexpr(float("-inf"))
QUIET_NAN = tl.constexpr(0x7FC00000)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def ordered(scores):
    """int32 keys in the order of float32 scores: -0.0 equals 0.0, and NaN comes after all numbers."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(scores == scores, keys, QUIET_NAN)


@triton.jit
def unordered(keys):
    """The scores again."""
    return tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)


@triton.jit
def finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def mix(x):
    """`counter_rng.mix`."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * SECOND
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def row_hash(seed, rows):
    """`counter_rng.row_hash`: int32, of an int64 seed and int32 row numbers."""
    low = (seed & 0xFFFFFFFF).to(tl.int32)
    high = (seed >> 32).to(tl.int32)
    first = mix(low ^ GOLDEN)
    second = mix(high + first)
    return mix(mix(rows + mix(first ^ second)) ^ second)


@triton.jit
def survives(hashes, columns, threshold):
    """Whether dropout leaves a weight: the last round of `counter_rng.random_bits`, against the threshold."""
    x = hashes + columns * GOLDEN
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    return (x ^ ((x >> 15) & 0x1FFFF)) * SECOND >= threshold


def dropout_threshold(p: float) -> int:
    """What `counter_rng.bernoulli_keep` compares the bits with."""
    return int(p * 2**32) - 2**31


# Both what this module defines and what Triton's own library defines must be interpreted.
INTERPRETED = tl.constexpr(not isinstance(ordered, triton.JITFunction) and not isinstance(tl.sum, triton.JITFunction))


@triton.jit
def exponential(x):
    """exp(x), where what is too small for a normal number is zero: two instructions instead of five."""
    return power_of_two(x * LOG2_E)


@triton.jit
def power_of_two(x):
    """2**x, likewise."""
    return tl.exp2(x) if INTERPRETED else _power_of_two(x)


@triton.jit
def _power_of_two(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )  # fmt: skip


def _mend_interpreter() -> None:
    """Where Triton 3.6 interprets kernels otherwise than a GPU runs them, or slower than it need.

    Loop bounds: from numpy 2.4 on an array of one element is no number. Infinities: a GPU does not warn. bfloat16: a
    GPU rounds to the nearest. Functions that a kernel calls: the language is prepared once a launch, not once a call,
    which takes most of the time.
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
                warnings.simplefilter("ignore", RuntimeWarning)  # of rows that are all NaN
                return call(self, *args, **kwargs)
        finally:
            prepared.restore()

    def round_and_truncate(self, src, dst_type):
        if dst_type.scalar == tl.bfloat16:
            rounded = torch.from_numpy(src.data.astype("float32")).bfloat16().float().numpy()
            src = interpreter.TensorHandle(rounded, src.dtype)
        return truncate(self, src, dst_type)

    interpreter._patch_lang_tensor = patch_and_index
    interpreter.InterpreterBuilder.create_fp_trunc = round_and_truncate
    interpreter.GridExecutor.__call__ = call_prepared
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)


if INTERPRETED.value:
    _mend_interpreter()
