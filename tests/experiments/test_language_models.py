"""Studies of language models: their order, their sizes and texts, their rates, and that they go on where they were."""

from __future__ import annotations

import os
import signal
from html import unescape
from pathlib import Path

import pytest

from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import UsageError
from semfocus.experiments.language_models import ARMS, COURSE, induction, pretraining, recall, scaling
from semfocus.experiments.paper_text import figure_19, figure_20
from semfocus.experiments.registry import get_study, studies
from semfocus.experiments.run import plan, run
from semfocus.experiments.tuning import choose_rates, plan_tuning
from semfocus.measurements import Sample, read
from semfocus.report.page.samples import visible
from semfocus.store import RunDirectory
from semfocus.training import Interrupted, Progress
from tests.training.helpers import runtime

LITTLE_TEXT = ("task.options.packages=stdlib", "task.options.megabytes=2")


@pytest.fixture
def notes(tmp_path: Path) -> str:
    """A corpus of one's own, as an override."""
    path = tmp_path / "notes.txt"
    path.write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(400)))
    return f"task.options.corpus={path}"


def test_pre_training_is_listed_seed_by_seed_and_length_by_length_with_as_many_tokens_a_batch() -> None:
    configs = pretraining(overrides=LITTLE_TEXT)
    places = [(c.task.options["length"], c.seed, c.attention.mechanism) for c in configs]
    assert places == sorted(places, key=lambda place: (place[0], [c.seed for c in configs].index(place[1])))
    assert tuple(mechanism for _, _, mechanism in places[:6]) == ARMS
    for config in configs:
        assert config.task.options["length"] * config.training.batch_size == 2**15
        steps = config.training.epochs * -(-config.rows(config.task.build())[0] // config.training.batch_size)
        assert 1500 <= steps <= 1510
        assert (config.model.blocks, config.model.d_model) == (6, 384)


def test_one_length_can_be_run_alone_and_is_the_same_runs() -> None:
    both = pretraining(overrides=LITTLE_TEXT, seeds=2)
    alone = pretraining(overrides=[*LITTLE_TEXT, "task.options.length=512"], seeds=2)
    assert alone == both[: len(both) // 2]


def test_sizes_differ_in_the_model_and_its_rate_alone_and_10m_is_that_of_pre_training() -> None:
    configs = scaling(overrides=LITTLE_TEXT, seeds=1)
    assert {(c.model.blocks, c.model.d_model) for c in configs} == {(5, 128), (4, 256), (6, 384), (10, 512)}
    assert len({(c.task.model_dump_json(), c.training.batch_size, c.training.epochs) for c in configs}) == 1
    ten = [c for c in configs if c.model.d_model == 384]
    first = pretraining(overrides=[*LITTLE_TEXT, "task.options.length=512"], seeds=1)
    assert [c for c in first if c.attention.mechanism in ("full", "topk:8")] == ten


def test_a_text_of_ones_own_replaces_the_sources_of_python(notes: str) -> None:
    (config, *_) = induction(overrides=[notes, "task.options.length=64"], seeds=1)
    assert "packages" not in config.task.options
    assert config.task.options["length"] == 64
    with pytest.raises(UsageError, match="is not there"):
        pretraining(overrides=["task.options.corpus=/no/such/file.txt"])


def test_a_task_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="task parity has no language models"):
        pretraining(["parity"])


def test_recall_varies_pairs_and_width_and_its_band_is_a_quarter_of_the_row() -> None:
    configs = recall(seeds=1)
    assert {(c.model.d_model, c.task.options["pairs"]) for c in configs} == {
        (width, pairs) for width in (32, 64, 128) for pairs in (8, 16, 32)
    }
    assert {c.attention.mechanism for c in configs} == {"full", "topk:8", "banded:32"}
    assert {c.training.optimizer for c in configs} == {"adamw"}


def test_figures_19_and_20_have_the_papers_sizes_rates_and_vocabularies() -> None:
    narrow, wide = figure_19(seeds=1), figure_20(seeds=1)
    assert {c.model.blocks for c in narrow} == {8, 16, 32, 64}
    assert {c.model.blocks for c in wide} == {6, 10, 15}
    for configs, numbers in ((narrow, (32, 128, 1, 50, "unigram:4096")), (wide, (128, 512, 4, 120, "bpe:10000"))):
        for c in configs:
            own = c.model.d_model, c.model.d_mlp, c.model.heads, c.training.epochs, c.task.options["tokenizer"]
            assert own == numbers
            assert (c.training.lr, c.training.decay, c.training.batch_size) == (1.0, 0.99, 128)
            assert (c.model.head_width, c.model.pooling, c.training.optimizer) == ("model", "mean", "sgd")
            assert c.task.name == "next_word"
            assert c.model.padding_visible
    assert not any(c.model.padding_visible for c in figure_19(seeds=1, recipe="clean"))
    assert all(c.model.first_norm_exact for c in figure_19(seeds=1, recipe="authors"))
    for name in ("figure_19", "figure_20"):
        assert "paper's may not be handed on" in get_study(name).asks


def test_a_study_chooses_rates_trains_keeps_checkpoints_and_is_measured(tmp_path: Path, notes: str, capsys) -> None:
    common = ["--scale", "smoke", "--seeds", "2", "--threads", "1", "--jobs", "1", "--set", notes]
    app(["run", "induction", "--measure", *common, "--out", str(tmp_path / "runs")], standalone_mode=False)
    out, err = capsys.readouterr()
    assert "learning rates to choose from: 6 runs, 0 there, 6 to train" in err
    assert "topk:8: learning rate " in err
    assert "(last held-out loss, a seed of its own)" in err
    assert "induction: 4 of 4 runs have it" in out
    results = Results.load(tmp_path / "runs")
    assert {record.config["training"]["tuned"] for record in results.records} == {
        "lr of 0.0012, 0.004, 0.012; 1 seed; last loss"
    }
    assert len(results.groups) == 1, "whatever their rates"
    (record, *_) = results.records
    steps = RunDirectory(tmp_path / "runs" / record.id).checkpoint_steps()
    assert {0, *(round(share * 6) for share in COURSE)} <= {*steps}
    drawn = (tmp_path / "runs" / "induction-1.svg").read_text()
    assert "accuracy of copying" in drawn
    samples = [read(RunDirectory(tmp_path / "runs" / record.id), Sample) for record in results.records]
    assert len({sample.prompt for sample in samples if sample}) == 1, "as `compare` has them, one of each run"
    assert all(samples)
    page = unescape((tmp_path / "runs" / "report.html").read_text())
    assert "What the models write" in page
    for sample in samples:
        assert sample is not None
        assert visible(sample.text) in page
    app(["run", "induction", *common, "--out", str(tmp_path / "runs"), "--dry-run"], standalone_mode=False)
    assert "4 runs, 4 there, 0 to train" in capsys.readouterr().out, "the rates are known without training"


def test_a_study_that_is_cut_off_while_it_tunes_goes_on_to_the_same_rates(tmp_path: Path, notes: str) -> None:
    experiment = get_study("scaling").experiment(scale="smoke", seeds=1, overrides=[notes])
    whole = choose_rates(experiment, plan_tuning(experiment, out=tmp_path / "whole"), runtime())

    def stop(progress: Progress) -> None:
        if progress.members[0].config.model.d_model == 16 and progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        choose_rates(experiment, plan_tuning(experiment, out=tmp_path / "cut"), runtime(), stop)
    rest = plan_tuning(experiment, out=tmp_path / "cut")
    assert 0 < len(rest.waiting) < len(rest.jobs) == 3 * 2 * 3
    resumed = choose_rates(experiment, rest, runtime())
    assert resumed.lines == whole.lines
    assert len(resumed.rates) == 6, "a rate for each mechanism at each size"
    outcome = run(plan(resumed.experiment, tmp_path / "cut"), runtime())
    assert {each.state for each in outcome.runs} == {"done"}
    names = {path.name for path in outcome.figures}
    assert {"scaling-1.svg", "scaling-2.svg"} <= names
    assert "parameters of the blocks" in (tmp_path / "cut" / "scaling-1.svg").read_text()
    (verdict,) = (each for each in Results.load(tmp_path / "cut").verdicts if each.claim == "C20")
    assert verdict.outcome == "not decided"


def test_studies_are_listed_in_one_order_whichever_module_was_imported_first() -> None:
    names = [each.name for each in studies()]
    one_a_module = ("figure_1", "figure_19", "k_sweep", "temperature", "heavy_hitters", "pretraining")
    assert sorted(one_a_module, key=names.index) == list(one_a_module)
