"""The ways to compute a call of `attend`, why each may refuse one, and which is chosen.

A new way is an entry of `BACKENDS`: what runs, and the reason why it cannot serve given inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from semfocus.attention.chunked import chunked
from semfocus.attention.dense import dense, sdpa
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.backend import serves_any_k, triton, triton_refuses
from semfocus.attention.kernels.short.configs import MAX_SHORT_LENGTH, MAX_WHOLE_LENGTH
from semfocus.attention.linear import linear, linear_refuses, suits_linear
from semfocus.attention.local import local
from semfocus.attention.mechanisms import is_registered
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
    if inputs.softcap is not None:
        return "capped scores (softcap) are left to the dense backend"
    if inputs.sinks is not None:
        return "sinks are left to the dense backend"
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


def choose_backend(inputs: AttentionInputs, want_info: bool = False) -> str:
    """The fastest backend that can serve: kernels on a GPU, lists of keys for long sequences, else all scores."""
    chosen, skipped = weigh_backends(inputs, want_info)
    if skipped and not torch.compiler.is_compiling():
        for name, reason in skipped.items():
            log_once(str(inputs.mechanism), chosen, name, reason)
    return chosen


def weigh_backends(inputs: AttentionInputs, want_info: bool = False) -> tuple[str, dict[str, str]]:
    """The backend that is chosen, and of those that would be faster the reason why they cannot serve."""
    skipped: dict[str, str] = {}
    if in_functorch():
        return "dense", skipped
    for name in _suitable_backends(inputs):
        if name == "triton" and not _suits_kernels(inputs):
            reason = f"rows of {inputs.num_keys} keys are not for it where a query keeps many of them"
        else:
            reason = BACKENDS[name].refuses(inputs, want_info)
        if reason is None:
            return name, skipped
        skipped[name] = reason
    return "dense", skipped


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


def named_backend(name: str, inputs: AttentionInputs, want_info: bool) -> str:
    """The backend that a caller insists on; an error where it cannot serve."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    reason = BACKENDS[name].refuses(inputs, want_info)
    if reason:
        raise UsageError(f"backend={name!r} cannot serve this call: {reason}; pass backend=None to let attend choose")
    return name
