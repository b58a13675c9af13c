"""What the tests of the short kernels share: `attend` by these kernels, with gradients, beside the oracle."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import Tensor

from semfocus.attention.kernels.short.dispatch import short, short_refuses
from semfocus.attention.operator import BACKENDS, Backend, attend
from tests.conftest import DEVICE

NAME = "short kernels"


@contextmanager
def registered():
    """Register the short kernels as a backend of their own."""
    BACKENDS[NAME] = Backend(short, short_refuses)
    try:
        yield
    finally:
        del BACKENDS[NAME]


def by_kernel(*qkv: Tensor, **options):
    with registered():
        return attend(*qkv, backend=NAME, **options)


def run(inputs, backend: str = NAME, **options) -> list[Tensor]:
    """Output and the gradients of q, k and v."""
    q, k, v, grad = inputs
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    with registered():
        out = attend(*leaves, backend=backend, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def inputs(queries: int, keys: int, lead=(2,), width: int = 16, dtype=torch.float32) -> list[Tensor]:
    """q, k, v and a gradient of the output, drawn on the CPU so that every device sees the same numbers.

    q and k are small integers: their products are exact in every type, so that all agree on the kept set, ties and all.
    """
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randint(-3, 4, (*lead, rows, width), generator=generator) for rows in (queries, keys)]
    real = [torch.randn(*lead, rows, width + 2, generator=generator) for rows in (keys, queries)]
    return [tensor.to(DEVICE, dtype) for tensor in (*whole, *real)]


def check(given, **options) -> None:
    """Errors against the float64 oracle are at most twice those of the dense backend in the same dtype."""
    exact = run([tensor.double() for tensor in given], backend="reference", **options)
    ours, dense = run(given, **options), run(given, backend="dense", **options)
    for name, mine, plain, truth in zip(("out", "dq", "dk", "dv"), ours, dense, exact, strict=True):
        assert mine.dtype == plain.dtype
        error, allowed = ((tensor.double() - truth).abs().max().item() for tensor in (mine, plain))
        rounding = 4 * torch.finfo(torch.float32).eps * truth.abs().max().item()
        assert error <= 2 * allowed + rounding, (name, error, allowed)


def close(mine: Tensor, wanted: Tensor) -> None:
    """Equal but for the order of summation."""
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
