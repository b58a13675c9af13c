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

from semfocus.attention.inputs import Problem
from semfocus.diagnostics.capture import Sighting
from semfocus.diagnostics.launches import launch_bound, scores_at_once

HELD_BYTES = 2**28  # of copies, whatever they belong to
Place = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Pile:
    """Sightings as one problem, stacked along its first leading dimension where there are `several`."""

    places: Sequence[Place]
    problem: Problem
    grouped: bool
    several: bool


class Gathering:
    """Copies of sightings, by kind."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[Sighting]] = {}
        self._bytes = 0

    def put(self, sighting: Sighting) -> Iterable[Pile]:
        """Take a sighting in; the piles that are to be examined now."""
        problem = sighting.problem
        room = scores_at_once(problem.q.device)
        scores = problem.lead.numel() * problem.num_queries * problem.num_keys
        if not (_can_wait(problem) and 0 < 2 * scores <= room):
            return [Pile([sighting.place], problem, sighting.grouped, several=False)]
        kind = _kind(sighting)
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(replace(sighting, problem=_copied(problem)))
        self._bytes += _bytes(waiting[-1].problem)
        if self._bytes >= HELD_BYTES:
            return self.take()
        return [self._piled(kind)] if (len(waiting) + 1) * scores > room else []

    def take(self) -> Iterator[Pile]:
        """Everything that waits, stacked one kind after the other."""
        for kind in list(self._waiting):
            yield self._piled(kind)

    def _piled(self, kind: Hashable) -> Pile:
        sightings = self._waiting.pop(kind)
        problems = [sighting.problem for sighting in sightings]
        self._bytes -= sum(_bytes(problem) for problem in problems)
        q = torch.stack([problem.q for problem in problems])
        k = torch.stack([problem.k for problem in problems])
        whole = replace(
            problems[0],
            q=q,
            k=k,
            v=k,
            mask=_stacked([problem.mask for problem in problems]),
            bias=_stacked([problem.bias for problem in problems]),
            lengths=_stacked([problem.lengths for problem in problems]),
        )
        return Pile([sighting.place for sighting in sightings], whole, sightings[0].grouped, several=True)


def _can_wait(problem: Problem) -> bool:
    """Where launches are dear; and not random choices, which are numbered by the rows of their own call."""
    return launch_bound(problem.q.device) and not problem.mechanism.draws


def _looked_at(problem: Problem) -> tuple[Tensor | None, ...]:
    """The tensors on which the scores depend, and who may see them."""
    return problem.q, problem.k, problem.mask, problem.bias, problem.lengths


def _kind(sighting: Sighting) -> Hashable:
    """What sightings share that can be stacked."""
    problem = sighting.problem
    return (
        *(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in _looked_at(problem)),
        problem.lead,
        problem.mechanism,
        problem.causal,
        problem.scale,
        problem.first_query,
        problem.total_queries,
        sighting.grouped,
    )


def _bytes(problem: Problem) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _looked_at(problem) if tensor is not None)


@torch.no_grad()
def _copied(problem: Problem) -> Problem:
    """The problem with copies of all that is looked at, each with as many dimensions as the scores have; its values,
    which take memory and no part, are left behind."""
    dims = max(len(problem.lead), 1) + 2  # one for the heads, if there is none
    q = problem.q
    if q.shape[:-2] != problem.lead:  # it may be keys or values that have more rows
        q = q.expand(*problem.lead, *q.shape[-2:])
    k = _copy(problem.k, dims)
    return replace(
        problem,
        q=_copy(q, dims),
        k=k,
        v=k,
        mask=None if problem.mask is None else _copy(problem.mask, dims),
        bias=None if problem.bias is None else _copy(problem.bias, dims),
        lengths=None if problem.lengths is None else _copy(problem.lengths, dims),
        dropout_seed=None,
    )


def _copy(tensor: Tensor, dims: int) -> Tensor:
    return (tensor if tensor.dim() == dims else tensor[(None,) * (dims - tensor.dim())]).clone()


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(given) if given else None
