"""Products on tensor cores have the accuracy they promise, whatever the size of numbers and however loose a bound."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.cases import DEVICE

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from semfocus.attention.kernels.products import accumulate, operand, precision, product, scale_for, transpose  # noqa: E402

BITS = {"fp16": 11, "fp16x3": 21, "tf32": 9, "tf32x3": 19}  # at least; TF32 is cut off, not rounded

ONE = 2.0**13  # the bound whose scale is 1


@triton.jit
def multiply(a, b, out, bound_a, bound_b, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = operand(tl.load(a + at), scale_for(bound_a), PRECISION)
    y = operand(tl.load(b + at), scale_for(bound_b), PRECISION)
    tl.store(out + at, product(x, y, PRECISION))
    total = accumulate(tl.zeros((N, N), tl.float32), x, transpose(transpose(y)), PRECISION)
    total = accumulate(total, x, y, PRECISION)
    tl.store(out + N * N + at, total * (x[2] * y[2]))


def errors(how: str, size_a: float, size_b: float, loose: float = 1.0) -> torch.Tensor:
    """The largest error of x y and of 2 x y, relative to |x| |y|."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(32, 32, generator=generator).to(DEVICE) * size for size in (size_a, size_b))
    out = torch.empty(2, 32, 32, device=DEVICE)
    bounds = [x.abs().max().item() * loose if how.startswith("fp16") else ONE for x in (a, b)]
    multiply[(1,)](a, b, out, *bounds, N=32, PRECISION=how)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return torch.stack([(out[0] - exact).abs() / size, (out[1] / 2 - exact).abs() / size]).max()


@pytest.mark.parametrize("how", list(BITS))
def test_products_have_the_bits_they_promise(how: str) -> None:
    assert errors(how, 1.0, 1.0) < 2.0 ** -BITS[how]


@pytest.mark.parametrize("how", ["fp16", "fp16x3"])
@pytest.mark.parametrize(("size_a", "size_b"), [(1e30, 1e-30), (1e-15, 1e-15), (1e15, 1e20), (1e-30, 1.0)])
def test_numbers_far_beyond_16_bits_are_no_less_exact(how: str, size_a: float, size_b: float) -> None:
    assert errors(how, size_a, size_b) < 2.0 ** -BITS[how]


@pytest.mark.parametrize("how", ["fp16", "fp16x3"])
def test_a_bound_may_be_a_hundred_thousand_times_too_large(how: str) -> None:
    assert errors(how, 1.0, 1.0, loose=1e5) < 2.0 ** -BITS[how]


def test_a_bound_that_is_far_off_costs_bits_but_nothing_overflows() -> None:
    assert 2.0**-10 < errors("fp16", 1.0, 1.0, loose=2.0**28) < 2.0**-6
    assert errors("fp16x3", 1.0, 1.0, loose=2.0**28) < 2.0**-18


def test_one_float_of_16_bits_rounds_and_two_hardly_do() -> None:
    assert errors("fp16", 1.0, 1.0) > 2.0**-16 > errors("fp16x3", 1.0, 1.0)


def test_what_is_known_and_what_is_allowed_decide() -> None:
    assert [precision(True), precision(False)] == ["tf32", "tf32x3"]
    assert [precision(True, bounded=True), precision(False, bounded=True)] == ["fp16", "fp16x3"]
