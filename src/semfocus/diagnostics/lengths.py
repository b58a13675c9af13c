"""Accuracy by length: a trained run on longer sequences than it was trained on.

    measure_lengths(run).accuracy          one number for each length of the ladder N, 2 N, 4 N, ... up to 16 N

N is the longest length of training. Each length is stored as soon as it is measured, so that an interrupted measurement
goes on where it was. Examples are of the split `test`, which no training sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from semfocus.config import RunConfig
from semfocus.errors import UsageError, check_int
from semfocus.measurements import LengthCurve, keep, read
from semfocus.model.encoder import Encoder
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task, get_task
from semfocus.tasks.registry import option_defaults
from semfocus.training.loading import config_of, load
from semfocus.training.objective import ACCURACY, LOSS, objective_of
from semfocus.training.runtime import Runtime, numerics

FACTOR, ROWS = 16, 500
SCORES_AT_ONCE = 2**24  # of attention, in one layer


def longest_trained(config: RunConfig) -> int:
    """N: the longest length of the run's training. UsageError for a task without an option `length`."""
    default = option_defaults(config.task.name).get("length")
    if type(default) is not int:
        raise UsageError(f"task {config.task.name} has no option length, so that it cannot be drawn at other lengths")
    return config.task.span[1] if config.task.span else int(config.task.options.get("length", default))


def ladder(longest: int, factor: int = FACTOR) -> list[int]:
    """N, 2 N, 4 N, ... up to factor N."""
    check_int("factor", factor, at_least=1)
    return [longest * 2**i for i in range(int(math.log2(factor)) + 1)]


def measure_lengths(
    run: str | Path | RunDirectory,
    lengths: Sequence[int] | None = None,
    rows: int = ROWS,
    runtime: Runtime = Runtime(),
    *,
    out: Path | str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> LengthCurve:
    """Measure loss and accuracy at these lengths (None: the ladder); what is stored already is read."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    check_int("rows", rows, at_least=1)
    config = config_of(directory)
    asked = ladder(longest_trained(config)) if lengths is None else [check_int("length", n, 1) for n in lengths]
    model, step = load(directory), newest_step(directory)
    settings = {"step": step, "rows": rows}
    curve = read(directory, LengthCurve, settings)
    for done, length in enumerate(asked):
        on_progress(done, len(asked))
        if curve is None or length not in curve.points:
            task = task_at(config, length)
            with numerics(config.precision, runtime.threads or runtime.num_threads()):
                point = _scores(model.to(runtime.torch_device()), task, task.data_seed(config.seed), rows)
            curve = keep(directory, LengthCurve.from_payload({**settings, "points": {str(length): point}}))
    on_progress(len(asked), len(asked))
    if curve is None:
        raise UsageError("no length was asked for; give one or more, or None for the ladder")
    return curve


@torch.no_grad()
def _scores(model: Encoder, task: Task, seed: int, rows: int) -> dict[str, float]:
    """The mean loss and accuracy over so many examples of the split `test`."""
    objective, spec = objective_of(task), model.spec.model
    names = [metric.name for metric in objective.metrics if metric in (LOSS, ACCURACY)]
    batch = task.sample(rows, seed=seed, split="test")
    targets, device = objective.targets(batch), next(model.parameters()).device
    size = max(1, SCORES_AT_ONCE // (spec.heads * task.seq_len**2))
    totals = dict.fromkeys(names, 0.0)
    for first in range(0, rows, size):
        part = slice(first, first + size)
        logits = model(batch.tokens[part].to(device), batch.lengths[part].to(device))
        values = objective.measure(logits.unsqueeze(0), targets[part].unsqueeze(0).to(device))
        for name in names:
            totals[name] += values[name].double().sum().item()
    return {name: total / rows for name, total in totals.items()}


def task_at(config: RunConfig, length: int) -> Task:
    """The run's task with examples of this length."""
    longest_trained(config)
    return get_task(config.task.name, **{**config.task.options, "length": length})


def examples_at(config: RunConfig, length: int, rows: int) -> Tensor:
    """(rows, L) examples of the split `test`, of one length and without padding."""
    task = task_at(config, length)
    batch = task.sample(rows, seed=task.data_seed(config.seed), split="test")
    own = batch.lengths.unique()
    if len(own) > 1:
        raise UsageError(f"examples of task {config.task.name} differ in length, so that no one length is measured")
    return batch.tokens[:, : int(own)]


def newest_step(run: RunDirectory) -> int:
    steps = run.checkpoint_steps()
    if not steps:
        raise UsageError(f"run {run.id} has no checkpoint yet; train it first")
    return max(steps)
