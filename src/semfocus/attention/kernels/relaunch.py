"""Launches of a kernel that is called again and again: what Triton finds out at each launch is kept from the first.

Triton binds arguments, looks at every one of them and searches its cache: tens of microseconds a launch, which show
where a whole call takes as long. What it compiles for are constants, the types of arguments, whether addresses are
multiples of 16, and of integers whether they are 1, multiples of 16 or large, but for those that `do_not_specialize`
names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from torch import Tensor
from triton import OutOfResources
from triton.compiler import CompiledKernel

ALIGNMENT = 16  # bytes, by which Triton tells addresses apart


class Relaunched:
    """A kernel whose constants come last, and what it was compiled to."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[Hashable, tuple[CompiledKernel, tuple[Any, ...]]] = {}

    def __call__(
        self, variant: Hashable, grid: tuple[int, int, int], arguments: tuple[Any, ...], constants: Mapping[str, Any],
        warps: int, stages: int = 1,
    ) -> None:  # fmt: skip
        """Launch it; on a GPU with less shared memory than these stages of its loads need, without a pipeline.

        `variant` tells apart all that Triton compiles for: see above. Constants are in the order of the kernel's.
        """
        known = self._compiled.get(variant)
        if known is not None:
            known[0][grid](*arguments, *known[1])
            return
        try:
            done = self.kernel[grid](*arguments, **constants, num_warps=warps, num_stages=stages)
        except OutOfResources:
            done = self.kernel[grid](*arguments, **constants, num_warps=warps, num_stages=1)
        if isinstance(done, CompiledKernel):  # Triton's interpreter returns nothing
            self._compiled[variant] = done, tuple(constants.values())


def kinds(numbers: Iterable[int]) -> tuple[int, ...]:
    """What Triton tells apart of integers that it specializes: 1, multiples of 16, and what 32 bits do not hold."""
    return tuple(-1 if n == 1 else (n % ALIGNMENT == 0) + 2 * (n >= 2**31) for n in numbers)


def aligned(*tensors: Tensor | None) -> tuple[bool | None, ...]:
    """Whether each tensor's address is one that Triton takes for aligned; None where there is no tensor."""
    return tuple(None if tensor is None else tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)
