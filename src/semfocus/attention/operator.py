"""`attend`: attention with any mechanism, by the fastest backend that can serve the call.

out = attend(q, k, v, TopK(8))                          # as torch's scaled_dot_product_attention
out, info = attend(q, k, v, TopK(8), return_info=True)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, overload

import torch
from torch import Tensor

from semfocus.attention.chunked import chunked
from semfocus.attention.dense import dense, sdpa
from semfocus.attention.inputs import AttentionInputs, prepare_inputs
from semfocus.attention.inspection import AttentionInfo, observers, report
from semfocus.attention.kernels.backend import serves_any_k, triton, triton_refuses
from semfocus.attention.kernels.short.configs import MAX_SHORT_LENGTH, MAX_WHOLE_LENGTH
from semfocus.attention.linear import linear, linear_refuses, suits_linear
from semfocus.attention.local import local
from semfocus.attention.mechanisms import Full, Mechanism, is_registered, parse_mechanism
from semfocus.attention.normalisers import Normaliser, Softmax, parse_normaliser
from semfocus.attention.reference import reference
from semfocus.attention.registry import is_registered_normaliser
from semfocus.counter_rng import in_functorch
from semfocus.errors import UsageError, unknown

log = logging.getLogger(__name__)

SPARSE = 8  # lists of keys are faster where a query keeps at most one key in so many
SHORT = 256  # up to so many keys, all scores at once are faster than lists of keys (benchmarks/attention.py)
FEW_SCORES = 2**13  # of a head, up to which the same holds for more keys: a few queries (benchmarks/huggingface.py)


@dataclass(frozen=True)
class Backend:
    """A way to compute attention, and the reason why it cannot serve given inputs (None if it can)."""

    run: Callable[[AttentionInputs, bool], tuple[Tensor, AttentionInfo | None]]
    refuses: Callable[[AttentionInputs, bool], str | None]


def _sdpa_refuses(inputs: AttentionInputs, want_info: bool) -> str | None:
    if not inputs.mechanism.keeps_all:
        return f"it computes full attention only, not {inputs.mechanism}"
    if inputs.mask is not None or inputs.bias is not None or inputs.lengths is not None:
        return "masks and lengths are left to the dense backend, which keeps dropped values out of the sum"
    if inputs.k_positions is not None:
        return "explicit positions are left to the dense backend"
    if inputs.causal and inputs.num_queries != inputs.num_keys:
        return "causal attention with fewer queries than keys aligns differently there"
    if inputs.causal and not inputs.scale > 0:
        return f"it masks before it scales, and scale = {inputs.scale!r} is not positive"
    if 0 in (inputs.num_keys, inputs.num_queries, inputs.lead.numel(), inputs.v.shape[-1]):
        return "there is nothing to compute"
    return _softmax_only(inputs) or ("it cannot tell what it kept (return_info)" if want_info else None)


def _chunked_refuses(inputs: AttentionInputs, want_info: bool) -> str | None:
    if not inputs.mechanism.is_ranked:
        return f"{inputs.mechanism} does not choose a short list of keys"
    return _listed_refuses(inputs)


def _local_refuses(inputs: AttentionInputs, want_info: bool) -> str | None:
    if not inputs.mechanism.is_local:
        return f"{inputs.mechanism} is not given by positions within a window or block"
    if inputs.mechanism.num_globals and inputs.k_positions is not None:
        return "explicit positions of global tokens are left to the dense backend"
    if want_info and inputs.mechanism.num_globals:
        return "the lists of return_info would hold every key, because global queries keep all"
    return _listed_refuses(inputs)


def _listed_refuses(inputs: AttentionInputs) -> str | None:
    if inputs.bias is not None and inputs.bias.requires_grad and torch.is_grad_enabled():
        return "the gradient of a float mask needs all scores"
    if inputs.num_keys == 0:
        return "there are no keys"
    if not is_registered(inputs.mechanism):
        return f"{type(inputs.mechanism).__name__} is not registered; decorate it with @register_mechanism"
    if in_functorch():
        return "torch.func needs plain tensor operations"
    if inputs.learned:
        return "the gradient of learned parameters needs plain tensor operations"
    normaliser = inputs.normaliser
    if not normaliser.is_softmax and not (normaliser.serves_lists and is_registered_normaliser(normaliser)):
        return f"it computes the normalisers that go by the kept keys alone, not {normaliser}"
    return "straight_through needs the weights of dropped keys" if inputs.straight_through else None


def _softmax_only(inputs: AttentionInputs) -> str | None:
    if not inputs.normaliser.is_softmax:
        return f"it computes softmax only, not {inputs.normaliser}"
    if inputs.straight_through:
        return "straight_through needs the weights of dropped keys"
    if inputs.dropout_seed is not None:
        return "its dropout is not the one that every backend shares"
    return None


BACKENDS: dict[str, Backend] = {
    "reference": Backend(reference, lambda inputs, want_info: None),
    "dense": Backend(dense, lambda inputs, want_info: None),
    "sdpa": Backend(sdpa, _sdpa_refuses),
    "chunked": Backend(chunked, _chunked_refuses),
    "local": Backend(local, _local_refuses),
    "linear": Backend(linear, linear_refuses),
    "triton": Backend(triton, triton_refuses),
}


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism | str = ..., *, causal: bool = ..., mask: Tensor | None = ...,
    lengths: Tensor | None = ..., q_positions: Tensor | None = ..., k_positions: Tensor | None = ...,
    normaliser: Normaliser | str = ..., scale: float | None = ..., dropout_p: float = ...,
    generator: torch.Generator | None = ..., seed: Tensor | None = ..., enable_gqa: bool = ...,
    straight_through: bool = ..., assume_finite: bool = ..., learned: Mapping[str, Tensor] | None = ...,
    backend: str | None = ..., return_info: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism | str = ..., *, causal: bool = ..., mask: Tensor | None = ...,
    lengths: Tensor | None = ..., q_positions: Tensor | None = ..., k_positions: Tensor | None = ...,
    normaliser: Normaliser | str = ..., scale: float | None = ..., dropout_p: float = ...,
    generator: torch.Generator | None = ..., seed: Tensor | None = ..., enable_gqa: bool = ...,
    straight_through: bool = ..., assume_finite: bool = ..., learned: Mapping[str, Tensor] | None = ...,
    backend: str | None = ..., return_info: Literal[True],
) -> tuple[Tensor, AttentionInfo]: ...  # fmt: skip


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism | str = Full(),
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    normaliser: Normaliser | str = Softmax(),
    scale: float | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    enable_gqa: bool = False,
    straight_through: bool = False,
    assume_finite: bool = False,
    learned: Mapping[str, Tensor] | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> Tensor | tuple[Tensor, AttentionInfo]:
    """Attention in which each query sees only the keys that `mechanism` keeps.

    q, k, v      (..., H, Lq, D), (..., H, Lk, D), (..., H, Lk, Dv), as for torch's scaled_dot_product_attention
    mechanism    TopK(8), Banded(9, globals=1), ... or the text form "topk:8"
    causal       query i sees keys up to i + Lk - Lq: the last query and the last key share a position. (torch's
                 is_causal lets query i see keys up to i: the same where Lq = Lk, and another set where they differ)
    mask         bool (True = may be kept) or float (added to the scaled scores), broadcastable to (..., H, Lq, Lk)
    lengths      (...) whole numbers: keys from that one on are padding
    q_positions, k_positions   (..., Lq), (..., Lk) whole numbers: where queries and keys stand in their text, for
                 windows, blocks, sinks and causality; a token with a negative one is padding. Default: 0 .. Lk - 1,
                 and for queries the positions of the last Lq keys. Texts packed into one row need a mask besides
    normaliser   Softmax(), Sigmoid(bias=-2.5), ... or the text form "sigmoid:-2.5"
    generator    the source of randomness of dropout and RandomK; every backend draws the same from it
    seed         instead of a generator: int64, broadcastable to (..., H). With a seed of its own, what a batch entry
                 draws does not depend on the rest of the batch
    enable_gqa   k and v may have fewer heads, each shared by consecutive heads of q
    straight_through   dropped keys get the gradient of attention over all keys (research; off)
    assume_finite      omit the guards against NaN and infinity in q, k and v, for callers who check by themselves
    learned      by name, what a layer has learned for mechanism or normaliser: {"scale": (..., H, Lq or 1)} of SSMax,
                 {"beta": ..., "gamma": ...} of ASEntmax, {"centroids": (..., H, C, D)} of Routing
    backend      reference, dense, sdpa, chunked, local, linear or triton; None chooses. All agree up to rounding

    The selection is a constant for the gradient; the weights of the kept keys are differentiated. A query without keys
    gives zeros. NaN in the value of a key that a query does not keep has no effect on it; a kept value that is not
    finite shows in the output. Hidden keys of NaN change no output, but gradients: zero times NaN is NaN.
    """
    inputs = prepare_inputs(
        q,
        k,
        v,
        as_mechanism(mechanism),
        normaliser=as_normaliser(normaliser),
        causal=causal,
        mask=mask,
        lengths=lengths,
        q_positions=q_positions,
        k_positions=k_positions,
        scale=scale,
        dropout_p=dropout_p,
        generator=generator,
        seed=seed,
        enable_gqa=enable_gqa,
        straight_through=straight_through,
        assume_finite=assume_finite,
        learned=learned,
    )
    if observers:
        report(inputs, enable_gqa)
    name = choose_backend(inputs, return_info) if backend is None else _named_backend(backend, inputs, return_info)
    with _without_autocast(q.device.type):
        out, info = BACKENDS[name].run(inputs, return_info)
    if enable_gqa:
        out, info = out.flatten(-4, -3), info.ungrouped() if info else None
    return (out, info) if info is not None else out


def as_mechanism(mechanism: Mechanism | str) -> Mechanism:
    """A mechanism, or the one that a text form stands for."""
    value = parse_mechanism(mechanism) if isinstance(mechanism, str) else mechanism
    if not isinstance(value, Mechanism):
        raise TypeError(f"mechanism must be a Mechanism such as TopK(8) or its text form, not {mechanism!r}")
    return value


def as_normaliser(normaliser: Normaliser | str) -> Normaliser:
    """A normaliser, or the one that a text form stands for."""
    value = parse_normaliser(normaliser) if isinstance(normaliser, str) else normaliser
    if not isinstance(value, Normaliser):
        raise TypeError(f"normaliser must be a Normaliser such as Softmax() or its text form, not {normaliser!r}")
    return value


def _without_autocast(device: str) -> AbstractContextManager:
    """`prepare_inputs` casts as autocast does; backends then compute in the dtypes that they name."""
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def choose_backend(inputs: AttentionInputs, want_info: bool = False) -> str:
    """The fastest backend that can serve: kernels on a GPU, lists of keys for long sequences, else all scores."""
    if in_functorch():
        return "dense"
    skipped: dict[str, str] = {}
    chosen = "dense"
    for name in _suitable_backends(inputs):
        if name == "triton" and not _suits_kernels(inputs):
            reason = f"rows of {inputs.num_keys} keys are not for it where a query keeps many of them"
        else:
            reason = BACKENDS[name].refuses(inputs, want_info)
        if reason is None:
            chosen = name
            break
        skipped[name] = reason
    if skipped and not torch.compiler.is_compiling():
        for name, reason in skipped.items():
            log_once(str(inputs.mechanism), chosen, name, reason)
    return chosen


def _suitable_backends(inputs: AttentionInputs) -> list[str]:
    """Backends that would be faster than dense, the fastest first, whether or not they can serve."""
    if suits_linear(inputs):
        return ["linear"]
    names = ["sdpa"] if inputs.mechanism.keeps_all else []
    if inputs.q.is_cuda:
        names.append("triton")
    if _keeps_few(inputs):
        names.append("local" if inputs.mechanism.is_local else "chunked")
    return names


@lru_cache(maxsize=1024)
def log_once(mechanism: str, chosen: str, skipped: str, reason: str) -> None:
    """Tell why a faster backend does not serve: the same reason once a process."""
    log.info("%s by the backend %s, not by %s: %s", mechanism, chosen, skipped, reason)


def _suits_kernels(inputs: AttentionInputs) -> bool:
    """Whether the Triton kernels are the faster way on a GPU: see benchmarks/kernels.py and benchmarks/engine.py."""
    if torch.compiler.is_compiling() and max(inputs.num_keys, inputs.num_queries) <= MAX_WHOLE_LENGTH:
        return False  # the compiler fuses such short sequences with the operations around them
    return inputs.num_keys <= MAX_SHORT_LENGTH or _keeps_few(inputs) or serves_any_k(inputs)


def _keeps_few(inputs: AttentionInputs) -> bool:
    """Whether queries that are not global keep so few of many keys that lists are faster than matrices."""
    keys = inputs.num_keys
    if inputs.q.device.type == "cpu" and inputs.num_queries * keys <= FEW_SCORES:
        return False
    return keys > SHORT and SPARSE * inputs.mechanism.max_listed(keys) <= keys


def _named_backend(name: str, inputs: AttentionInputs, want_info: bool) -> str:
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    reason = BACKENDS[name].refuses(inputs, want_info)
    if reason:
        raise UsageError(f"backend={name!r} cannot serve this call: {reason}; pass backend=None to let attend choose")
    return name
