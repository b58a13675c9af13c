"""Dispersion before training follows from inputs and initial weights: it cannot tell tasks apart by their labels."""

from __future__ import annotations

import pytest
import torch

from semfocus.diagnostics.checkpoint_stats import checkpoint_stats
from semfocus.model.encoder import Encoder
from semfocus.recipes import PAPER_SEEDS, configure
from semfocus.tasks import get_task
from semfocus.tasks.base import Batch
from tests.training.helpers import begin

TASKS = ("parity", "even_pairs")


def model_before_training(task: str, mechanism: str, seed: int) -> Encoder:
    """The model of the paper's run before its first step; few examples, for they do not decide its weights."""
    config = configure(task, mechanism, seed, "paper")
    few = config.task.model_copy(update={"train_rows": 50, "heldout_rows": 10})
    cohort = begin([config.model_copy(update={"task": few})])
    return Encoder(cohort.spec, cohort.parameters[0])


@pytest.mark.parametrize("mechanism", ["full", "topk:5"])
def test_parity_and_even_pairs_start_from_equal_weights_and_have_equal_dispersion_on_equal_inputs(mechanism) -> None:
    models = [model_before_training(task, mechanism, PAPER_SEEDS[0]) for task in TASKS]
    assert torch.equal(models[0].row(), models[1].row())
    parity, even_pairs = (get_task(task) for task in TASKS)
    rows = parity.sample(60, seed=PAPER_SEEDS[0])
    labels = even_pairs.label(rows.tokens)
    assert 0.25 < (labels != rows.labels).float().mean() < 0.75, "the tasks must differ in what they ask of equal rows"
    stats = [
        checkpoint_stats(model, Batch(rows.tokens, own, rows.lengths), 5, "cpu")
        for model, own in zip(models, (rows.labels, labels), strict=True)
    ]
    assert stats[0] == stats[1]
    assert stats[0]["delta"]["95"] > 0


def test_with_inputs_of_their_own_the_two_tasks_differ_less_than_two_seeds_of_one_of_them() -> None:
    deltas = {
        task: [
            checkpoint_stats(
                model_before_training(task, "full", seed), get_task(task).sample(100, seed=seed), 5, "cpu"
            )["delta"]["95"]
            for seed in PAPER_SEEDS[:4]
        ]
        for task in TASKS
    }
    between_tasks = max(abs(one - other) for one, other in zip(*deltas.values(), strict=True))
    between_seeds = min(max(own) - min(own) for own in deltas.values())
    assert between_tasks < between_seeds, deltas
