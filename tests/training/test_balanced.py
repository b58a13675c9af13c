"""Balanced accuracy and macro F1 are those of scikit-learn, over whole sets and whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from semfocus import Task
from semfocus.config import RunConfig, TaskConfig
from semfocus.training.cohort import Cohort
from semfocus.training.evaluation import Evaluator
from semfocus.training.objective import get_objective
from tests.training.helpers import CPU, tiny
from tests.training.plain import PlainEncoder

NAMES = ["no", "perhaps", "yes", "never"]  # the last one never occurs


def _task(metrics: str = "balanced") -> Task:
    rows = [[i % 3, i % 5, i % 7] for i in range(105)]
    labels = [2 if i % 10 == 0 else int(i % 4 == 0) for i in range(105)]
    return Task.from_arrays(rows, labels, class_names=NAMES, metrics=metrics)


def _configs(**training: object) -> list[RunConfig]:
    given = TaskConfig(name="arrays", train_rows=None, heldout_rows=None)
    return [tiny(seed, **training).model_copy(update={"task": given}) for seed in (1, 2)]


@pytest.mark.parametrize("size", [None, 7])
@pytest.mark.parametrize("quirk", [False, True])
def test_counted_metrics_are_those_of_scikit_learn(size: int | None, quirk: bool) -> None:
    task = _task()
    cohort = Cohort.begin(_configs(drop_one_row=quirk, evaluate_test=True), [task, task], CPU)
    cohort.parameters *= 5
    scores = Evaluator(cohort, size=size).scores()
    for i in range(2):
        plain = PlainEncoder(cohort.spec, cohort.parameters[i])
        for split, rows in cohort.sets.items():
            count = rows.count - quirk
            tokens, labels = rows.tokens[i, :count].long(), rows.targets[i, :count].long()
            answers = plain(tokens, torch.full((count,), 3)).argmax(dim=-1)
            balanced = (
                balanced_accuracy_score(labels, answers) if set(answers.tolist()) <= set(labels.tolist()) else None
            )
            if balanced is not None:  # scikit-learn warns of answers that never occur
                assert scores[f"{split}_balanced_accuracy"][i] == pytest.approx(balanced, abs=1e-12)
            assert scores[f"{split}_macro_f1"][i] == pytest.approx(
                f1_score(labels, answers, average="macro"), abs=1e-12
            )
            assert scores[f"{split}_accuracy"][i] == pytest.approx((answers == labels).double().mean().item())


def test_counts_of_random_answers_agree_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(3)
    objective = get_objective("balanced_classification")
    labels = torch.randint(0, 3, (1, 200), generator=generator)
    labels[labels == 2] *= (torch.rand(1, 200, generator=generator)[labels == 2] < 0.1).long()
    logits = torch.randn(1, 200, 3, generator=generator)
    counts = {name: values.sum(dim=1).double() for name, values in objective.counts(logits, labels).items()}
    found = {name: value.item() for name, value in objective.from_counts(counts).items()}
    answers = logits.argmax(dim=-1)[0]
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels[0], answers))
    assert found["macro_f1"] == pytest.approx(f1_score(labels[0], answers, average="macro"))


def test_always_the_same_answer_is_worth_chance_however_frequent_the_class() -> None:
    objective = get_objective("balanced_classification")
    labels = torch.tensor([[0] * 93 + [1] * 7])
    logits = torch.tensor([1.0, 0.0]).expand(1, 100, 2)
    counts = {name: values.sum(dim=1).double() for name, values in objective.counts(logits, labels).items()}
    assert objective.from_counts(counts)["balanced_accuracy"].item() == 0.5
    assert objective.learned.column == "train_balanced_accuracy"


def test_the_model_and_its_accuracy_do_not_depend_on_what_is_measured() -> None:
    cohorts = [Cohort.begin(_configs(), [task, task], CPU) for task in (_task(), _task("accuracy"))]
    assert torch.equal(cohorts[0].parameters, cohorts[1].parameters)
    first, second = (Evaluator(cohort).scores() for cohort in cohorts)
    assert {name: first[name] for name in second} == second
    assert first.keys() - second.keys() == {
        f"{s}_{m}" for s in ("train", "heldout") for m in ("balanced_accuracy", "macro_f1")
    }
