"""Captured calls of one shape, held back and measured as one batch: some hundred operations for all, not for each.

    batcher = CallBatcher()
    for batch in batcher.put(call): ...             usually none; a batch once there are enough scores
    for batch in batcher.take(): ...                the rest, before results are read

A model may write into its queries and keys after the call (rotation in place, caches), so copies are held.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.diagnostics.capture import CapturedCall
from semfocus.diagnostics.scores import held_bytes, launch_bound, scores_at_once

Place = tuple[str, int]


@dataclass(frozen=True, eq=False)
class CallBatch:
    """Calls as one AttentionInputs, stacked along its first leading dimension where there are `several`."""

    places: Sequence[Place]
    inputs: AttentionInputs
    grouped: bool
    several: bool


class CallBatcher:
    """Copies of captured calls, by shape."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[CapturedCall]] = {}
        self._bytes = 0

    def put(self, call: CapturedCall) -> Iterable[CallBatch]:
        """Hold a call back, or not; the batches to measure now."""
        inputs = call.inputs
        room = scores_at_once(inputs.q.device)
        scores = inputs.lead.numel() * inputs.num_queries * inputs.num_keys
        if not (_can_wait(inputs) and 0 < 2 * scores <= room):
            return [CallBatch([call.place], inputs, call.grouped, several=False)]
        key = _shape_key(call)
        waiting = self._waiting.setdefault(key, [])
        waiting.append(replace(call, inputs=_copied(inputs)))
        self._bytes += _bytes(waiting[-1].inputs)
        if self._bytes >= held_bytes():
            return self.take()
        return [self._stack(key)] if (len(waiting) + 1) * scores > room else []

    def take(self) -> Iterator[CallBatch]:
        """Every call that is held, one batch for each shape."""
        for key in list(self._waiting):
            yield self._stack(key)

    def _stack(self, key: Hashable) -> CallBatch:
        calls = self._waiting.pop(key)
        inputs_of_calls = [call.inputs for call in calls]
        self._bytes -= sum(_bytes(inputs) for inputs in inputs_of_calls)
        q = torch.stack([inputs.q for inputs in inputs_of_calls])
        k = torch.stack([inputs.k for inputs in inputs_of_calls])
        whole = replace(
            inputs_of_calls[0],
            q=q,
            k=k,
            v=k,
            mask=_stacked([inputs.mask for inputs in inputs_of_calls]),
            bias=_stacked([inputs.bias for inputs in inputs_of_calls]),
            lengths=_stacked([inputs.lengths for inputs in inputs_of_calls]),
            sinks=_stacked([inputs.sinks for inputs in inputs_of_calls]),
            q_positions=_stacked([inputs.q_positions for inputs in inputs_of_calls]),
            k_positions=_stacked([inputs.k_positions for inputs in inputs_of_calls]),
        )
        return CallBatch([call.place for call in calls], whole, calls[0].grouped, several=True)


def _can_wait(inputs: AttentionInputs) -> bool:
    """Only where launches are expensive. Random choices cannot wait: they are seeded by the rows of their own call."""
    return launch_bound(inputs.q.device) and not inputs.mechanism.is_stochastic


def _measured_tensors(inputs: AttentionInputs) -> tuple[Tensor | None, ...]:
    """The tensors on which the scores and the masks depend."""
    positions = inputs.q_positions, inputs.k_positions
    return inputs.q, inputs.k, inputs.mask, inputs.bias, inputs.lengths, inputs.sinks, *positions


def _shape_key(call: CapturedCall) -> Hashable:
    """What calls must share to be stacked."""
    inputs = call.inputs
    return (
        *(
            None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
            for tensor in _measured_tensors(inputs)
        ),
        inputs.lead,
        inputs.mechanism,
        inputs.causal,
        inputs.scale,
        inputs.softcap,
        inputs.first_query,
        inputs.total_queries,
        call.grouped,
    )


def _bytes(inputs: AttentionInputs) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _measured_tensors(inputs) if tensor is not None)


@torch.no_grad()
def _copied(inputs: AttentionInputs) -> AttentionInputs:
    """Copies of every tensor that is measured, each with as many dimensions as the scores. Values are not measured, and
    not copied."""
    dims = max(len(inputs.lead), 1) + 2  # at least one for the heads
    q = inputs.q
    if q.shape[:-2] != inputs.lead:  # keys or values may have more rows
        q = q.expand(*inputs.lead, *q.shape[-2:])
    k = _copy(inputs.k, dims)
    return replace(
        inputs,
        q=_copy(q, dims),
        k=k,
        v=k,
        mask=_copied_or_none(inputs.mask, dims),
        bias=_copied_or_none(inputs.bias, dims),
        lengths=_copied_or_none(inputs.lengths, dims),
        sinks=_copied_or_none(inputs.sinks, dims),
        q_positions=_copied_or_none(inputs.q_positions, dims),
        k_positions=_copied_or_none(inputs.k_positions, dims),
        dropout_seed=None,
    )


def _copy(tensor: Tensor, dims: int) -> Tensor:
    return (tensor if tensor.dim() == dims else tensor[(None,) * (dims - tensor.dim())]).clone()


def _copied_or_none(tensor: Tensor | None, dims: int) -> Tensor | None:
    return None if tensor is None else _copy(tensor, dims)


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(given) if given else None
