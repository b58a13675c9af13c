"""The paper's hyperparameters and seeds, and what `quick` changes."""

from __future__ import annotations

import pytest

from semfocus import recipes
from semfocus.errors import UsageError


def test_the_seeds_are_the_papers_ten_and_then_a_stated_rule() -> None:
    assert recipes.seeds(3) == [153476998, 235510766, 205084180]
    assert recipes.seeds(12)[:10] == list(recipes.PAPER_SEEDS)
    assert len(set(recipes.seeds(40))) == 40
    assert recipes.seeds(12) == recipes.seeds(40)[:12]
    assert all(0 <= seed < 2**28 for seed in recipes.seeds(40))
    with pytest.raises(UsageError, match="seeds = 0 must be at least 1"):
        recipes.seeds(0)


@pytest.mark.parametrize(
    ("task", "epochs", "blocks", "lr", "decay"),
    [("even_pairs", 100, 5, 0.1, 0.9995), ("parity", 1000, 5, 0.1, 0.9995), ("listops", 200, 10, 1.0, 0.99)],
)
def test_a_task_gets_the_papers_hyperparameters(task, epochs, blocks, lr, decay) -> None:
    config = recipes.configure(task, "topk:5", 1)
    training = config.training
    assert (training.epochs, config.model.blocks, training.lr, training.decay) == (epochs, blocks, lr, decay)
    assert (training.batch_size, training.clip, config.model.dropout) == (25, 0.5, 0.01)
    assert (config.task.train_rows, config.task.heldout_rows) == (5000, 2000)
    assert not config.model.padding_visible


def test_the_paper_recipe_turns_on_the_two_quirks_that_shape_the_input() -> None:
    model = recipes.configure("listops", "topk:5", 1, recipe="paper").model
    assert model.padding_visible
    assert model.pad_to_multiple
    assert not model.dropout_in_evaluation
    assert not model.first_norm_exact


def test_quick_keeps_architecture_and_optimiser_and_shrinks_the_numbers() -> None:
    small, whole = recipes.quick("even_pairs", "topk:5", 1), recipes.configure("even_pairs", "topk:5", 1)
    assert small.task.build().seq_len == 20
    assert small.model.model_copy(update={"blocks": 5}) == whole.model
    changed = {"epochs": whole.training.epochs, "stop_accuracy": None}
    assert small.training.model_copy(update=changed) == whole.training
    assert recipes.quick("listops", "topk:5", 1).task.build().seq_len == 79
