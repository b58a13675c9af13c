"""Sightings that are alike, put aside to be examined as one problem: some hundred operations for all, not for each.

    gathering = Gathering()
    for pile in gathering.put(sighting): ...        mostly none; a pile once there are scores enough for it
    for pile in gathering.take(): ...               what is left, before results are read

A model may write into its queries and keys after the call (rotation in place, caches), so copies are put aside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.diagnostics.capture import CapturedCall
from semfocus.diagnostics.launches import launch_bound, scores_at_once

HELD_BYTES = 2**28  # of copies, whatever they belong to
Place = tuple[str, int]


@dataclass(frozen=True, eq=False)
class CallBatch:
    """Sightings as one problem, stacked along its first leading dimension where there are `several`."""

    places: Sequence[Place]
    inputs: AttentionInputs
    grouped: bool
    several: bool


class Gathering:
    """Copies of sightings, by kind."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[CapturedCall]] = {}
        self._bytes = 0

    def put(self, sighting: CapturedCall) -> Iterable[CallBatch]:
        """Take a sighting in; the piles that are to be examined now."""
        inputs = sighting.inputs
        room = scores_at_once(inputs.q.device)
        scores = inputs.lead.numel() * inputs.num_queries * inputs.num_keys
        if not (_can_wait(inputs) and 0 < 2 * scores <= room):
            return [CallBatch([sighting.place], inputs, sighting.grouped, several=False)]
        kind = _kind(sighting)
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(replace(sighting, inputs=_copied(inputs)))
        self._bytes += _bytes(waiting[-1].inputs)
        if self._bytes >= HELD_BYTES:
            return self.take()
        return [self._piled(kind)] if (len(waiting) + 1) * scores > room else []

    def take(self) -> Iterator[CallBatch]:
        """Everything that waits, stacked one kind after the other."""
        for kind in list(self._waiting):
            yield self._piled(kind)

    def _piled(self, kind: Hashable) -> CallBatch:
        sightings = self._waiting.pop(kind)
        problems = [sighting.inputs for sighting in sightings]
        self._bytes -= sum(_bytes(inputs) for inputs in problems)
        q = torch.stack([inputs.q for inputs in problems])
        k = torch.stack([inputs.k for inputs in problems])
        whole = replace(
            problems[0],
            q=q,
            k=k,
            v=k,
            mask=_stacked([inputs.mask for inputs in problems]),
            bias=_stacked([inputs.bias for inputs in problems]),
            lengths=_stacked([inputs.lengths for inputs in problems]),
        )
        return CallBatch([sighting.place for sighting in sightings], whole, sightings[0].grouped, several=True)


def _can_wait(inputs: AttentionInputs) -> bool:
    """Where launches are dear; and not random choices, which are numbered by the rows of their own call."""
    return launch_bound(inputs.q.device) and not inputs.mechanism.is_stochastic


def _looked_at(inputs: AttentionInputs) -> tuple[Tensor | None, ...]:
    """The tensors on which the scores depend, and who may see them."""
    return inputs.q, inputs.k, inputs.mask, inputs.bias, inputs.lengths


def _kind(sighting: CapturedCall) -> Hashable:
    """What sightings share that can be stacked."""
    inputs = sighting.inputs
    return (
        *(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in _looked_at(inputs)),
        inputs.lead,
        inputs.mechanism,
        inputs.causal,
        inputs.scale,
        inputs.first_query,
        inputs.total_queries,
        sighting.grouped,
    )


def _bytes(inputs: AttentionInputs) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _looked_at(inputs) if tensor is not None)


@torch.no_grad()
def _copied(inputs: AttentionInputs) -> AttentionInputs:
    """The problem with copies of all that is looked at, each with as many dimensions as the scores have; its values,
    which take memory and no part, are left behind."""
    dims = max(len(inputs.lead), 1) + 2  # one for the heads, if there is none
    q = inputs.q
    if q.shape[:-2] != inputs.lead:  # it may be keys or values that have more rows
        q = q.expand(*inputs.lead, *q.shape[-2:])
    k = _copy(inputs.k, dims)
    return replace(
        inputs,
        q=_copy(q, dims),
        k=k,
        v=k,
        mask=None if inputs.mask is None else _copy(inputs.mask, dims),
        bias=None if inputs.bias is None else _copy(inputs.bias, dims),
        lengths=None if inputs.lengths is None else _copy(inputs.lengths, dims),
        dropout_seed=None,
    )


def _copy(tensor: Tensor, dims: int) -> Tensor:
    return (tensor if tensor.dim() == dims else tensor[(None,) * (dims - tensor.dim())]).clone()


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(given) if given else None
