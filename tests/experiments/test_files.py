"""A user's own study file: the same runs as the same study in Python, and every wrong file refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from semfocus.errors import UsageError
from semfocus.experiments.files import read_study
from semfocus.experiments.paper_figures import figure_2
from semfocus.experiments.registry import find_study
from tests.experiments.test_studies import ids

WIDER = """
title = "Does focus still help wider models?"
tasks = ["even_pairs", "parity", "parity"]
mechanisms = ["full", "topk:5"]
seeds = 3

[overrides]
training.epochs = 50
"task.options.length" = 30

[axes]
model.d_model = [32, 64, 128, 32]
"training.lr" = [0.1, 0.3]
"""


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str, name: str = "wider.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


def test_axes_are_crossed_with_tasks_mechanisms_and_seeds(write) -> None:
    found = read_study(write(WIDER))
    configs = found.runs()
    assert (found.name, found.title, found.recipe) == ("wider", "Does focus still help wider models?", "clean")
    assert len(configs) == len(ids(configs)) == 2 * 2 * 3 * (3 * 2)
    assert {(c.model.d_model, c.training.lr) for c in configs} == {(w, r) for w in (32, 64, 128) for r in (0.1, 0.3)}
    assert {(c.training.epochs, c.task.options["length"]) for c in configs} == {(50, 30)}
    assert found.panels[0].each == ("task.name", "model.d_model", "training.lr")


def test_a_file_that_says_what_figure_2_says_has_the_same_runs(write) -> None:
    file = write(
        'title = "2"\ntasks = ["listops", "even_pairs", "missing_duplicate"]\nrecipe = "paper"\n'
        'mechanisms = ["full", "banded:5", "block_local:5", "banded:5+1g", "block_local:5+1g", "topk:5"]\n'
        '[axes]\nmodel.activation = ["mish", "gelu"]\n'
    )
    assert ids(read_study(file).runs()) == ids(figure_2())
    again = write("tasks: [parity]\nmechanisms: [full]\nseeds: 1\naxes: {model: {blocks: [1, 2]}}", "small.yaml")
    assert len(read_study(again).runs()) == 2


def test_choices_of_the_command_win_over_the_file_s(write) -> None:
    found = find_study(str(write(WIDER)))
    configs = found.runs(tasks=["cycle_navigation"], seeds=1, recipe="paper", overrides=["training.epochs=5"])
    assert {(c.task.name, c.training.epochs, c.model.padding_visible) for c in configs} == {
        ("cycle_navigation", 5, True)
    }
    assert len(configs) == 2 * 6
    small = find_study(str(write('scale = "smoke"\ntasks = ["parity"]\nmechanisms = ["full"]')))
    assert small.runs()[0].model.d_model == 8
    assert small.runs(scale="paper")[0].model.d_model == 64
    every_quirk = find_study(
        str(write('recipe = "authors"\ntasks = ["listops"]\nmechanisms = ["randomk:5"]\nseeds = 1'))
    )
    (config,) = every_quirk.runs()
    assert (config.attention.mechanism, config.training.drop_one_row) == ("randomk_replaced:5", True)


def test_the_order_of_values_in_a_file_does_not_change_the_runs(write) -> None:
    turned = WIDER.replace('["even_pairs", "parity", "parity"]', '["parity", "even_pairs"]')
    turned = turned.replace("[32, 64, 128, 32]", "[128, 32, 64]").replace('"full", "topk:5"', '"topk:5", "full"')
    assert ids(read_study(write(turned, "turned.toml")).runs()) == ids(read_study(write(WIDER)).runs())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("seeds = 3", "seds = 3", r"unknown key 'seds'; did you mean 'seeds'"),
        ("[axes]", "[axis]", r"unknown key 'axis'; did you mean 'axes'"),
        ("seeds = 3", "seeds = 0", "seeds = 0 must be at least 1"),
        ("seeds = 3", 'seeds = "3"', "seeds = '3' must be a whole number"),
        ("seeds = 3", "seeds = true", "seeds = True must be a whole number"),
        ("seeds = 3", 'recipe = "papr"', "did you mean 'paper'"),
        ("seeds = 3", 'scale = "tiny"', "unknown scale 'tiny'"),
        ("seeds = 3", 'metrics = ["train_los"]', "did you mean 'train_loss'"),
        ('title = "Does focus still help wider models?"', "title = 3", "title = '3' must be a text"),
        ('title = "Does', 'title = "\\u001b[31mDoes', "must be a text of at most 500 characters on one line"),
        ('["full", "topk:5"]', "[]", "mechanisms = .* must be a list of at least one name"),
        ('["full", "topk:5"]', '"full"', "mechanisms = 'full' must be a list of at least one name"),
        ('["full", "topk:5"]', '["full", "topkk:5"]', "did you mean 'topk'"),
        ('tasks = ["even_pairs", "parity", "parity"]', "", "tasks = .* must be a list"),
        ("model.d_model = [32, 64, 128, 32]", "model.d_model = 32", r"axes.model.d_model = 32 must be a list"),
        ("model.d_model = [32, 64, 128, 32]", "model.d_model = []", r"axes.model.d_model = \[\] must be a list"),
        ("model.d_model", "model.width", r"unknown key 'model.width'"),
        ("model.d_model", '"model..x"', "is not a field of a configuration"),
        ("model.d_model = [32, 64, 128, 32]", "model.d_model = [-1]", r"model.d_model = -1"),
        ("model.d_model = [32, 64, 128, 32]", "training.epochs = [1]", "both an axis and an override"),
        ("model.d_model = [32, 64, 128, 32]", "seed = [1, 2]", "axes.seed: write that as seeds"),
        ("model.d_model", "attention.mechanism", "axes.attention.mechanism: write that as mechanisms"),
        ("[overrides]", "overrides = 3\n[other]", "unknown key 'other'"),
        ("[axes]", "[axes", "wider.toml: "),
        ("seeds = 3", "seeds = 2000-01-01", "put it in quotes"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_and_the_message_says_what_would_be_right(write, before, after, message) -> None:
    assert before in WIDER
    with pytest.raises(UsageError, match=message):
        read_study(write(WIDER.replace(before, after))).runs()


def test_a_file_with_absurdly_many_combinations_is_refused_at_once(write) -> None:
    values = list(range(1, 101))
    axes = "\n".join(f"model.{name} = {values}" for name in ("blocks", "heads", "d_model", "d_mlp"))
    file = write(f'tasks = ["parity"]\nmechanisms = ["full"]\nseeds = 1\n[axes]\n{axes}\n')
    with pytest.raises(UsageError, match="100000000 runs are more than a study may have"):
        read_study(file).runs(most=100_000)
    few = write(f'tasks = ["parity"]\nmechanisms = ["full"]\nseeds = 60\n[axes]\nmodel.blocks = {values}\n')
    with pytest.raises(UsageError, match="6000 runs are more than 5000; if that is meant, give --yes"):
        read_study(few).runs()


def test_a_file_that_is_not_there_or_not_a_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        find_study(str(tmp_path / "nowhere.toml"))
    with pytest.raises(UsageError, match="its name must end in"):
        find_study(f"{tmp_path}/study.py")


def test_a_file_s_name_cannot_lead_its_figures_out_of_the_store(write) -> None:
    assert read_study(write(WIDER, "a b..%2f$(x).toml")).name == "a-b-2f-x-"
