"""Every registered task, objective and executor keeps its promises, a plugin's too (`--plugin my_module`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from semfocus import recipes
from semfocus.config import TaskConfig
from semfocus.execution import train
from semfocus.execution.executor import registry as executors
from semfocus.tasks import get_task, task_names
from semfocus.training import Runtime
from semfocus.training.objective import get_objective, objective_names, objective_of
from tests.training.helpers import runtime, states, tiny

SLOW_TO_DRAW = {
    "listops": {"min_length": 10, "max_length": 20, "max_depth": 4},
    "text": {"megabytes": 1},
    "next_word": {"megabytes": 1, "tokenizer": "bpe:300"},
}


@pytest.mark.parametrize("name", task_names())
def test_a_task_draws_the_same_examples_again_and_labels_them_by_its_own_rule(name: str) -> None:
    task = get_task(name, **SLOW_TO_DRAW.get(name, {}))
    first, again = (task.sample(16, seed=3, split="train") for _ in range(2))
    other = task.sample(16, seed=3, split="heldout")
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert first.tokens.shape == (16, task.seq_len)
    assert int(first.tokens.max()) <= task.pad_id
    assert int(first.lengths.max()) <= task.seq_len
    if first.labels.dim() == 1 and not task.reads_files:  # of those, no rule knows the labels
        assert torch.equal(task.label(first.tokens, first.lengths), first.labels)
        assert 0 <= int(first.labels.min()) <= int(first.labels.max()) < task.num_classes
    assert json.loads(json.dumps(task.fingerprint())) == json.loads(
        json.dumps(get_task(name, **task.options).fingerprint())
    )
    assert objective_of(task).name in objective_names()
    smoke = recipes.smoke("parity" if task.reads_files else name, "full", 0)
    if task.reads_files:  # a small part of it is enough here
        smoke = smoke.model_copy(update={"task": TaskConfig.with_default_rows(name, task.options)})
    smoke.check(smoke.task.build())


@pytest.mark.parametrize("name", objective_names())
def test_an_objective_measures_what_it_declares_and_its_loss_has_a_gradient(name: str) -> None:
    objective = get_objective(name)
    shape = (2, 3, 5) if objective.predicts_positions else (2, 3)
    logits = torch.randn(*shape, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.arange(logits[..., 0].numel()).reshape(shape) % 4
    loss = objective.loss(logits, targets)
    assert loss.shape == (2, 3)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    assert [*objective.measure(logits, targets)] == [m.name for m in objective.metrics if not m.is_counted]
    sizes = objective.count_sizes(logits.shape[-1])
    counts = objective.counts(logits, targets) if sizes else {}
    assert {name: tuple(values.shape) for name, values in counts.items()} == {n: (2, 3, k) for n, k in sizes.items()}
    counted = objective.from_counts({name: values.double().sum(dim=1) for name, values in counts.items()})
    assert {*counted} == {metric.name for metric in objective.metrics if metric.is_counted}
    assert all(values.shape == (2,) for values in counted.values())
    assert objective.learned.column in objective.columns


# These need a GPU, a cluster or seconds to start one, and are tested in tests/execution and tests/faults.
ELSEWHERE = {"streams", "ray", "slurm", "slurm-local"}


@pytest.mark.parametrize("name", [name for name in executors.names() if name not in ELSEWHERE])
def test_an_executor_trains_every_cohort_and_leaves_finished_runs_alone(name: str, tmp_path: Path) -> None:
    configs = [tiny(seed, mechanism, epochs=1) for mechanism in ("full", "topk:3") for seed in (1, 2)]
    once: Runtime = runtime(jobs=2)
    assert states(train(configs, tmp_path, once, executor=name)) == ["done"] * 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert states(train(configs, tmp_path, once, executor=name)) == ["done"] * 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
