"""Finds attention that a model writes out by hand, by what it computes: the product of a softmax with values.

    with HandWritten(found):            found() is called at each such product, while its module is running
        model(tokens)

A softmax is torch's own, or exponentials divided by something. Operations are seen below autograd and torch's fused
paths, which therefore stay as they are, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
SOFTMAX = frozenset({_ATEN._softmax, _ATEN._safe_softmax})
PRODUCTS = frozenset({_ATEN.bmm, _ATEN.baddbmm})
# What may happen to the weights before the product, besides views: casts, copies, dropout, scaling, masking.
PASSED_ON = frozenset(
    {_ATEN._to_copy, _ATEN.clone, _ATEN.native_dropout, _ATEN.mul, _ATEN.div, _ATEN.where, _ATEN.masked_fill,
     _ATEN.nan_to_num}
)  # fmt: skip


class HandWritten(TorchDispatchMode):
    """Calls `found` at each product with a softmax: a batched one, or one of a square matrix."""

    def __init__(self, found: Callable[[], None]) -> None:
        super().__init__()
        self._found = found
        # Of the last exponential and the last softmax; held, so that their memory is not given to others.
        self._powers: Tensor | None = None
        self._weights: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operation = getattr(func, "overloadpacket", None)
        if operation in SOFTMAX or (operation is _ATEN.div and _place(self._powers, args) is not None):
            self._weights = out
        elif operation is _ATEN.exp:
            self._powers = out
        elif operation in PASSED_ON and _place(self._weights, args) is not None:
            self._weights = out[0] if isinstance(out, tuple) else out
        elif operation in PRODUCTS or operation is _ATEN.mm:
            weights = _place(self._weights, args)
            # Weights of experts or classes may meet a matrix, too, but are not as many as there are tokens.
            if weights is not None and (operation in PRODUCTS or weights.shape[0] == weights.shape[1]):
                self._weights = None
                self._found()
        return out


def _place(tensor: Tensor | None, args: tuple[Any, ...]) -> Tensor | None:
    """The argument that is this tensor or a view that begins where it does."""
    if tensor is None:
        return None
    same = (isinstance(arg, Tensor) and arg.numel() and arg.data_ptr() == tensor.data_ptr() for arg in args)
    return next((arg for arg, is_same in zip(args, same, strict=True) if is_same), None)
