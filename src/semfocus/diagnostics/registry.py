"""Attention of transformers models, seen through the registry from which their layers take it.

What a layer takes is wrapped while someone watches. Implementations that end in torch's or our own attention are seen
there, with the mask exactly as it is used; the model's own (eager) one is told of from its arguments, and checked
against the weights that it returns, since a model may do more to its scores than it says.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from semfocus.diagnostics.torch_calls import full_problem
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from semfocus.attention.problem import Problem

EAGER = "eager"
METHOD = "get_interface"
ROUNDING = 2e-2  # of a weight: half-precision models round theirs


class Watcher(Protocol):
    """The part of a watch that is needed here."""

    count: int

    def sight(self, problem: Problem, grouped: bool) -> None: ...


@contextmanager
def wrapped(watch: Watcher) -> Iterator[None]:
    """Inside this block, layers take attention functions that tell. Does nothing where transformers is not loaded."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        yield
        return
    owner = library.AttentionInterface
    original = owner.__dict__[METHOD]

    def telling(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return _telling(watch, name, original(self, name, default))

    setattr(owner, METHOD, telling)
    try:
        yield
    finally:
        setattr(owner, METHOD, original)


def _telling(watch: Watcher, name: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        before = watch.count
        out = function(module, query, key, value, attention_mask, *args, **options)
        if watch.count == before:
            _tell_eager(watch, module, name, (query, key, value, attention_mask), args, options, out)
        return out

    return call


def _tell_eager(
    watch: Watcher,
    module: nn.Module,
    name: str | None,
    inputs: tuple[Tensor, Tensor, Tensor, Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    out: Any,
) -> None:
    where = f"{type(module).__name__} with attn_implementation={name!r}"
    if name not in (EAGER, None) or args:
        raise UsageError(f'{where} cannot be observed; switch: model.set_attn_implementation("sdpa"), or "eager"')
    query, key, value, mask = inputs
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 4):
        raise UsageError(f"{where} cannot be observed: its mask is not a tensor (B, 1, Q, K)")
    with torch.no_grad():
        grouped = query.shape[1] != key.shape[1]
        mask = None if mask is None else mask[..., : key.shape[-2]]  # a static cache has room for more keys
        problem = full_problem(query, key, value, mask, False, options.get("scaling"), grouped)
        _check(where, problem, out, training=module.training and bool(options.get("dropout")))
    watch.sight(problem, grouped)


def _check(where: str, problem: Problem, out: Any, training: bool) -> None:
    """That the weights which the model used for its last query are those of the problem told of."""
    weights = out[1] if isinstance(out, tuple) and len(out) > 1 else None
    if training:
        return  # dropout has changed them
    if not isinstance(weights, Tensor):
        raise UsageError(f"{where} cannot be observed: it returns no attention weights to check what is seen against")
    last = problem.last(1)
    scores = (last.q.float() @ last.k.float().transpose(-1, -2)) * last.scale
    if last.bias is not None:
        scores = scores + last.bias
    if last.mask is not None:
        scores = torch.where(last.mask, scores, -torch.inf)
    expected = scores.softmax(-1).reshape(-1, problem.num_keys)
    used = weights[..., -1:, :].reshape(-1, weights.shape[-1]).float()
    fits = used.shape == expected.shape
    if fits:
        differ = (used - expected).abs() > ROUNDING
        fits = not bool((differ & expected.isfinite() & used.isfinite()).any())
    if not fits:
        raise UsageError(
            f"{where} cannot be observed: it does more to its scores than scale and mask them (a cap, a sink, a bias); "
            "its weights are not the softmax of what is seen"
        )
