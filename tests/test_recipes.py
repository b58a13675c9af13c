"""The paper's hyperparameters and seeds, and what `quick` changes."""

from __future__ import annotations

from typing import get_args

import pytest
from typer.testing import CliRunner

from semfocus import recipes
from semfocus.cli import app
from semfocus.errors import UsageError


def test_the_seeds_are_the_papers_ten_and_then_a_stated_rule() -> None:
    assert recipes.seeds(3) == [153476998, 235510766, 205084180]
    assert recipes.seeds(12)[:10] == list(recipes.PAPER_SEEDS)
    assert len(set(recipes.seeds(40))) == 40
    assert recipes.seeds(12) == recipes.seeds(40)[:12]
    assert all(0 <= seed < 2**28 for seed in recipes.seeds(40))
    with pytest.raises(UsageError, match="seeds = 0 must be at least 1"):
        recipes.seeds(0)
    with pytest.raises(UsageError, match="seeds = 1000000000 must be at most 10000"):
        recipes.seeds(10**9)


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


def test_the_authors_recipe_turns_on_every_quirk_of_their_code() -> None:
    config = recipes.configure("listops", "topk:5", 1, recipe="authors")
    model = config.model
    assert (model.padding_visible, model.pad_to_multiple) == (True, True)
    assert (model.dropout_in_evaluation, model.first_norm_exact) == (True, True)
    assert config.training.drop_one_row
    paper, authors = (recipes.configure("parity", "randomk:5", 1, recipe=name) for name in ("paper", "authors"))
    assert not authors.training.drop_one_row, "only the loader of ListOps loses a row"
    assert (paper.attention.mechanism, authors.attention.mechanism) == ("randomk:5", "randomk_replaced:5")
    assert recipes.configure("parity", " RandomK:5", 1, recipe="authors").attention == authors.attention


@pytest.mark.parametrize("scale", ["quick", "smoke"])
def test_smaller_scales_keep_the_quirks_of_a_recipe(scale) -> None:
    whole, small = (recipes.at_scale("listops", "randomk:5", 1, "authors", size) for size in ("paper", scale))
    names = ("padding_visible", "pad_to_multiple", "dropout_in_evaluation", "first_norm_exact")
    assert all(getattr(small.model, name) for name in names)
    assert small.training.drop_one_row
    assert small.attention == whole.attention


@pytest.mark.parametrize("make", [recipes.configure, recipes.at_scale, recipes.quick, recipes.smoke])
def test_an_unknown_recipe_is_refused_wherever_one_is_named(make) -> None:
    with pytest.raises(UsageError, match="did you mean 'paper'"):
        make("parity", "full", 1, "papr")


# The run ids of these configurations before there was a recipe `authors`: no recipe may change what others make.
IDS = {"clean": "314b343abde66b04", "paper": "dfd1b2c665410d50"}


@pytest.mark.parametrize("recipe", IDS)
def test_the_ids_of_the_older_recipes_do_not_change(recipe) -> None:
    config = recipes.configure("even_pairs", "topk:5", 153476998, recipe)
    assert config.run_id(config.task.build()) == IDS[recipe]


@pytest.mark.parametrize("command", ["compare", "run", "pack"])
def test_the_command_line_knows_every_recipe(command) -> None:
    refused = CliRunner().invoke(app, [command, "even_pairs", "--recipe", "papr"])
    assert refused.exit_code == 2
    assert all(f"'{recipe}'" in refused.output for recipe in get_args(recipes.Recipe))


def test_quick_keeps_architecture_and_optimiser_and_shrinks_the_numbers() -> None:
    small, whole = recipes.quick("even_pairs", "topk:5", 1), recipes.configure("even_pairs", "topk:5", 1)
    assert small.task.build().seq_len == 20
    assert small.model.model_copy(update={"blocks": 5}) == whole.model
    changed = {"epochs": whole.training.epochs, "stop_accuracy": None}
    assert small.training.model_copy(update=changed) == whole.training
    assert recipes.quick("listops", "topk:5", 1).task.build().seq_len == 79
