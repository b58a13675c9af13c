"""Loss and accuracy of every member over its whole training and held-out sets, without dropout."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from semfocus.model import PLAIN, Parts, forward
from semfocus.training.cohort import Cohort
from semfocus.training.data import Rows

TOKENS_AT_ONCE = {"cpu": 2**14, "cuda": 2**21}  # of all members together: what stays in a cache, what fills a GPU


class Scores(NamedTuple):
    """One value a member, as Python floats."""

    train_loss: list[float]
    train_accuracy: list[float]
    heldout_loss: list[float]
    heldout_accuracy: list[float]


class Evaluator:
    """Scores a cohort; on a GPU the work on a chunk of rows is one captured graph."""

    def __init__(self, cohort: Cohort, parts: Parts = PLAIN) -> None:
        self.sets = [_Set(cohort, rows, parts) for rows in (cohort.train, cohort.heldout)]

    def scores(self) -> Scores:
        train, heldout = (part.measure() for part in self.sets)
        return Scores(*train, *heldout)


class _Set:
    def __init__(self, cohort: Cohort, rows: Rows, parts: Parts) -> None:
        self.cohort, self.rows, self.parts = cohort, rows, parts
        device = cohort.device
        self.count = rows.count - cohort.configs[0].training.drop_one_row
        budget = TOKENS_AT_ONCE.get(device.type, 2**14) // (cohort.members * cohort.spec.length)
        self.size = max(1, min(budget, self.count))
        self.members = torch.arange(cohort.members, device=device).unsqueeze(-1)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros(cohort.members, dtype=torch.float64, device=device)
        self.correct = torch.zeros(cohort.members, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def measure(self) -> tuple[list[float], list[float]]:
        """Mean loss and accuracy of each member."""
        if self.cohort.device.type == "cuda" and self.graph is None:
            self._capture()
        for tensor in (self.first, self.loss, self.correct):
            tensor.zero_()
        for _ in range(-(-self.count // self.size)):
            if self.graph is None:
                self._chunk()
            else:
                self.graph.replay()
        return (self.loss / self.count).tolist(), (self.correct.double() / self.count).tolist()

    def _chunk(self) -> None:
        places = self.first + torch.arange(self.size, device=self.first.device)
        inside = places < self.count
        rows = places.clamp(max=self.count - 1).expand(self.cohort.members, -1)
        tokens, filled, labels = self.rows.take(self.members, rows)
        parameters = self.cohort.spec.layout.split(self.cohort.parameters)
        logits = forward(parameters, tokens, filled, self.cohort.spec, None, self.parts)
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        self.loss += torch.where(inside, losses.double(), 0.0).sum(dim=1)
        self.correct += ((logits.argmax(dim=-1) == labels) & inside).sum(dim=1)
        self.first += self.size

    def _capture(self) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._chunk()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._chunk()
        self.graph = graph
