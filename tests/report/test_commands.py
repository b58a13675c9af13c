"""The commands that a page shows make the very runs that it shows, and cannot be smuggled words into."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from semfocus import recipes
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.config import RunConfig
from semfocus.errors import UsageError
from semfocus.execution import Executor, RunOutcome, register_executor
from semfocus.experiments.compare import comparison_of
from semfocus.report.page.page import render
from semfocus.report.page.provenance import commands
from semfocus.store import RunStore
from semfocus.training.loading import document
from tests.report.helpers import made
from tests.report.pages import data_of, text_of


@pytest.mark.parametrize(
    "choices",
    [
        {"quick": True, "attention": ["full", "topk:5"], "seeds": 2},
        {"recipe": "paper", "attention": ["full", "topk:9", "banded:5+1g"], "seeds": 3},
        {"recipe": "authors", "attention": ["topk:9", "randomk:5"], "seeds": 2},
        {"options": {"length": 12}, "epochs": 7, "stop_accuracy": 0.9, "attention": ["topk:3"], "seeds": 1},
        {"overrides": ["model.heads=2", "training.clip=null", "precision=tf32"], "attention": ["full"], "seeds": 11},
    ],
)
def test_the_command_shown_makes_these_very_runs(choices: dict, tmp_path: Path) -> None:
    experiment = comparison_of("parity", **choices)
    task = experiment.configs[0].task.build()
    RunStore(tmp_path).create_or_open_all({c.run_id(c.task.build()): document(c, task) for c in experiment.configs})
    (group,) = Results.load(tmp_path).groups
    (text,) = commands(group)
    words = shlex.split(text)
    assert words[:3] == ["semfocus", "compare", "parity"]
    again = _planned(words[2:])
    assert {c.run_id(task) for c in again} == {c.run_id(task) for c in experiment.configs}


def test_arms_that_have_fewer_seeds_have_a_command_of_their_own(tmp_path: Path) -> None:
    arms = (
        comparison_of("parity", attention=["full", "topk:5"], seeds=4),
        comparison_of("parity", attention=["banded:5"], seeds=2),
    )
    wanted = [config for arm in arms for config in arm.configs]
    task = wanted[0].task.build()
    RunStore(tmp_path).create_or_open_all({config.run_id(task): document(config, task) for config in wanted})
    (group,) = Results.load(tmp_path).groups
    again = [config for text in commands(group) for config in _planned(shlex.split(text)[2:])]
    assert sorted(config.run_id(task) for config in again) == sorted(config.run_id(task) for config in wanted)


def _planned(words: list[str]) -> list[RunConfig]:
    """The runs that `semfocus compare` with these words would train."""
    Recorder.configs.clear()
    with tempfile.TemporaryDirectory() as out:
        CliRunner().invoke(app, ["compare", *words, "--out", out, "--executor", "recorder"])
    assert Recorder.configs
    return [*Recorder.configs]


@register_executor
class Recorder(Executor):
    """Trains nothing, and keeps what it was to train."""

    name = "recorder"
    configs: ClassVar[list[RunConfig]] = []

    def run(self, cohorts: Any, store: RunStore, on_progress: Any) -> list[RunOutcome]:
        self.configs.extend(job.config for cohort in cohorts for job in cohort)
        raise UsageError("enough")


def test_seeds_of_ones_own_have_no_single_command_but_each_config_trains(tmp_path: Path) -> None:
    config = recipes.configure("parity", "full", 7)
    made(tmp_path, config, measured=[])
    page = render(Results.load(tmp_path))
    assert "No single command makes these runs" in text_of(page)
    shown = data_of(page)["groups"][0]["config"]
    assert RunConfig.model_validate(shown) == config


def test_a_task_name_cannot_smuggle_words_into_the_command(tmp_path: Path) -> None:
    config = recipes.configure("parity", "full", recipes.PAPER_SEEDS[0])
    fields = document(config, config.task.build())
    for number, name in enumerate(("x.csv; rm -rf ~", "--help")):
        fields["task"]["name"] = name
        RunStore(tmp_path / str(number)).create_or_open(config.run_id(config.task.build()), fields)
        (group,) = Results.load(tmp_path / str(number)).groups
        texts = commands(group)
        assert all(shlex.split(text)[2] == name for text in texts)
        assert not texts or not name.startswith("-")
