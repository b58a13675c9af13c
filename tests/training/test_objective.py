"""An objective decides targets, loss, metrics and when a run has learned; runs are trained, stopped and read by it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import semfocus
from semfocus import recipes
from semfocus.analysis.results import Results
from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.fused import refuses
from semfocus.landscape.losses import Losses, Plan
from semfocus.landscape.trained_model import open_trained_model
from semfocus.model.encoder import Encoder
from semfocus.store import RunDirectory
from semfocus.tasks import NO_TARGET, Batch, get_task
from semfocus.tasks.even_pairs import EvenPairs
from semfocus.tasks.export import Recipe, export
from semfocus.tasks.registry import TASKS
from semfocus.training import load
from semfocus.training.cohort import spec_of
from semfocus.training.objective import (
    ACCURACY,
    CLASSIFICATION,
    LOSS,
    OBJECTIVES,
    Learned,
    Metric,
    Objective,
    get_objective,
    objective_names,
    register_objective,
)
from tests.training.copy_task import Copy
from tests.training.helpers import begin, runtime, tiny

CAUSAL = ["full", "topk:3", "banded:5", "topk:3+1s+2w", "randomk:3", "topk:3~0.5"]


def copying(mechanism: str = "full", seed: int = 1, length: int = 10, **training: Any) -> RunConfig:
    return RunConfig(
        task=TaskConfig(name="copy_string", options={"length": length}, train_rows=300, heldout_rows=60),
        attention=AttentionConfig(mechanism=mechanism),
        model=ModelConfig(blocks=2, d_model=32, d_mlp=32, dropout=0.0),
        training=TrainingConfig(**{"epochs": 12, "optimizer": "adam", "lr": 0.004} | training),
        seed=seed,
    )


def model_of(mechanism: str) -> Encoder:
    cohort = begin([copying(mechanism)])
    cohort.parameters *= 3
    return cohort.member(0)


class Silent(Objective):
    """Declares a metric that it does not measure."""

    name = "silent"

    def targets(self, batch: Batch) -> torch.Tensor:
        return batch.labels

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return CLASSIFICATION.loss(logits, targets)


def test_objectives_can_be_asked_for_names_and_thresholds_without_torch() -> None:
    code = (
        "import sys\nfrom semfocus.training.objective import CLASSIFICATION as o\n"
        "assert list(o.columns) == ['train_loss', 'train_accuracy', 'heldout_loss', 'heldout_accuracy']\n"
        "assert o.learned.text() == '95 % training accuracy'\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("learned", "good", "bad", "text"),
    [
        (Learned(), 0.95, 0.94, "95 % training accuracy"),
        (Learned(LOSS, 1.5), 1.5, 1.6, "training loss 1.5"),
        (Learned(ACCURACY, 0.5, split="heldout"), 0.5, 0.4, "50 % held-out accuracy"),
    ],
)
def test_learned_compares_a_metric_with_a_threshold_in_its_direction(
    learned: Learned, good: float, bad: float, text: str
) -> None:
    assert learned.reached(good)
    assert not learned.reached(bad)
    assert not learned.reached(math.nan)
    assert learned.metric.is_better(good, bad)
    assert learned.metric.is_better(bad, learned.metric.worst)
    assert learned.text() == text
    assert learned.direction == (">=" if good > bad else "<=")


def test_an_objective_whose_metric_is_missing_is_refused() -> None:
    error = Metric("error", "error", higher_is_better=False)
    cases = {
        "it is learned by the metric 'error', which is missing": {"learned": Learned(error, 0.1)},
        "the metric 'loss' is missing": {"metrics": (ACCURACY,)},
        "a metric is declared twice": {"metrics": (LOSS, ACCURACY, ACCURACY)},
    }
    for message, fields in cases.items():
        with pytest.raises(UsageError, match=f"objective Broken: {message}"):
            register_objective(type("Broken", (Silent,), {"name": "broken", **fields}))
    with pytest.raises(UsageError, match="an objective called 'classification' is registered already"):
        register_objective(type("Other", (Silent,), {"name": "classification"}))
    with pytest.raises(UsageError, match="unknown objective 'next_tokn'; did you mean 'next_token'"):
        get_objective("next_tokn")
    assert objective_names()[:2] == ["classification", "next_token"]


def test_a_metric_that_is_declared_but_not_measured_is_refused_at_the_first_evaluation() -> None:
    with pytest.raises(UsageError, match=r"'silent' declares the metric 'accuracy', but .* does not return it"):
        Silent().measure(torch.zeros(1, 3, 2), torch.zeros(1, 3, dtype=torch.int64))


def test_next_token_is_the_mean_cross_entropy_over_the_targets_of_each_example() -> None:
    batch = get_task("copy_string", length=10).sample(20, seed=3, lengths=(2, 10))
    objective = get_objective("next_token")
    targets = objective.targets(batch)
    logits = torch.randn(20, 10, 4, generator=torch.Generator().manual_seed(0))
    measured = objective.measure(logits.unsqueeze(0), targets.unsqueeze(0))
    for i, length in enumerate(batch.lengths.tolist()):
        own = slice(length // 2 - 1, length - 1)  # from the end of the first string to the last token but one
        assert targets[i, own].tolist() == batch.tokens[i, length // 2 : length].tolist()
        assert (targets[i] != NO_TARGET).sum() == length // 2
        expected = functional.cross_entropy(logits[i, own], targets[i, own])
        assert measured["loss"][0, i].item() == pytest.approx(expected.item(), rel=1e-5)
        right = (logits[i, own].argmax(-1) == targets[i, own]).double().mean()
        assert measured["accuracy"][0, i].item() == pytest.approx(right.item(), rel=1e-5)


def test_a_task_that_cannot_have_its_objective_is_refused_with_the_reason() -> None:
    class TooFewClasses(Copy):
        num_classes = 2

    class OneLabel(Copy):
        def label_rows(self, tokens: Any, lengths: Any) -> Any:
            return tokens[:, 0]

    class NoTargets(Copy):
        def label_rows(self, tokens: Any, lengths: Any) -> Any:
            return super().label_rows(tokens, lengths) * 0 + NO_TARGET

    with pytest.raises(UsageError, match=r"num_classes = 2, but next_token predicts one of its vocab_size = 4"):
        spec_of(copying(), TooFewClasses())
    with pytest.raises(UsageError, match=r"labels have shape \(5,\), tokens \(5, 24\)"):
        get_objective("next_token").targets(OneLabel().sample(5, seed=0))
    with pytest.raises(UsageError, match="example 0 has no target"):
        get_objective("next_token").targets(NoTargets().sample(5, seed=0))


def test_a_causal_objective_refuses_global_tokens_and_a_class_token() -> None:
    with pytest.raises(UsageError, match=r"banded:5\+1g: global tokens see the whole sequence"):
        spec_of(copying("banded:5+1g"), Copy(length=10))
    config = copying()
    config = config.model_copy(update={"model": config.model.model_copy(update={"pooling": "cls"})})
    with pytest.raises(UsageError, match=r"model\.pooling = cls"):
        spec_of(config, Copy(length=10))


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_no_position_sees_the_tokens_after_it(mechanism: str) -> None:
    model = model_of(mechanism)
    tokens = Copy(length=10).sample(6, seed=5).tokens
    with torch.no_grad():
        before = model(tokens)
        assert before.shape == (6, 10, 4)
        for position in range(1, 10):
            other = tokens.clone()
            other[:, position] = (other[:, position] + 1) % 4
            after = model(other)
            assert torch.equal(after[:, :position], before[:, :position])
            assert not torch.equal(after[:, position], before[:, position])


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_padding_changes_no_prediction_before_it(mechanism: str) -> None:
    model = model_of(mechanism)
    batch = Copy(length=10).sample(6, seed=5, lengths=(6, 6), per="batch")
    with torch.no_grad():
        padded, short = model(batch.tokens, batch.lengths), model(batch.tokens[:, :6])
    torch.testing.assert_close(padded[:, :6], short, rtol=1e-5, atol=1e-6)


def test_fused_kernels_refuse_a_causal_model() -> None:
    reason = refuses(spec_of(copying(), Copy(length=10)), torch.device("cpu"))
    assert reason == "every position sees the whole sequence, not only the positions before it"


def test_next_token_learns_to_copy_and_the_run_records_it(tmp_path: Path) -> None:
    configs = [copying(mechanism, epochs=25, stop_accuracy=0.97) for mechanism in ("full", "topk:4")]
    for outcome in train(configs, tmp_path, runtime()):
        rows = outcome.run.metrics()
        assert outcome.state == "done"
        assert rows[-1]["heldout_accuracy"] > 0.9
        assert rows[-1]["train_loss"] < 0.3 * rows[0]["train_loss"]
        assert (outcome.run.status() or {})["reason"] == "training accuracy reached 0.97"
        assert outcome.run.config()["objective"] == "next_token"
        (record,) = Results.load(outcome.run.path.parent, [outcome.run.id]).records
        assert record.converged_at == next(row["epoch"] for row in rows if row["train_accuracy"] >= 0.95)
        _, heldout = semfocus.training.data.load(outcome.config, outcome.config.task.build())
        predicted = load(outcome.run).predict(heldout.tokens, heldout.lengths)
        has_target = heldout.labels != NO_TARGET
        share = (predicted == heldout.labels)[has_target].double().mean().item()
        assert share == pytest.approx(rows[-1]["heldout_accuracy"], abs=1e-6)
        subject = open_trained_model(outcome.run)
        losses = Losses(subject.spec, subject.rows, Plan(members=1, rows=100))
        losses.matrix.copy_(subject.parameters)
        assert losses()[0].item() == pytest.approx(rows[-1]["train_loss"], rel=1e-4)
    assert not Results.load(tmp_path).faults


def test_a_task_that_is_not_in_the_paper_can_be_compared_without_a_setting(tmp_path: Path) -> None:
    comparison = semfocus.compare(
        "copy_string",
        attention=["full", "topk:4"],
        seeds=1,
        quick=True,
        epochs=1,
        device="cpu",
        threads=1,
        out=tmp_path,
    )
    assert [arm.mechanism for arm in comparison.arms] == ["full", "topk:4"]
    assert (tmp_path / "report.html").exists()
    for scale, rows, length in (("paper", (400, 100), 24), ("quick", (400, 100), 20), ("smoke", (60, 30), 12)):
        config = recipes.at_scale("copy_string", "full", 1, scale=scale)
        assert config.rows(config.task.build()) == rows
        assert config.task.build().seq_len == length


class LowLoss(Silent):
    """Learned once the training loss is low; measures nothing else."""

    name = "low_loss"
    metrics = (LOSS,)
    learned = Learned(LOSS, 0.6)


class EvenPairsByLoss(EvenPairs):
    name = "even_pairs_by_loss"
    objective = "low_loss"


@pytest.fixture
def _by_loss() -> Iterator[None]:
    with OBJECTIVES.temporarily(LowLoss), TASKS.temporarily(EvenPairsByLoss):
        yield


@pytest.mark.usefixtures("_by_loss")
def test_an_objective_learned_by_its_loss_stops_and_converges_below_the_threshold(tmp_path: Path) -> None:
    config = tiny(
        1, task="even_pairs_by_loss", lr=0.02, optimizer="adam", epochs=40, stop_accuracy=0.9, model={"dropout": 0.0}
    )
    (outcome,) = train([config], tmp_path, runtime())
    rows = outcome.run.metrics()
    assert set(rows[0]) == {"epoch", "step", "lr", "train_loss", "heldout_loss"}
    assert [row["train_loss"] <= 0.6 for row in rows] == [False] * (len(rows) - 1) + [True]
    assert (outcome.run.status() or {})["reason"] == "training loss reached 0.6"
    (record,) = Results.load(outcome.run.path.parent, [outcome.run.id]).records
    assert record.converged_at == rows[-1]["epoch"]
    assert len(Results.load(tmp_path).records) == 1


@pytest.mark.usefixtures("_by_loss")
def test_a_task_without_accuracy_can_be_compared(tmp_path: Path) -> None:
    sizes = ["task.train_rows=60", "task.heldout_rows=20", "model.blocks=1", "training.optimizer=adam"]
    choices: dict[str, Any] = {"seeds": 1, "epochs": 30, "overrides": [*sizes, "training.lr=0.01"]}
    comparison = semfocus.compare(
        "even_pairs_by_loss",
        attention=["full"],
        options={"length": 4},
        device="cpu",
        threads=1,
        out=tmp_path,
        **choices,
    )
    assert comparison.arm("full").times.median is not None
    assert (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("_by_loss")
def test_patience_counts_from_the_lowest_loss_and_survives_a_restart(tmp_path: Path) -> None:
    config = tiny(1, task="even_pairs_by_loss", lr=1e-9, epochs=9, patience=2, model={"dropout": 0.0})
    (outcome,) = train([config], tmp_path, runtime())
    rows, status = outcome.run.metrics(), outcome.run.status() or {}
    best = min(rows, key=lambda row: row["train_loss"])
    assert status["reason"] == "no gain in training loss for 2 epochs"
    assert rows[-1]["epoch"] == best["epoch"] + 2
    checkpoint = outcome.run.load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.meta["best_value"] == best["train_loss"]
    assert checkpoint.meta["best_step"] == best["step"]


def test_a_run_of_format_1_is_a_classifier_and_still_matches_its_config(tmp_path: Path) -> None:
    config = tiny(1, epochs=1)
    (outcome,) = train([config], tmp_path, runtime())
    path = outcome.run.path / "config.json"
    document = json.loads(path.read_text())
    assert document["config"].pop("objective") == "classification"
    document["format"] = 1
    del document["sha256"]
    document["config"]["training"]["until"] = document["config"]["training"].pop("stop_accuracy")
    sizes = document["config"]["sizes"]
    document["config"]["sizes"] = {"num_symbols": sizes["vocab_size"], "num_classes": 2, "width": sizes["seq_len"]}
    path.write_text(json.dumps(document))
    (again,) = train([config], tmp_path, runtime())
    assert again.state == "done"
    assert RunDirectory(again.run.path).config()["objective"] == "classification"
    assert load(again.run).spec.is_causal is False


def test_a_task_with_a_label_at_every_position_can_be_shown_exported_and_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMFOCUS_CACHE", str(tmp_path / "cache"))
    task = Copy(length=6)
    drawn, kept, again = (task.sample(4, seed=1, lengths=(2, 6), cache=cache) for cache in (False, True, True))
    for batch in (kept, again):
        assert torch.equal(batch.tokens, drawn.tokens)
        assert torch.equal(batch.labels, drawn.labels)
    assert torch.equal(task.label(drawn.tokens), drawn.labels)
    text, label = task.render(drawn.tokens[0]), task.render_label(drawn.labels[0].tolist())
    assert text == 2 * label
    export(Recipe(task="copy_string", options={"length": 6}, n=4, seed=1, split="train"), tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert all(row["text"] == 2 * row["label"] for row in rows)
