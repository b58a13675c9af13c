"""Calls made from Python without torch's dispatcher, where nothing needs to see an operator.

A custom operator with a gradient costs about a tenth of a millisecond forward and as much backward, which shows beside
kernels of half a millisecond. The same launches stand in a `torch.autograd.Function`, and in no node at all where no
gradient is wanted; tests compare both ways to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter

from semfocus.counter_rng import is_traced


def is_eager(*tensors: Tensor) -> bool:
    """Whether a call may go without the dispatcher: plain tensors, and nothing traces or intercepts operations."""
    return all(type(tensor) in (Tensor, Parameter) for tensor in tensors) and not is_traced()


def choose_way(operator: Any, function: type[Function], launch: Callable, *tensors: Tensor) -> Callable:
    """How to call kernels: by the dispatched operator, by the node of autograd, or directly."""
    if not is_eager(*tensors):
        return operator
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return function.apply if grad else launch
