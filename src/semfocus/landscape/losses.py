"""The mean loss of many models at once, over examples that they share, without dropout.

M models are the members of one parameter matrix (M, P). Examples are taken a chunk at a time and expanded over the
members, not copied. On a GPU a chunk is one captured graph, and nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.model import EAGER, ForwardFns, forward
from semfocus.spec import Spec
from semfocus.training.data import Rows

# Of all members together: what stays in a CPU's cache, what fills a GPU.
POSITIONS = {"cpu": 2**13, "cuda": 2**21}
MEMBERS = {"cpu": 8, "cuda": 64}
SHARE_OF_MEMORY = 0.5  # of what is free on a GPU: the compiler and the allocator want some too


@dataclass(frozen=True)
class Plan:
    """How many models at once, and how many examples of each."""

    members: int
    rows: int


def plan(spec: Spec, rows: int, device: torch.device, positions: int | None = None) -> Plan:
    """As much as keeps the device busy and fits into its free memory; equal chunks, so that little is wasted."""
    members = MEMBERS.get(device.type, 8)
    budget = positions or POSITIONS.get(device.type, 2**14)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        budget = min(budget, int(free * SHARE_OF_MEMORY) // bytes_per_position(spec))
    most = max(1, min(rows, budget // (members * spec.length)))
    return Plan(members, -(-rows // -(-rows // most)))


def bytes_per_position(spec: Spec) -> int:
    """An upper estimate of the memory that a forward pass holds for one position."""
    model = spec.model
    return 4 * (12 * model.d_model + 4 * model.d_mlp + 4 * model.heads * (model.head_dim + 2 * spec.length))


class Losses:
    """`losses.matrix` takes the parameters, `losses()` gives (M,) float64 on the device."""

    def __init__(self, spec: Spec, rows: Rows, plan: Plan, parts: ForwardFns = EAGER) -> None:
        self.spec, self.plan, self.parts = spec, plan, parts
        device = rows.targets.device
        self.rows, self.count = rows, rows.count
        self.only_member = torch.zeros(1, 1, dtype=torch.int64, device=device)
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
        index = self.first + torch.arange(self.plan.rows, device=self.first.device)
        examples = self.rows.take(self.only_member, index.clamp(max=self.count - 1).unsqueeze(0))
        tokens, lengths, targets = examples.shared_by(self.plan.members)
        logits = forward(self.spec.layout.split(self.matrix), tokens, lengths, self.spec, None, self.parts)
        losses = self.rows.objective.loss(logits, targets)  # (M, B)
        self.total += torch.where(index < self.count, losses.double(), 0.0).sum(dim=1)
        self.first += self.plan.rows

    def _capture(self) -> None:
        """Record the work on a chunk as a CUDA graph; the first pass, which is not captured, compiles."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._chunk()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._chunk()
        self.graph = graph
