"""The mean loss of many models at once, over rows that they share, without dropout.

M models are the members of one parameter matrix (M, P). Rows are taken a chunk at a time and expanded over the
members, not copied. On a GPU a chunk is one captured graph, and nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.model import EAGER, ForwardFns, forward
from semfocus.spec import Spec
from semfocus.training.data import Rows

# Of all members together: what stays in a CPU's cache, what fills a GPU.
POSITIONS = {"cpu": 2**13, "cuda": 2**21}
MEMBERS = {"cpu": 8, "cuda": 64}
SHARE_OF_MEMORY = 0.5  # of what is free on a GPU: the compiler and the allocator want some too


@dataclass(frozen=True)
class Plan:
    """How many models at once, and how many rows of each."""

    members: int
    rows: int


def plan(spec: Spec, rows: int, device: torch.device, positions: int | None = None) -> Plan:
    """As much as keeps the device busy and fits into what memory is free; equal chunks, so that little is wasted."""
    members = MEMBERS.get(device.type, 8)
    budget = positions or POSITIONS.get(device.type, 2**14)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        budget = min(budget, int(free * SHARE_OF_MEMORY) // bytes_per_position(spec))
    most = max(1, min(rows, budget // (members * spec.length)))
    return Plan(members, -(-rows // -(-rows // most)))


def bytes_per_position(spec: Spec) -> int:
    """What a forward pass holds of one position at a time, generously counted."""
    model = spec.model
    return 4 * (12 * model.d_model + 4 * model.d_mlp + 4 * model.heads * (model.head_dim + 2 * spec.length))


class Losses:
    """`losses.matrix` takes the parameters, `losses()` gives (M,) float64 on the device."""

    def __init__(self, spec: Spec, rows: Rows, plan: Plan, parts: ForwardFns = EAGER) -> None:
        self.spec, self.plan, self.parts = spec, plan, parts
        device = rows.labels.device
        self.tokens, self.labels = rows.tokens[0], rows.labels[0]
        self.valid_mask = None if rows.valid_mask is None else rows.valid_mask[0]
        self.count = rows.count
        self.matrix = torch.zeros(plan.members, spec.layout.size, device=device)
        self.total = torch.zeros(plan.members, dtype=torch.float64, device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def __call__(self) -> Tensor:
        if self.matrix.is_cuda and self.graph is None:
            self._capture()
        self.total.zero_()
        self.first.zero_()
        for _ in range(-(-self.count // self.plan.rows)):
            if self.graph is None:
                self._chunk()
            else:
                self.graph.replay()
        return self.total / self.count

    def _chunk(self) -> None:
        places = self.first + torch.arange(self.plan.rows, device=self.first.device)
        inside = places < self.count
        places = places.clamp(max=self.count - 1)
        tokens, labels = self._shared(self.tokens[places].long()), self._shared(self.labels[places].long())
        valid_mask = None if self.valid_mask is None else self._shared(self.valid_mask[places])
        logits = forward(self.spec.layout.split(self.matrix), tokens, valid_mask, self.spec, None, self.parts)
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        self.total += torch.where(inside, losses.double(), 0.0).sum(dim=1)
        self.first += self.plan.rows

    def _shared(self, rows: Tensor) -> Tensor:
        return rows.expand(self.plan.members, *rows.shape)

    def _capture(self) -> None:
        """Record the work on a chunk as a CUDA graph; the first, uncaptured pass compiles what is to be compiled."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self._chunk()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._chunk()
        self.graph = graph
