"""The objective's metrics of every member over its whole training, held-out and test sets, without dropout.

The sets are read as one list of examples, in chunks of equal size: little of the last chunk is wasted, and only one
shape is compiled or captured as a CUDA graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from semfocus.config import RunConfig
from semfocus.model.forward import forward
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.head import widened
from semfocus.spec import initial
from semfocus.tasks import Task
from semfocus.training import data
from semfocus.training.cohort import Cohort, spec_of
from semfocus.training.data import Examples
from semfocus.training.objective import objective_of
from semfocus.training.step import autocast

# Of all members together: what fits into a CPU's cache, and what fills a GPU.
TOKENS_AT_ONCE = {"cpu": 2**14, "cuda": 2**21}
SCORES_AT_ONCE = 2**29  # of attention: more makes a GPU no faster, takes gigabytes, and exceeds 32-bit indices
LOGITS_AT_ONCE = 2**28  # of positions: a gigabyte in 32 bits, and as much again for their probabilities

Scores = dict[str, list[float]]  # by column of metrics.jsonl, one value a member


@torch.no_grad()
def check_metrics(config: RunConfig, task: Task) -> None:
    """Score one example with an untrained model: UsageError where the objective does not give what it declares."""
    spec, objective = spec_of(config, task), objective_of(task)
    batch = task.sample(1, seed=task.data_seed(config.seed), split="train", cache=False)
    examples = data.stack([batch], spec, torch.device("cpu"), objective).every()
    parameters = spec.layout.split(initial(spec, config.seed).unsqueeze(0))
    objective.measure(forward(parameters, examples.tokens, examples.lengths, spec), examples.targets)


class Evaluator:
    """Evaluates a cohort; on a GPU the work on a chunk of examples is one captured graph."""

    def __init__(self, cohort: Cohort, parts: ForwardFns = EAGER, size: int | None = None) -> None:
        """`size` examples are evaluated at once; None: as many as suit the device."""
        self.cohort, self.parts = cohort, parts
        device, members = cohort.device, cohort.members
        self.sets = [(split, rows, cohort.evaluated[split]) for split, rows in cohort.sets.items()]
        self.counts = [count for _, _, count in self.sets]
        self.size = chunk_size(cohort) if size is None else size
        self.members = torch.arange(members, device=device).unsqueeze(-1)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        shape = len(self.sets), members
        self.sums = {  # (split, E) each
            metric.name: torch.zeros(shape, dtype=cohort.sum_dtype, device=device)
            for metric in cohort.objective.metrics
            if not metric.is_counted
        }
        self.counted = {  # (split, E, K) each
            name: torch.zeros(*shape, size, dtype=cohort.sum_dtype, device=device)
            for name, size in cohort.objective.count_sizes(cohort.spec.num_classes).items()
        }
        self.spec = cohort.spec_now
        self.graph: torch.cuda.CUDAGraph | None = None

    def scores(self) -> Scores:
        """The mean of each metric over each set, of each member."""
        self.launch()
        return self.read()

    @torch.no_grad()
    def launch(self) -> None:
        """Queue an evaluation of the parameters as the work queued before leaves them. Nothing is read back."""
        if self.cohort.spec_now != self.spec:  # a plan's next stage
            self.spec, self.graph = self.cohort.spec_now, None
        on_host = any(rows.on_host for _, rows, _ in self.sets)
        if self.cohort.device.type == "cuda" and self.graph is None and not on_host:
            self.graph = capture_graph(self._chunk)
        for tensor in (self.first, *self.sums.values(), *self.counted.values()):
            tensor.zero_()
        for _ in range(-(-sum(self.counts) // self.size)):
            if self.graph is None:
                self._chunk()
            else:
                self.graph.replay()

    def read(self) -> Scores:
        """The results of the last launch, once the device has them."""
        sums = {name: total.tolist() for name, total in self.sums.items()}
        counted = {name: values.tolist() for name, values in self.cohort.objective.from_counts(self.counted).items()}
        return {
            metric.column(split): counted[metric.name][i]
            if metric.is_counted
            else [value / count for value in sums[metric.name][i]]
            for i, (split, _, count) in enumerate(self.sets)
            for metric in self.cohort.objective.metrics
        }

    def _chunk(self) -> None:
        cohort = self.cohort
        index = self.first + torch.arange(self.size, device=self.first.device)
        tokens, lengths, targets = self._examples(index)
        with autocast(cohort):
            logits = forward(self.spec.layout.split(cohort.parameters), tokens, lengths, self.spec, None, self.parts)
        logits = widened(logits)
        ends = list(itertools.accumulate(self.counts))
        starts = [0, *ends[:-1]]
        inside = [(index >= start) & (index < end) for start, end in zip(starts, ends, strict=True)]
        in_split = torch.stack(inside).unsqueeze(1)  # (split, 1, B)
        for name, values in cohort.objective.measure(logits, targets).items():  # (E, B) each
            total = self.sums[name]
            total += torch.where(in_split, values.to(total.dtype), 0.0).sum(dim=-1)
        if self.counted:
            for name, values in cohort.objective.counts(logits, targets).items():  # (E, B, K) each
                total = self.counted[name]
                total += torch.where(in_split.unsqueeze(-1), values.to(total.dtype), 0.0).sum(dim=-2)
        self.first += self.size

    def _examples(self, index: Tensor) -> Examples:
        """The examples `index` (B,) of the list, training set first; past its end, the last one."""
        start, parts = 0, []
        for _, rows, count in self.sets:
            places = (index - start).clamp(0, rows.count - 1).expand(self.cohort.members, -1)
            parts.append((start, rows.take(self.members, places)))
            start += count
        chosen = parts[0][1]
        for first, examples in parts[1:]:
            chosen = self._merged(index < first, chosen, examples)
        return chosen

    def _merged(self, is_first: Tensor, ours: Examples, theirs: Examples) -> Examples:
        """The examples of one list where `is_first` (B,), else those of the next."""
        tokens = torch.where(is_first.unsqueeze(-1), ours.tokens, theirs.tokens)
        targets = torch.where(is_first.view(-1, *[1] * (ours.targets.dim() - 2)), ours.targets, theirs.targets)
        if ours.lengths is None and theirs.lengths is None:
            return Examples(tokens, None, targets)
        full = torch.full((), self.cohort.spec.padded_len, device=is_first.device)
        first, second = (full if part is None else part for part in (ours.lengths, theirs.lengths))
        return Examples(tokens, torch.where(is_first, first, second).expand(tokens.shape[:2]), targets)


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
    count, spec = sum(cohort.evaluated.values()), cohort.spec
    tokens = TOKENS_AT_ONCE.get(cohort.device.type, 2**14) if tokens_at_once is None else tokens_at_once
    most = tokens // (cohort.members * spec.length)
    most = min(most, scores_at_once // (cohort.members * spec.model.heads * spec.length**2))
    if spec.predicts_positions:
        most = min(most, LOGITS_AT_ONCE // (cohort.members * spec.length * spec.num_classes))
    chunks = -(-count // max(1, most))
    return -(-count // chunks)
