"""Loss and accuracy of every member over its whole training and held-out sets, without dropout.

The two sets are read as one long list of rows, in chunks of one size: few rows are computed for nothing, and a GPU
captures, and a compiler compiles, one shape alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.model import EAGER, ForwardFns, forward
from semfocus.training.cohort import Cohort
from semfocus.training.data import accumulator

# Of all members together: what stays in a cache, what fills a GPU.
TOKENS_AT_ONCE = {"cpu": 2**14, "cuda": 2**21}
SCORES_AT_ONCE = 2**29  # of attention: more fills a GPU no better, takes gigabytes, and passes 32-bit indices


class Scores(NamedTuple):
    """One value a member, as Python floats."""

    train_loss: list[float]
    train_accuracy: list[float]
    heldout_loss: list[float]
    heldout_accuracy: list[float]


class Evaluator:
    """Scores a cohort; on a GPU the work on a chunk of rows is one captured graph."""

    def __init__(self, cohort: Cohort, parts: ForwardFns = EAGER) -> None:
        self.cohort, self.parts = cohort, parts
        device, members = cohort.device, cohort.members
        dropped = cohort.configs[0].training.drop_one_row
        self.counts = cohort.train.count - dropped, cohort.heldout.count - dropped
        self.size = chunk_size(cohort)
        self.members = torch.arange(members, device=device).unsqueeze(-1)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros(2, members, dtype=accumulator(device), device=device)
        self.correct = torch.zeros(2, members, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def scores(self) -> Scores:
        """Mean loss and accuracy of each member over each set."""
        if self.cohort.device.type == "cuda" and self.graph is None:
            self._capture()
        for tensor in (self.first, self.loss, self.correct):
            tensor.zero_()
        for _ in range(-(-sum(self.counts) // self.size)):
            if self.graph is None:
                self._chunk()
            else:
                self.graph.replay()
        means = [
            [[value / count for value in values] for values, count in zip(sums.tolist(), self.counts, strict=True)]
            for sums in (self.loss, self.correct)
        ]
        return Scores(means[0][0], means[1][0], means[0][1], means[1][1])

    def _chunk(self) -> None:
        train, both = self.counts[0], sum(self.counts)
        places = self.first + torch.arange(self.size, device=self.first.device)
        tokens, valid_mask, labels = self._rows(places, train)
        parameters = self.cohort.spec.layout.split(self.cohort.parameters)
        logits = forward(parameters, tokens, valid_mask, self.cohort.spec, None, self.parts)
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        right = logits.argmax(dim=-1) == labels
        inside = torch.stack([places < train, (places >= train) & (places < both)]).unsqueeze(1)
        self.loss += torch.where(inside, losses.to(self.loss.dtype), 0.0).sum(dim=-1)
        self.correct += (right & inside).sum(dim=-1)
        self.first += self.size

    def _rows(self, places: Tensor, train: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """The rows at these places of the list, training rows first; past its end, the last row."""
        is_train = places < train
        first, second = (
            rows.take(self.members, chosen.clamp(0, rows.count - 1).expand(self.cohort.members, -1))
            for rows, chosen in ((self.cohort.train, places), (self.cohort.heldout, places - train))
        )
        tokens = torch.where(is_train.unsqueeze(-1), first[0], second[0])
        labels = torch.where(is_train, first[2], second[2])
        if first[1] is None and second[1] is None:
            return tokens, None, labels
        whole = torch.ones((), dtype=torch.bool, device=places.device)
        ours, theirs = (whole if part is None else part for part in (first[1], second[1]))
        return tokens, torch.where(is_train.unsqueeze(-1), ours, theirs).expand_as(tokens), labels

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


def chunk_size(cohort: Cohort) -> int:
    """Rows to take at once: as many as the device does well, cut so that the last chunk is nearly full."""
    rows = cohort.train.count + cohort.heldout.count - 2 * cohort.configs[0].training.drop_one_row
    spec = cohort.spec
    most = TOKENS_AT_ONCE.get(cohort.device.type, 2**14) // (cohort.members * spec.length)
    most = min(most, SCORES_AT_ONCE // (cohort.members * spec.model.heads * spec.length**2))
    chunks = -(-rows // max(1, most))
    return -(-rows // chunks)
