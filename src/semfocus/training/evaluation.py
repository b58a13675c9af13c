"""The objective's metrics of every member over its whole training and held-out sets, without dropout.

The two sets are read as one list of examples, in chunks of equal size: little of the last chunk is wasted, and only one
shape is compiled or captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from semfocus.model import EAGER, ForwardFns, forward
from semfocus.training.cohort import Cohort
from semfocus.training.data import Examples
from semfocus.training.objective import SPLITS

# Of all members together: what fits into a CPU's cache, and what fills a GPU.
TOKENS_AT_ONCE = {"cpu": 2**14, "cuda": 2**21}
SCORES_AT_ONCE = 2**29  # of attention: more makes a GPU no faster, takes gigabytes, and exceeds 32-bit indices

Scores = dict[str, list[float]]  # by column of metrics.jsonl, one value a member


class Evaluator:
    """Evaluates a cohort; on a GPU the work on a chunk of examples is one captured graph."""

    def __init__(self, cohort: Cohort, parts: ForwardFns = EAGER, size: int | None = None) -> None:
        """`size` examples are evaluated at once; None: as many as suit the device."""
        self.cohort, self.parts = cohort, parts
        device, members = cohort.device, cohort.members
        dropped = cohort.configs[0].training.drop_one_row
        self.counts = cohort.train.count - dropped, cohort.heldout.count - dropped
        self.size = chunk_size(cohort) if size is None else size
        self.members = torch.arange(members, device=device).unsqueeze(-1)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.sums = {  # (split, E) each
            metric.name: torch.zeros(len(SPLITS), members, dtype=cohort.sum_dtype, device=device)
            for metric in cohort.objective.metrics
        }
        self.graph: torch.cuda.CUDAGraph | None = None

    def scores(self) -> Scores:
        """The mean of each metric over each set, of each member."""
        self.launch()
        return self.read()

    @torch.no_grad()
    def launch(self) -> None:
        """Queue an evaluation of the parameters as the work queued before leaves them. Nothing is read back."""
        if self.cohort.device.type == "cuda" and self.graph is None:
            self.graph = capture_graph(self._chunk)
        for tensor in (self.first, *self.sums.values()):
            tensor.zero_()
        for _ in range(-(-sum(self.counts) // self.size)):
            if self.graph is None:
                self._chunk()
            else:
                self.graph.replay()

    def read(self) -> Scores:
        """The results of the last launch, once the device has them."""
        sums = {name: total.tolist() for name, total in self.sums.items()}
        return {
            metric.column(split): [value / count for value in sums[metric.name][i]]
            for i, (split, count) in enumerate(zip(SPLITS, self.counts, strict=True))
            for metric in self.cohort.objective.metrics
        }

    def _chunk(self) -> None:
        cohort, (train, heldout) = self.cohort, self.counts
        index = self.first + torch.arange(self.size, device=self.first.device)
        tokens, lengths, targets = self._examples(index, train)
        logits = forward(cohort.spec.layout.split(cohort.parameters), tokens, lengths, cohort.spec, None, self.parts)
        in_split = torch.stack([index < train, (index >= train) & (index < train + heldout)]).unsqueeze(1)
        for name, values in cohort.objective.measure(logits, targets).items():  # (E, B) each
            total = self.sums[name]
            total += torch.where(in_split, values.to(total.dtype), 0.0).sum(dim=-1)
        self.first += self.size

    def _examples(self, index: Tensor, train: int) -> Examples:
        """The examples `index` (B,) of the list, training set first; past its end, the last one."""
        is_train = index < train
        ours, theirs = (
            rows.take(self.members, chosen.clamp(0, rows.count - 1).expand(self.cohort.members, -1))
            for rows, chosen in ((self.cohort.train, index), (self.cohort.heldout, index - train))
        )
        tokens = torch.where(is_train.unsqueeze(-1), ours.tokens, theirs.tokens)
        targets = torch.where(is_train.view(-1, *[1] * (ours.targets.dim() - 2)), ours.targets, theirs.targets)
        if ours.lengths is None and theirs.lengths is None:
            return Examples(tokens, None, targets)
        full = torch.full((), self.cohort.spec.padded_len, device=index.device)
        first, second = (full if part is None else part for part in (ours.lengths, theirs.lengths))
        return Examples(tokens, torch.where(is_train, first, second).expand(tokens.shape[:2]), targets)


def capture_graph(work: Callable[[], None], warm_up: int = 1) -> torch.cuda.CUDAGraph:
    """Record `work` as a CUDA graph. It runs `warm_up` times before, since compiling cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def chunk_size(cohort: Cohort, tokens_at_once: int | None = None, scores_at_once: int = SCORES_AT_ONCE) -> int:
    """Examples to take at once: as many as suit the device, so that the last chunk is nearly full.

    `tokens_at_once` None: as many as `TOKENS_AT_ONCE` gives for the device.
    """
    count = cohort.train.count + cohort.heldout.count - 2 * cohort.configs[0].training.drop_one_row
    spec = cohort.spec
    tokens = TOKENS_AT_ONCE.get(cohort.device.type, 2**14) if tokens_at_once is None else tokens_at_once
    most = tokens // (cohort.members * spec.length)
    most = min(most, scores_at_once // (cohort.members * spec.model.heads * spec.length**2))
    chunks = -(-count // max(1, most))
    return -(-count // chunks)
