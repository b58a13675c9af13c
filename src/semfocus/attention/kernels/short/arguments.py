"""Arguments of the short kernels: strided views of tensors, dropout, and what a kernel is compiled for.

A tensor is passed as its address with strides for the leading dimensions, rows and columns. Leading dimensions that are
contiguous in every tensor are merged; a broadcast dimension has stride 0. So a slice of a projection, a mask shared by
all heads or a seed for each member is read in place, without a copy.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

MAX_OFFSET = 2**31  # offsets within a problem are 32-bit integers


@dataclass(frozen=True)
class Pattern:
    """Which pairs of query and key are allowed, as far as a kernel is compiled for it."""

    mask: str  # "none", "keys" (one mask for all queries) or "pairs"
    kind: str  # name of the mechanism
    width: int  # of the band or block
    globals: int
    causal: bool

    def before_selection(self) -> Pattern:
        """What is allowed before keys are selected by score: mask and causality."""
        return replace(self, kind="full", width=0, globals=0)

    def before_selection_and_key_mask(self) -> Pattern:
        """The same without a mask of keys, which `select.visible_keys` applies."""
        return replace(self.before_selection(), mask="pairs" if self.mask == "pairs" else "none")


@dataclass(frozen=True)
class HeadDims:
    """Head dimensions of q and k, and of v; each also padded to the tile that holds it."""

    d: int
    block_d: int
    dv: int
    block_dv: int


@cache
def matrix_type(dimensions: int) -> Any:
    """A matrix (or a number) for each problem: flat, because Triton 3.6 loses integers nested in two tuples."""
    return namedtuple("Matrix", ["data", "row", "column", *_numbered("lead", dimensions)])


@cache
def dropout_type(dimensions: int) -> Any:
    """A seed for each problem, the threshold and factor of dropout, and the strides of seeds and row ids."""
    return namedtuple(
        "Dropout", ["data", "threshold", "factor", *_numbered("lead", dimensions), *_numbered("step", dimensions)]
    )


LEAD = 3  # index of the first leading stride in both


def _numbered(name: str, dimensions: int) -> list[str]:
    return [f"{name}_{dimension}" for dimension in range(dimensions)]


def strided(
    lead: torch.Size, tensors: Mapping[str, Tensor | None], steps: Sequence[int] | None = None
) -> tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]:
    """Merged leading sizes, tensors (*lead, rows, columns) with merged strides, and merged `steps`."""
    expanded = {name: None if t is None else _near(t.expand(*lead, *t.shape[-2:])) for name, t in tensors.items()}
    given = {name: tensor for name, tensor in expanded.items() if tensor is not None}
    strides = [tensor.stride()[: len(lead)] for tensor in given.values()]
    sizes, merged = _merge(lead, [*strides, tuple(steps or [0] * len(lead))])
    matrices = {
        name: matrix_type(len(sizes))(tensor, tensor.stride(-2), tensor.stride(-1), *merged[number])
        for number, (name, tensor) in enumerate(given.items())
    }
    return sizes, {name: matrices.get(name) for name in tensors}, merged[-1]


def _near(tensor: Tensor) -> Tensor:
    """The tensor, copied if offsets within one problem do not fit 32 bits."""
    (rows, columns), (row, column) = tensor.shape[-2:], tensor.stride()[-2:]
    return tensor.contiguous() if (rows - 1) * row + (columns - 1) * column >= MAX_OFFSET else tensor


def _merge(lead: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes and strides with neighbouring dimensions merged wherever the strides of all tensors allow it."""
    sizes: list[int] = []
    kept: list[list[int]] = []  # for each merged dimension its stride in each tensor
    for dimension, size in enumerate(lead):
        steps = [stride[dimension] for stride in strides]
        if size == 1:
            continue
        if sizes and all(outer == step * size for outer, step in zip(kept[-1], steps, strict=True)):
            sizes[-1], kept[-1] = sizes[-1] * size, steps
        else:
            sizes.append(size)
            kept.append(steps)
    if not sizes:
        return (1,), [(0,) for _ in strides]
    return tuple(sizes), [tuple(steps[number] for steps in kept) for number in range(len(strides))]


def row_id_steps(lead: torch.Size, seed: Tensor, queries: int) -> list[int]:
    """What each leading dimension adds to a row id, as `Positions.row_ids` counts them: 0 where seeds differ."""
    own = [1] * (len(lead) + 2 - seed.dim()) + list(seed.shape)
    steps, step = [], queries
    for size, seeds in zip(reversed(lead), reversed(own[: len(lead)]), strict=True):
        steps.append(0 if seeds > 1 else step)
        step = step if seeds > 1 else step * size
    return steps[::-1]


def empty_like_layout(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor with the dimension order of `tensor` in memory, the last dimension innermost and no gaps."""
    outer = [d for d in range(len(shape) - 1) if shape[d] != 1]
    if any(tensor.stride(d) == 0 for d in outer):  # a broadcast tensor has no order to keep
        return torch.empty(shape, dtype=dtype or tensor.dtype, device=tensor.device)
    order = sorted(outer, key=lambda d: -tensor.stride(d))
    strides, step = [1] * len(shape), shape[-1]
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return torch.empty_strided(shape, strides, dtype=dtype or tensor.dtype, device=tensor.device)


def padded(size: int) -> int:
    """The smallest power of two that is at least `size` and 16, the least that tensor cores take."""
    return max(16, 1 << (size - 1).bit_length())


# Triton's own functions of these two take several microseconds a call on the host.
def cdiv(size: int, tile: int) -> int:
    """How many tiles cover `size`."""
    return -(-size // tile)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number` and 1."""
    return 1 << max(number - 1, 0).bit_length()
