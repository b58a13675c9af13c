"""Capture the attention calls of transformers models by wrapping the registry of attention functions.

Implementations that call torch's attention or `attend` are captured there, with the mask that they use. The eager
implementation of a model is captured from its arguments. Its returned weights are compared with the softmax of these
arguments, since a model may change its scores in ways that the arguments do not show.
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

from semfocus.diagnostics.scores import full_attention_inputs, scores_of
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from semfocus.attention.inputs import AttentionInputs

EAGER = "eager"
METHOD = "get_interface"
CHECKED = 9  # queries of a call whose weights are checked, spread from the first to the last
# Relative tolerance of a weight, in addition to the rounding of its score.
FAR, FAR_IN_HALF = 1e-3, 2e-2
OTHER = (
    "it does more to its scores than its arguments say (a cap, a sink, a bias); its weights are not the softmax of "
    "what is seen:"
)
TF32 = 2.0**-10  # relative rounding of float32 products where torch may use TF32


class Observer(Protocol):
    """The part of `capture.Watch` that is used here."""

    count: int

    @property
    def at_work(self) -> str: ...

    def capture(self, inputs: AttentionInputs, grouped: bool) -> None: ...


@contextmanager
def wrapped(watch: Observer) -> Iterator[None]:
    """Report the attention calls of layers inside this block. Does nothing if transformers is not imported."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        yield
        return
    owner = library.AttentionInterface
    original = owner.__dict__[METHOD]

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return _reporting(watch, name, original(self, name, default))

    setattr(owner, METHOD, get_interface)
    try:
        yield
    finally:
        setattr(owner, METHOD, original)


def _reporting(watch: Observer, name: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        before = watch.count
        out = function(module, query, key, value, attention_mask, *args, **options)
        if watch.count == before:
            _report_eager(watch, module, name, (query, key, value, attention_mask), args, options, out)
        return out

    return call


def _report_eager(
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
        mask = None if mask is None else mask[..., : key.shape[-2]]  # a static cache has entries for more keys
        bias, softcap, sinks = (options.get(name) for name in ("position_bias", "softcap", "s_aux"))
        if isinstance(bias, Tensor):
            mask = bias if mask is None else _with_bias(mask, bias)
        inputs = full_attention_inputs(query, key, value, mask, False, options.get("scaling"), grouped, softcap, sinks)
        _check(where, inputs, out, options, drops_weights=module.training and bool(options.get("dropout")))
    watch.capture(inputs, grouped)


def _check(where: str, inputs: AttentionInputs, out: Any, options: Mapping[str, Any], drops_weights: bool) -> None:
    """Raise a UsageError unless the weights of some queries are the softmax of the captured inputs."""
    if drops_weights:
        raise UsageError(
            f"{where} cannot be observed in training mode: it drops attention weights, so that they cannot be checked "
            "against what is seen; call model.eval() first"
        )
    weights = out[1] if isinstance(out, tuple) and len(out) > 1 else None
    if not isinstance(weights, Tensor):
        raise UsageError(f"{where} cannot be observed: it returns no attention weights to check what is seen against")
    why = _difference(inputs, weights)
    if why:
        raise UsageError(f"{where} cannot be observed: {why}")


def _with_bias(mask: Tensor, bias: Tensor) -> Tensor:
    """A float mask (B, H, Q, K) of a mask and a position bias."""
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else mask + bias


def _difference(inputs: AttentionInputs, weights: Tensor) -> str:
    """The difference between the weights and the expected ones, as a message; empty if there is none."""
    shape = (*inputs.lead, inputs.num_queries, inputs.num_keys)
    if weights.numel() != math.prod(shape) or weights.shape[-2:] != shape[-2:]:
        return f"{OTHER} they have the shape {tuple(weights.shape)}"
    half = torch.finfo(weights.dtype).eps > torch.finfo(torch.float32).eps
    for query in _some(inputs.num_queries):
        used = weights[..., query, :].reshape(*inputs.lead, -1).to(inputs.compute_dtype)
        # Under autocast these scores would be rounded like those of the model.
        with torch.autocast(inputs.q.device.type, enabled=False):
            scores, allowed = scores_of(inputs, inputs.positions(query, 1))
        scores = scores.squeeze(-2)
        allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.squeeze(-2)
        masked = torch.where(allowed, scores, -torch.inf)
        expected = masked.softmax(-1)
        # A query without visible keys, or with a score that is not finite, has no expected weights.
        known = expected.isfinite().all(-1)
        far = FAR_IN_HALF if half else FAR
        if not bool(used.isfinite().all(-1)[known].all()):
            return (
                f"the model's own weights of query {query} are not finite, although its scores of the keys that it may "
                "see are (masked keys that are not finite, or beyond the range of its softmax?)"
            )
        if inputs.sinks is not None:
            expected = expected * torch.sigmoid(masked.logsumexp(-1, keepdim=True) - inputs.sinks[..., 0])
        off = (used.sum(-1) - expected.sum(-1)).abs()[known]
        if off.numel() and not bool((off <= far).all()):
            total = "1" if inputs.sinks is None else "what its sink leaves"
            return f"{OTHER} those of query {query} sum to {total} only within {float(off.max()):.2g}"
        largest = torch.where(allowed, scores, 0.0).abs().amax(-1, keepdim=True)
        room = -torch.expm1(-far - 2 * _score_rounding(inputs) * largest) * torch.maximum(used, expected)
        fits = (used - expected).abs() <= room + _floor(weights.dtype)
        if not bool((fits | ~known.unsqueeze(-1)).all()):
            place = (~fits & known.unsqueeze(-1)).flatten().nonzero()[0]
            pair = float(used.flatten()[place]), float(expected.flatten()[place])
            return f"{OTHER} query {query} gives a key {pair[0]:.3g} instead of {pair[1]:.3g}"
    return ""


def _some(queries: int) -> list[int]:
    """Positions spread evenly from the first query to the last."""
    return sorted({round(i * (queries - 1) / (CHECKED - 1)) for i in range(CHECKED)}) if queries else []


def _score_rounding(inputs: AttentionInputs) -> float:
    """The relative rounding of a score in the model. An error of one score changes all weights of its query."""
    dtypes = [inputs.q.dtype]
    device = inputs.q.device.type
    if torch.is_autocast_enabled(device):
        dtypes.append(torch.get_autocast_dtype(device))
    rounding = max(torch.finfo(kind).eps for kind in dtypes)
    return max(rounding, TF32) if torch.get_float32_matmul_precision() != "highest" else rounding


def _floor(kind: torch.dtype) -> float:
    """Differences below this are ignored: half precision underflows early."""
    info = torch.finfo(kind)
    return max(1e-30, 2 * info.eps * info.smallest_normal)
