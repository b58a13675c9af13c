"""A member with a loss or gradient that is not finite stops before its update; its siblings are undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from semfocus.execution import train
from semfocus.training import step
from semfocus.training.step import TrainStep
from tests.training.helpers import begin, runtime, states, tensors, tiny, trained

CONFIGS = [tiny(seed, "topk:3", optimizer="adam", lr=0.01) for seed in (1, 2, 3)]


def _spoil(kind: str, member: int, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loss, or only the gradient, of this member not finite at step `at`."""
    real = step.forward
    calls = iter(range(1000))

    def forward(parameters: dict[str, Tensor], *arguments: Any) -> Tensor:
        logits = real(parameters, *arguments)
        if next(calls) != at:
            return logits
        bias = parameters["readout.bias"][member].sum()
        if kind == "gradient":
            extra = (bias - bias).abs().sqrt()  # zero, with the gradient infinity times zero
        else:
            extra = bias * 0 + float("nan" if kind == "nan loss" else "inf")
        chosen = torch.zeros(logits.shape[0])
        chosen[member] = 1.0
        return torch.where(chosen[:, None, None] > 0, logits + extra, logits)

    monkeypatch.setattr(step, "forward", forward)


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
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    undisturbed = begin(CONFIGS)
    expected = _steps(TrainStep(undisturbed), 5)
    _spoil(kind, member=1, at=2, monkeypatch=monkeypatch)
    cohort = begin(CONFIGS)
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


def test_the_gradient_of_that_test_is_not_finite_while_its_loss_is(monkeypatch: pytest.MonkeyPatch) -> None:
    finite: list[tuple[bool, bool]] = []
    _spoil("gradient", member=1, at=2, monkeypatch=monkeypatch)
    train_step = TrainStep(begin(CONFIGS))
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    configs = [tiny(seed, "topk:3", lr=0.5) for seed in (1, 2, 3)]
    alone = [trained([config], tmp_path / "alone")[0] for config in configs]
    _spoil(kind, member=1, at=7, monkeypatch=monkeypatch)
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


def test_a_rate_far_too_large_ends_as_diverged_and_not_as_an_error(tmp_path: Path) -> None:
    configs = [tiny(seed, lr=lr, clip=None) for seed, lr in ((1, 0.1), (2, 1e30), (3, 1e38), (4, 0.1))]
    outcomes = train(configs, tmp_path, runtime())
    assert states(outcomes) == ["done", "diverged", "diverged", "done"]
    before = outcomes[1].run.status()
    (again,) = train([configs[1]], tmp_path, runtime())
    assert again.state == "diverged"
    assert again.run.status() == before


def test_numbers_that_leave_the_finite_with_the_very_last_update_count_as_diverged(tmp_path: Path) -> None:
    """No further step would tell, so the last evaluation does."""
    (outcome,) = train([tiny(1, lr=1e38, clip=None, epochs=1, batch_size=50)], tmp_path, runtime())
    assert outcome.state == "diverged"
    assert "after the last step" in outcome.run.status()["reason"]
    (row,) = outcome.run.metrics()
    assert not torch.tensor(row["train_loss"]).isfinite()


def test_all_members_may_diverge(tmp_path: Path) -> None:
    outcomes = train([tiny(seed, lr=1e30, clip=None) for seed in (1, 2)], tmp_path, runtime())
    assert states(outcomes) == ["diverged", "diverged"]
