"""`attend`: attention with any mechanism, by the fastest backend that can serve the call.

out = attend(q, k, v, TopK(8))                          # as torch's scaled_dot_product_attention
out, info = attend(q, k, v, TopK(8), return_info=True)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypedDict, overload

import torch
from torch import Tensor

from semfocus.attention.arguments import check_types, prepare_inputs
from semfocus.attention.backends import BACKENDS as BACKENDS
from semfocus.attention.backends import Backend as Backend
from semfocus.attention.backends import choose_backend as choose_backend
from semfocus.attention.backends import log_once as log_once
from semfocus.attention.backends import named_backend
from semfocus.attention.inspection import AttentionInfo, observers, report
from semfocus.attention.mechanisms import Full, Mechanism, parse_mechanism
from semfocus.attention.normalisers import Normaliser, Softmax, parse_normaliser
from semfocus.attention.packed import check_boundaries, joined, joined_info, packed_calls
from semfocus.attention.recall import key_of, recalled, remember
from semfocus.errors import unknown


class AttendOptions(TypedDict, total=False):
    """The keyword arguments of `attend`."""

    causal: bool
    mask: Tensor | None
    lengths: Tensor | None
    q_positions: Tensor | None
    k_positions: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    normaliser: Normaliser | str
    scale: float | None
    dropout_p: float
    generator: torch.Generator | None
    seed: Tensor | None
    enable_gqa: bool
    straight_through: bool
    assume_finite: bool
    learned: Mapping[str, Tensor] | None
    softcap: float | None
    sinks: Tensor | None
    backend: str | None
    return_info: bool


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism | str = ..., *, causal: bool = ..., mask: Tensor | None = ...,
    lengths: Tensor | None = ..., q_positions: Tensor | None = ..., k_positions: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
    normaliser: Normaliser | str = ..., scale: float | None = ..., dropout_p: float = ...,
    generator: torch.Generator | None = ..., seed: Tensor | None = ..., enable_gqa: bool = ...,
    straight_through: bool = ..., assume_finite: bool = ..., learned: Mapping[str, Tensor] | None = ...,
    softcap: float | None = ..., sinks: Tensor | None = ..., backend: str | None = ...,
    return_info: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism | str = ..., *, causal: bool = ..., mask: Tensor | None = ...,
    lengths: Tensor | None = ..., q_positions: Tensor | None = ..., k_positions: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
    normaliser: Normaliser | str = ..., scale: float | None = ..., dropout_p: float = ...,
    generator: torch.Generator | None = ..., seed: Tensor | None = ..., enable_gqa: bool = ...,
    straight_through: bool = ..., assume_finite: bool = ..., learned: Mapping[str, Tensor] | None = ...,
    softcap: float | None = ..., sinks: Tensor | None = ..., backend: str | None = ..., return_info: Literal[True],
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
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    normaliser: Normaliser | str = Softmax(),
    scale: float | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    enable_gqa: bool = False,
    straight_through: bool = False,
    assume_finite: bool = False,
    learned: Mapping[str, Tensor] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
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
                 and for queries the positions of the last Lq keys
    cu_seqlens_q, cu_seqlens_k   (texts + 1,) int32 or int64: several texts stand one behind the other, and each attends
                 to itself alone: text i has the tokens from cu_seqlens[i] on, up to cu_seqlens[i + 1], as in
                 flash-attention's varlen functions. Keys default to the boundaries of the queries; masks and positions
                 are those of the whole row
    normaliser   Softmax(), Sigmoid(bias=-2.5), ... or the text form "sigmoid:-2.5"
    generator    the source of randomness of dropout and RandomK; every backend draws the same from it
    seed         instead of a generator: int64, broadcastable to (..., H). With a seed of its own, what a batch entry
                 draws does not depend on the rest of the batch
    enable_gqa   k and v may have fewer heads, each shared by consecutive heads of q
    straight_through   dropped keys get the gradient of attention over all keys (research; off)
    assume_finite      omit the guards against NaN and infinity in q, k and v, for callers who check by themselves
    learned      by name, what a layer has learned for mechanism or normaliser: {"scale": (..., H, Lq or 1)} of SSMax,
                 {"beta": ..., "gamma": ...} of ASEntmax, {"centroids": (..., H, C, D)} of Routing
    softcap      scores become softcap tanh(score / softcap) before a float mask is added (Gemma 2)
    sinks        (..., H) logits, each one more entry of a head's softmax that has no value: weights of keys sum to less
                 than 1 (gpt-oss). The keys that TopK(8, sinks=4) keeps are another thing
    backend      reference, dense, sdpa, chunked, local, linear or triton; None chooses. All agree up to rounding

    The selection is a constant for the gradient; the weights of the kept keys are differentiated. A query without keys
    gives zeros. NaN in the value of a key that a query does not keep has no effect on it; a kept value that is not
    finite shows in the output. Hidden keys of NaN change no output, but gradients: zero times NaN is NaN.
    """
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        options: dict[str, Any] = {
            "causal": causal, "mask": mask, "lengths": lengths, "q_positions": q_positions, "k_positions": k_positions,
            "normaliser": normaliser, "scale": scale, "dropout_p": dropout_p, "generator": generator, "seed": seed,
            "enable_gqa": enable_gqa, "straight_through": straight_through, "assume_finite": assume_finite,
            "learned": learned, "softcap": softcap, "sinks": sinks, "backend": backend,
        }  # fmt: skip
        return _attend_packed(q, k, v, as_mechanism(mechanism), (cu_seqlens_q, cu_seqlens_k), return_info, options)
    others = (q_positions, k_positions, generator, seed, learned, softcap, sinks)
    key = None
    if not (observers or dropout_p or straight_through or return_info or any(other is not None for other in others)):
        key = key_of(q, k, v, mechanism, normaliser, causal, mask, lengths, scale, enable_gqa, backend)
        if key is not None and (answer := recalled(key, q, k, v, mask, lengths)) is not None:
            return answer
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
        softcap=softcap,
        sinks=sinks,
    )
    if observers:
        report(inputs, enable_gqa)
    name = choose_backend(inputs, return_info) if backend is None else named_backend(backend, inputs, return_info)
    with _without_autocast(q.device.type):
        out, info = BACKENDS[name].run(inputs, return_info)
    if key is not None and name == "triton":
        remember(key, inputs)
    if enable_gqa:
        out, info = out.flatten(-4, -3), info.ungrouped() if info else None
    return (out, info) if info is not None else out


@torch.compiler.disable  # the boundaries are read on the host, so that the graph breaks here
def _attend_packed(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, boundaries: tuple[Tensor | None, Tensor | None],
    return_info: bool, options: dict[str, Any],
) -> Tensor | tuple[Tensor, AttentionInfo]:  # fmt: skip
    """`attend` of packed texts: one call for those of each size."""
    check_types(q, k, v)
    if options["backend"] not in (None, *BACKENDS):
        raise unknown("backend", options["backend"], BACKENDS)
    of_queries, of_keys = check_boundaries(q, k, *boundaries)
    calls = packed_calls(q, k, v, mechanism, of_queries, of_keys, options)
    if not return_info:
        if not calls:
            return attend(q, k, v, mechanism, **options)
        return joined([(call.texts, attend(*call.tensors, mechanism, **call.options)) for call in calls], dim=-2)
    if not calls:
        return attend(q, k, v, mechanism, return_info=True, **options)
    answers = [attend(*call.tensors, mechanism, return_info=True, **call.options) for call in calls]
    out = joined([(call.texts, out) for call, (out, _) in zip(calls, answers, strict=True)], dim=-2)
    return out, joined_info(calls, [info for _, info in answers], of_keys)


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
