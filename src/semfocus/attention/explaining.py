"""`explain`: which backend would compute a call of `attend`, and why the others would not.

print(semfocus.explain(q, k, v, TopK(8), causal=True))
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from semfocus.attention.arguments import check_types, prepare_inputs
from semfocus.attention.backends import BACKENDS, FEW_SCORES, SHORT, SPARSE, weigh_backends
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.kernels.backend import explain_kernels
from semfocus.attention.mechanisms import Full, Mechanism
from semfocus.attention.operator import AttendOptions, as_mechanism, as_normaliser
from semfocus.attention.packed import check_boundaries, packed_calls
from semfocus.counter_rng import in_functorch
from semfocus.errors import UsageError, unknown

_LISTS = (
    f"it can; lists of keys are faster from {SHORT} keys on (on a CPU beyond {FEW_SCORES} scores of a head), where a "
    f"query keeps at most one key in {SPARSE}"
)
# Why a backend that could serve is not taken, where nothing more can be said.
SLOWER = {
    "reference": "it can: the definition pair by pair, slow on purpose",
    "dense": "it can, and holds all scores at once",
    "sdpa": "it can, and is slower here",
    "chunked": _LISTS,
    "local": _LISTS,
    "linear": "it can; its sums are faster for longer rows of narrow heads",
    "triton": "it can, and is slower here",
}


@dataclass(frozen=True)
class Explanation:
    """What `attend` would do with a call; prints as a table.

    backend   the name of what would run; None where `backend=` insists on one that cannot serve: an error
    why       what speaks for it
    others    by name, why each of the others would not run
    kernels   by name, why each family of kernels would run or not, where the Triton kernels are spoken of
    """

    call: str
    backend: str | None
    why: str
    others: dict[str, str]
    kernels: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [self.call, f"  runs: {self.backend} ({self.why})" if self.backend else f"  error: {self.why}"]
        lines += [f"    {'kernels ' + name:20}{reason}" for name, reason in self.kernels.items()]
        lines += [f"  not {name:12}{reason}" for name, reason in self.others.items()]
        return "\n".join(lines)

    __repr__ = __str__


def explain(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism | str = Full(), **options: Unpack[AttendOptions]
) -> Explanation:
    """Which backend `attend` would choose for these very arguments, and why not the others. Computes nothing.

    Takes every argument of `attend`, checks them likewise, and draws no random number. What is chosen depends on
    shapes, types, the device and on whether a gradient is wanted, never on the values.
    """
    given: dict[str, Any] = dict(options)
    wanted, want_info = given.pop("backend", None), bool(given.pop("return_info", False))
    if wanted is not None and wanted not in BACKENDS:
        raise unknown("backend", wanted, BACKENDS)
    strange = sorted(set(given) - set(AttendOptions.__annotations__))
    if strange:
        raise TypeError(f"explain() takes the arguments of attend(), which has no {', '.join(strange)}")
    if given.get("generator") is not None and given.get("seed") is not None:
        raise UsageError("give seed or generator, not both: they are two ways to say where randomness comes from")
    # A generator must not be advanced: any seed leads to the same choice.
    draws = given.pop("generator", None) is not None or given.get("dropout_p")
    if draws and given.get("seed") is None:
        given["seed"] = torch.zeros((), dtype=torch.int64, device=q.device)
    boundaries = given.pop("cu_seqlens_q", None), given.pop("cu_seqlens_k", None)
    if boundaries != (None, None):
        return _explain_packed(q, k, v, as_mechanism(mechanism), boundaries, want_info, wanted, given)
    normaliser = as_normaliser(given.pop("normaliser", "softmax"))
    inputs = prepare_inputs(q, k, v, as_mechanism(mechanism), normaliser=normaliser, **given)
    return explain_inputs(inputs, want_info, wanted)


def _explain_packed(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, boundaries: tuple[Tensor | None, Tensor | None],
    want_info: bool, wanted: str | None, given: dict[str, Any],
) -> Explanation:  # fmt: skip
    """The explanation of the longest of packed texts."""
    check_types(q, k, v)
    of_queries, of_keys = check_boundaries(q, k, *boundaries)
    calls = packed_calls(q, k, v, mechanism, of_queries, of_keys, given)
    normaliser = as_normaliser(given.pop("normaliser", "softmax"))
    if not calls:
        given = {name: value for name, value in given.items() if name != "normaliser"}
        return explain_inputs(prepare_inputs(q, k, v, mechanism, normaliser=normaliser, **given), want_info, wanted)
    longest = max(calls, key=lambda call: call.tensors[0].shape[-2] * call.tensors[1].shape[-2])
    options = {name: value for name, value in longest.options.items() if name != "normaliser"}
    inputs = prepare_inputs(*longest.tensors, mechanism, normaliser=normaliser, **options)
    told = explain_inputs(inputs, want_info, wanted)
    texts = len(of_queries) - 1
    return replace(told, call=f"{texts} packed texts in {len(calls)} calls, the longest: {told.call}")


def explain_inputs(inputs: AttentionInputs, want_info: bool = False, wanted: str | None = None) -> Explanation:
    """`explain` of prepared inputs; `wanted` is the backend that a caller insists on."""
    refusals = {name: backend.refuses(inputs, want_info) for name, backend in BACKENDS.items()}
    chosen, skipped = weigh_backends(inputs, want_info)
    backend: str | None = chosen
    if wanted is not None:
        why = (
            "asked for"
            if refusals[wanted] is None
            else f"backend={wanted!r} cannot serve this call: {refusals[wanted]}"
        )
        backend = wanted if refusals[wanted] is None else None
    elif in_functorch():
        why = "torch.func needs plain tensor operations"
    elif chosen == "dense" and not skipped:
        why = "so few scores are fastest all at once"
    elif chosen == "dense":
        why = "nothing that would be faster can serve"
    else:
        why = "the fastest that can serve"
    others = {}
    for name, refused in refusals.items():
        if name != backend:
            passed_over = (
                skipped.get(name, SLOWER.get(name, "it can, if asked for")) if wanted is None else "not asked for"
            )
            others[name] = f"cannot: {refused}" if refused else passed_over
    kernels = explain_kernels(inputs, want_info) if backend == "triton" else {}
    return Explanation(_summary(inputs), backend, why, others, kernels)


def _summary(inputs: AttentionInputs) -> str:
    """One line on what is to be computed."""
    heads = "x".join(map(str, inputs.lead)) or "one"
    kind = str(inputs.q.dtype).removeprefix("torch.")
    options = [str(inputs.normaliser)] if not inputs.normaliser.is_softmax else []
    options += [f"softcap {inputs.softcap}"] if inputs.softcap is not None else []
    options += ["causal"] if inputs.causal else []
    options += [
        name
        for name, tensor in (
            ("mask", inputs.mask if inputs.bias is None else None), ("float mask", inputs.bias),
            ("lengths", inputs.lengths), ("positions", inputs.k_positions), ("sinks", inputs.sinks),
            ("dropout", inputs.dropout_seed),
        )
        if tensor is not None
    ]  # fmt: skip
    return (
        f"{', '.join((str(inputs.mechanism), *options))}: {heads} heads, {inputs.num_queries} queries over "
        f"{inputs.num_keys} keys, {inputs.q.shape[-1]} wide, {kind} on {inputs.q.device}"
    )
