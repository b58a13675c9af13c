"""A member with a loss or gradient that is not finite stops before its update; its siblings are undisturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semfocus.config import RunConfig
from semfocus.execution import train
from semfocus.tasks.even_pairs import EvenPairs
from semfocus.tasks.registry import TASKS
from semfocus.training.objective import OBJECTIVES, Classification, get_objective
from semfocus.training.step import TrainStep
from tests.training.helpers import begin, runtime, states, tensors, tiny, trained


class FaultyLoss(Classification):
    """Classification, until a fault is injected: then one training step has a loss or gradient that is not finite."""

    name = "faulty_loss"

    def __init__(self) -> None:
        self._kind, self._member, self._steps_left = "", 0, -1

    def inject(self, kind: str, *, member: int, step: int) -> None:
        """Make the loss, or the gradient alone, of this member not finite at this step from now on."""
        self._kind, self._member, self._steps_left = kind, member, step

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = super().loss(logits, targets)  # (E, B)
        if not losses.requires_grad:  # an evaluation
            return losses
        self._steps_left -= 1
        if self._steps_left != -1:
            return losses
        own = losses[self._member].sum()
        if self._kind == "gradient":
            extra = (own - own).abs().sqrt()  # zero, with the gradient infinity times zero
        else:
            extra = own * 0 + float("nan" if self._kind == "nan loss" else "inf")
        is_own = torch.arange(len(losses)) == self._member
        return torch.where(is_own.unsqueeze(-1), losses + extra, losses)


class FaultyPairs(EvenPairs):
    name = "faulty_pairs"
    objective = "faulty_loss"


@pytest.fixture
def objective() -> Iterator[FaultyLoss]:
    """The objective of the task `faulty_pairs`, without a fault yet."""
    fresh = type("FreshFaultyLoss", (FaultyLoss,), {})  # objectives are instantiated once a class
    with OBJECTIVES.temporarily(fresh), TASKS.temporarily(FaultyPairs):
        yield get_objective(fresh.name)


def _configs() -> list[RunConfig]:
    return [tiny(seed, "topk:3", task="faulty_pairs", optimizer="adam", lr=0.01) for seed in (1, 2, 3)]


def _steps(train_step: TrainStep, count: int) -> list[Tensor]:
    """Make this many steps; return the parameters after each. (E, P)"""
    train_step.begin_epoch(0, 0)
    parameters = []
    for _ in range(count):
        train_step.run(1)
        parameters.append(train_step.cohort.parameters.clone())
    return parameters


@pytest.mark.parametrize("kind", ["nan loss", "infinite loss", "gradient"])
def test_a_member_stops_before_the_update_and_its_siblings_are_the_same_to_the_bit(
    objective: FaultyLoss, kind: str
) -> None:
    undisturbed = begin(_configs())
    expected = _steps(TrainStep(undisturbed), 5)
    objective.inject(kind, member=1, step=2)
    cohort = begin(_configs())
    parameters = _steps(TrainStep(cohort), 5)
    assert cohort.alive.tolist() == [True, False, True]
    assert cohort.died_at.tolist() == [-1, 2, -1]
    assert torch.equal(parameters[1], expected[1])
    for after in parameters[2:]:
        assert torch.equal(after[1], parameters[1][1])  # as before the step, although later steps are finite
    assert not torch.equal(expected[2][1], expected[1][1])
    for sibling in (0, 2):
        assert torch.equal(parameters[4][sibling], expected[4][sibling])
        for name, moments in cohort.moments.items():
            assert torch.equal(moments[sibling], undisturbed.moments[name][sibling])
    assert all(moments.isfinite().all() for moments in cohort.moments.values())


def test_the_gradient_of_that_test_is_not_finite_while_its_loss_is(objective: FaultyLoss) -> None:
    finite: list[tuple[bool, bool]] = []
    objective.inject("gradient", member=1, step=2)
    train_step = TrainStep(begin(_configs()))
    real = train_step.update

    def update(loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        gradients_finite = torch.stack([part[1].isfinite().all() for part in gradients]).all()
        finite.append((bool(loss[1].isfinite()), bool(gradients_finite)))
        real(loss, gradients)

    train_step.update = update
    _steps(train_step, 4)
    assert finite == [(True, True), (True, True), (True, False), (True, True)]


@pytest.mark.parametrize("kind", ["nan loss", "gradient"])
def test_such_a_run_is_marked_diverged_and_the_others_train_to_their_ends(
    tmp_path: Path, objective: FaultyLoss, kind: str
) -> None:
    configs = [tiny(seed, "topk:3", task="faulty_pairs", lr=0.5) for seed in (1, 2, 3)]
    alone = [trained([config], tmp_path / "alone")[0] for config in configs]
    objective.inject(kind, member=1, step=7)
    outcomes = train(configs, tmp_path / "together", runtime())
    assert states(outcomes) == ["done", "diverged", "done"]
    status = outcomes[1].run.status()
    assert status["step"] == 7
    assert "not finite" in status["reason"]
    assert [row["step"] for row in outcomes[1].run.metrics()] == [5]
    assert tensors(outcomes[1].run)["parameters"].isfinite().all()
    for i in (0, 2):
        assert [row["step"] for row in outcomes[i].run.metrics()] == [5, 10, 15]
        together, expected = (tensors(run)["parameters"] for run in (outcomes[i].run, alone[i]))
        torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-6)
    assert states(train(configs, tmp_path / "together", runtime())) == ["done", "diverged", "done"]


def test_a_learning_rate_far_too_large_ends_as_diverged_and_not_as_an_error(tmp_path: Path) -> None:
    configs = [tiny(seed, lr=lr, clip=None) for seed, lr in ((1, 0.1), (2, 1e30), (3, 1e38), (4, 0.1))]
    outcomes = train(configs, tmp_path, runtime())
    assert states(outcomes) == ["done", "diverged", "diverged", "done"]
    before = outcomes[1].run.status()
    (again,) = train([configs[1]], tmp_path, runtime())
    assert again.state == "diverged"
    assert again.run.status() == before


def test_a_run_that_becomes_infinite_by_its_last_update_counts_as_diverged(tmp_path: Path) -> None:
    """No further step would detect it, so the last evaluation does."""
    (outcome,) = train([tiny(1, lr=1e38, clip=None, epochs=1, batch_size=50)], tmp_path, runtime())
    assert outcome.state == "diverged"
    assert "after the last step" in outcome.run.status()["reason"]
    (row,) = outcome.run.metrics()
    assert not torch.tensor(row["train_loss"]).isfinite()


def test_all_members_may_diverge(tmp_path: Path) -> None:
    outcomes = train([tiny(seed, lr=1e30, clip=None) for seed in (1, 2)], tmp_path, runtime())
    assert states(outcomes) == ["diverged", "diverged"]
