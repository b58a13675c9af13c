"""Row 63: a cohort that does not fit is split and tried again; what does not fit even alone is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semfocus.execution import train
from semfocus.training.step import TrainStep
from tests.training.helpers import run_of, runtime, states, tensors, tiny, trained

CONFIGS = [tiny(seed) for seed in range(5)]


def _room_for(members: int, monkeypatch: pytest.MonkeyPatch, at_step: int = 0, error: Exception | None = None) -> list:
    """Steps of larger cohorts fail from step `at_step` on; the sizes of those that failed are returned."""
    real = TrainStep.step
    failed: list[int] = []

    def wrapped(self: TrainStep) -> None:
        if self.cohort.members > members and self.cohort.step >= at_step:
            failed.append(self.cohort.members)
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        real(self)

    monkeypatch.setattr(TrainStep, "step", wrapped)
    return failed


@pytest.mark.parametrize("error", [None, MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_cohort_that_does_not_fit_trains_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Row 63."""
    expected = trained(CONFIGS, tmp_path / "room")
    failed = _room_for(2, monkeypatch, error=error)
    outcomes = train(CONFIGS, tmp_path / "narrow", runtime())
    assert states(outcomes) == ["done"] * 5
    assert failed == [5, 3]
    assert [len(outcome.run.status()["cohort"]) for outcome in outcomes] == [2, 2, 1, 2, 2]
    assert [outcome.run.status()["out_of_memory_with"] for outcome in outcomes] == [5, 5, 3, 3, 3]
    for outcome, run in zip(outcomes, expected, strict=True):
        torch.testing.assert_close(tensors(outcome.run)["parameters"], tensors(run)["parameters"], rtol=1e-4, atol=1e-6)


def test_halves_go_on_from_what_the_whole_had_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 63."""
    _room_for(4, monkeypatch, at_step=10)
    steps: list[tuple[int, int]] = []
    outcomes = train(
        CONFIGS,
        tmp_path,
        runtime(checkpoint_seconds=0),
        lambda progress: steps.append((len(progress.members), progress.step)),
    )
    assert states(outcomes) == ["done"] * 5
    evaluated = [(size, step) for size, step in steps if step % 5 == 0]  # a slow machine is told of others in between
    assert [step for size, step in evaluated if size == 5] == [0, 5, 10]
    assert [step for size, step in evaluated if size < 5] == [10, 15, 10, 15]
    assert all([row["step"] for row in outcome.run.metrics()] == [5, 10, 15] for outcome in outcomes)


def test_a_run_that_does_not_fit_even_alone_is_recorded_and_its_siblings_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 63."""
    real = TrainStep.step
    with monkeypatch.context() as patch:

        def wrapped(self: TrainStep) -> None:
            if any(config.seed == 1 for config in self.cohort.configs):
                raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 1 TiB")
            real(self)

        patch.setattr(TrainStep, "step", wrapped)
        outcomes = train([*CONFIGS, tiny(9, "topk:3")], tmp_path, runtime())
    assert states(outcomes) == ["done", "failed", "done", "done", "done", "done"]
    status = outcomes[1].run.status()
    assert status["state"] == "failed"
    assert "1 TiB" in status["reason"]
    assert states(train(CONFIGS, tmp_path, runtime())) == ["done"] * 5


def test_another_error_is_not_taken_for_a_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 63."""
    failed = _room_for(0, monkeypatch, error=RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(CONFIGS, tmp_path, runtime())
    assert failed == [5]
    assert "shapes do not fit" in run_of(CONFIGS[0], tmp_path).status()["reason"]
