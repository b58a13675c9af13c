"""Tensors as the short kernels take them: an address, strides for the leading dimensions, for rows and for columns.

Leading dimensions that lie one after the other in every tensor are merged; what is broadcast has stride 0. So a slice
of a projection, a mask for all heads or a seed for each member is read where it lies, without a copy.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

FAR = 2**31  # offsets within a problem are 32-bit numbers


@cache
def rows_type(dimensions: int) -> Any:
    """A matrix for each problem, or a number: flat, because Triton 3.6 loses numbers that stand two tuples deep."""
    return namedtuple("Rows", ["data", "row", "column", *_named("lead", dimensions)])


@cache
def dropout_type(dimensions: int) -> Any:
    """A seed for each problem and what dimensions add to the number of a row; which bits survive, and the factor."""
    return namedtuple(
        "Dropout", ["data", "threshold", "factor", *_named("lead", dimensions), *_named("step", dimensions)]
    )


LEAD = 3  # where the strides of the leading dimensions begin, in both


def _named(name: str, dimensions: int) -> list[str]:
    return [f"{name}_{dimension}" for dimension in range(dimensions)]


def arranged(
    lead: torch.Size, tensors: Mapping[str, Tensor | None], numbers: Sequence[int] | None = None
) -> tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]:
    """Merged sizes of the leading dimensions, tensors (.., rows, columns) with their strides, and `numbers` merged."""
    whole = {name: None if t is None else _near(t.expand(*lead, *t.shape[-2:])) for name, t in tensors.items()}
    given = {name: tensor for name, tensor in whole.items() if tensor is not None}
    strides = [tensor.stride()[: len(lead)] for tensor in given.values()]
    sizes, merged = _merged(lead, [*strides, tuple(numbers or [0] * len(lead))])
    rows = {
        name: rows_type(len(sizes))(tensor, tensor.stride(-2), tensor.stride(-1), *merged[place])
        for place, (name, tensor) in enumerate(given.items())
    }
    return sizes, {name: rows.get(name) for name in tensors}, merged[-1]


def _near(tensor: Tensor) -> Tensor:
    """The tensor, copied if the rows of one problem lie too far apart."""
    (rows, columns), (row, column) = tensor.shape[-2:], tensor.stride()[-2:]
    return tensor.contiguous() if (rows - 1) * row + (columns - 1) * column >= FAR else tensor


def _merged(lead: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes and strides with neighbouring dimensions made one wherever all the strides allow it."""
    sizes: list[int] = []
    kept: list[list[int]] = []  # one entry a dimension: its stride in each tensor
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
    return tuple(sizes), [tuple(steps[place] for steps in kept) for place in range(len(strides))]


def row_numbers(lead: torch.Size, seed: Tensor, queries: int) -> list[int]:
    """What each leading dimension adds to the number of a row, as `Positions.row_ids` counts: 0 where seeds differ."""
    own = [1] * (len(lead) + 2 - seed.dim()) + list(seed.shape)
    steps, step = [], queries
    for size, seeds in zip(reversed(lead), reversed(own[: len(lead)]), strict=True):
        steps.append(0 if seeds > 1 else step)
        step = step if seeds > 1 else step * size
    return steps[::-1]


def alike(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor whose dimensions lie in memory in the same order, the last one innermost and no gaps."""
    outer = [d for d in range(len(shape) - 1) if shape[d] != 1]
    if any(tensor.stride(d) == 0 for d in outer):  # broadcast: there is no order to keep
        return torch.empty(shape, dtype=dtype or tensor.dtype, device=tensor.device)
    order = sorted(outer, key=lambda d: -tensor.stride(d))
    strides, step = [1] * len(shape), shape[-1]
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return torch.empty_strided(shape, strides, dtype=dtype or tensor.dtype, device=tensor.device)


def padded(size: int) -> int:
    """The power of two, at least 16 as tensor cores want, that holds `size`."""
    return max(16, 1 << (size - 1).bit_length())
