"""Finds attention that a model writes out by hand, by what it computes: the product of a softmax with values.

    with HandWritten(found):            found() is called at each such product, while its module is running
        model(tokens)

Operations are seen below autograd and torch's fused paths, which therefore stay as they are, to the bit.
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
# What may happen to the weights before the product, besides views: casts, copies, dropout, scaling.
PASSED_ON = frozenset({_ATEN._to_copy, _ATEN.clone, _ATEN.native_dropout, _ATEN.mul, _ATEN.div, _ATEN.where})


class HandWritten(TorchDispatchMode):
    """Calls `found` at each batched product with a softmax."""

    def __init__(self, found: Callable[[], None]) -> None:
        super().__init__()
        self._found = found
        self._weights: Tensor | None = None  # of the last softmax; held, so that its memory is not given to others

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operation = getattr(func, "overloadpacket", None)
        if operation in SOFTMAX:
            self._weights = out
        elif operation in PASSED_ON and self._holds_weights(args):
            self._weights = out[0] if isinstance(out, tuple) else out
        elif operation in PRODUCTS and self._holds_weights(args):
            self._weights = None
            self._found()
        return out

    def _holds_weights(self, args: tuple[Any, ...]) -> bool:
        weights = self._weights
        return weights is not None and any(
            isinstance(arg, Tensor) and arg.numel() and arg.data_ptr() == weights.data_ptr() for arg in args
        )
