"""Attention of transformers models, seen through the registry from which their layers take it.

What a layer takes is wrapped while someone watches. Implementations that end in torch's or our own attention are seen
there, with the mask exactly as it is used; the model's own (eager) one is told of from its arguments, and checked
against the weights that it returns, since a model may do more to its scores than it says.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from semfocus.diagnostics.scores import scores_of
from semfocus.diagnostics.torch_calls import full_attention_inputs
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from semfocus.attention.inputs import AttentionInputs

EAGER = "eager"
METHOD = "get_interface"
CHECKED = 9  # queries of a call whose weights are checked, the first, the middle and the last among them
# How far a weight may be from the expected one, relatively, apart from what the rounding of its score explains.
FAR, FAR_IN_HALF = 1e-3, 2e-2
BIAS = "position_bias"  # what models with one call it
WAY_OUT = '; switch: model.set_attn_implementation("sdpa")'
OTHER = (
    "it does more to its scores than scale and mask them (a cap, a sink, a bias); its weights are not the softmax of "
    "what is seen:"
)
TF32 = 2.0**-10  # the coarseness of float32 products where torch is allowed to take shorter numbers


class Observer(Protocol):
    """The part of a watch that is needed here."""

    count: int

    @property
    def at_work(self) -> str: ...

    def capture(self, inputs: AttentionInputs, grouped: bool) -> None: ...


@contextmanager
def wrapped(watch: Observer) -> Iterator[None]:
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


def _telling(watch: Observer, name: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
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
    watch: Observer,
    module: nn.Module,
    name: str | None,
    tensors: tuple[Tensor, Tensor, Tensor, Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    out: Any,
) -> None:
    layer = f"{watch.at_work} ({type(module).__name__})" if watch.at_work else type(module).__name__
    where = f"{layer} with attn_implementation={name!r}"
    if name not in (EAGER, None) or args:
        raise UsageError(f'{where} cannot be observed; switch: model.set_attn_implementation("sdpa"), or "eager"')
    query, key, value, mask = tensors
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 4):
        raise UsageError(f"{where} cannot be observed: its mask is not a tensor (B, 1, Q, K)")
    with torch.no_grad():
        grouped = query.shape[1] != key.shape[1]
        mask = None if mask is None else mask[..., : key.shape[-2]]  # a static cache has room for more keys
        inputs = full_attention_inputs(query, key, value, mask, False, options.get("scaling"), grouped)
        _check(where, inputs, out, options, dropping=module.training and bool(options.get("dropout")))
    watch.capture(inputs, grouped)


def _check(where: str, inputs: AttentionInputs, out: Any, options: Mapping[str, Any], dropping: bool) -> None:
    """That the weights which the model used are those of the problem told of, for some of its queries."""
    if dropping:
        raise UsageError(
            f"{where} cannot be observed in training mode: it drops attention weights, so that they cannot be checked "
            "against what is seen; call model.eval() first"
        )
    weights = out[1] if isinstance(out, tuple) and len(out) > 1 else None
    if not isinstance(weights, Tensor):
        raise UsageError(f"{where} cannot be observed: it returns no attention weights to check what is seen against")
    with_bias = isinstance(options.get(BIAS), Tensor)  # which torch's attention is given with the mask
    why = _difference(inputs, weights)
    if why:
        raise UsageError(f"{where} cannot be observed: {why}{WAY_OUT if with_bias else ''}")


def _difference(inputs: AttentionInputs, weights: Tensor) -> str:
    """What is wrong with the weights, in words; nothing if they are right."""
    shape = (*inputs.lead, inputs.num_queries, inputs.num_keys)
    if weights.numel() != math.prod(shape) or weights.shape[-2:] != shape[-2:]:
        return f"{OTHER} they have the shape {tuple(weights.shape)}"
    half = torch.finfo(weights.dtype).eps > torch.finfo(torch.float32).eps
    for query in _some(inputs.num_queries):
        used = weights[..., query, :].reshape(*inputs.lead, -1).to(inputs.compute_dtype)
        # Under autocast the scores here would be as coarse as the model's.
        with torch.autocast(inputs.q.device.type, enabled=False):
            scores, allowed = scores_of(inputs, inputs.positions(query, 1))
        scores = scores.squeeze(-2)
        allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.squeeze(-2)
        expected = torch.where(allowed, scores, -torch.inf).softmax(-1)
        # A query that sees no key, or has a score that is not finite, has no weights that could be expected.
        known = expected.isfinite().all(-1)
        far = FAR_IN_HALF if half else FAR
        if not bool(used.isfinite().all(-1)[known].all()):
            return (
                f"the model's own weights of query {query} are not finite, although its scores of the keys that it may "
                "see are (masked keys that are not finite, or beyond the range of its softmax?)"
            )
        off = (used.sum(-1) - 1).abs()[known]
        if off.numel() and not bool((off <= far).all()):
            return f"{OTHER} those of query {query} sum to 1 only within {float(off.max()):.2g}"
        largest = torch.where(allowed, scores, 0.0).abs().amax(-1, keepdim=True)
        room = -torch.expm1(-far - 2 * _coarseness(inputs) * largest) * torch.maximum(used, expected)
        fits = (used - expected).abs() <= room + _floor(weights.dtype)
        if not bool((fits | ~known.unsqueeze(-1)).all()):
            place = (~fits & known.unsqueeze(-1)).flatten().nonzero()[0]
            pair = float(used.flatten()[place]), float(expected.flatten()[place])
            return f"{OTHER} query {query} gives a key {pair[0]:.3g} instead of {pair[1]:.3g}"
    return ""


def _some(queries: int) -> list[int]:
    """Positions spread evenly from the first query to the last."""
    return sorted({round(i * (queries - 1) / (CHECKED - 1)) for i in range(CHECKED)}) if queries else []


def _coarseness(inputs: AttentionInputs) -> float:
    """How coarsely the model computes a score, relatively. A score that is off moves its weight, and all others."""
    kinds = [inputs.q.dtype]
    device = inputs.q.device.type
    if torch.is_autocast_enabled(device):
        kinds.append(torch.get_autocast_dtype(device))
    coarse = max(torch.finfo(kind).eps for kind in kinds)
    return max(coarse, TF32) if torch.get_float32_matmul_precision() != "highest" else coarse


def _floor(kind: torch.dtype) -> float:
    """Weights below this are lost, or no matter: half precision ends early."""
    info = torch.finfo(kind)
    return max(1e-30, 2 * info.eps * info.smallest_normal)
