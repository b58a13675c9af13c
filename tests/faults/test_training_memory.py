"""A cohort that does not fit into memory is split and tried again; a run that does not fit alone is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.training.step import TrainStep
from tests.store.machine import before_each_step
from tests.training.helpers import run_of, runtime, states, tensors, tiny, trained

CONFIGS = [tiny(seed) for seed in range(5)]


@contextmanager
def _room_for(members: int, at_step: int = 0, error: Exception | None = None) -> Iterator[list[int]]:
    """Let steps of larger cohorts fail from step `at_step` on; yield the sizes of the cohorts that failed."""
    failed: list[int] = []

    def fail(step: TrainStep) -> None:
        if step.cohort.members > members and step.cohort.step >= at_step:
            failed.append(step.cohort.members)
            raise error or torch.OutOfMemoryError("CUDA out of memory")

    with before_each_step(fail):
        yield failed


@pytest.mark.parametrize("error", [None, MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_cohort_that_does_not_fit_trains_in_halves(tmp_path: Path, error: Exception | None) -> None:
    expected = trained(CONFIGS, tmp_path / "room")
    with _room_for(2, error=error) as failed:
        outcomes = train(CONFIGS, tmp_path / "narrow", runtime())
    assert states(outcomes) == ["done"] * 5
    assert failed == [5, 3]
    assert [len(outcome.run.status()["cohort"]) for outcome in outcomes] == [2, 2, 1, 2, 2]
    assert [outcome.run.status()["out_of_memory_with"] for outcome in outcomes] == [5, 5, 3, 3, 3]
    for outcome, run in zip(outcomes, expected, strict=True):
        torch.testing.assert_close(tensors(outcome.run)["parameters"], tensors(run)["parameters"], rtol=1e-4, atol=1e-6)


def test_halves_continue_from_the_checkpoint_of_the_whole(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    with _room_for(4, at_step=10):
        outcomes = train(
            CONFIGS,
            tmp_path,
            runtime(checkpoint_seconds=0),
            lambda progress: steps.append((len(progress.members), progress.step)),
        )
    assert states(outcomes) == ["done"] * 5
    evaluated = [(size, step) for size, step in steps if step % 5 == 0]  # a slow machine also reports in between
    assert [step for size, step in evaluated if size == 5] == [0, 5, 10]
    assert [step for size, step in evaluated if size < 5] == [10, 15, 10, 15]
    assert all([row["step"] for row in outcome.run.metrics()] == [5, 10, 15] for outcome in outcomes)


def test_a_run_that_does_not_fit_even_alone_is_recorded_and_its_siblings_continue(tmp_path: Path) -> None:
    def fail(step: TrainStep) -> None:
        if any(config.seed == 1 for config in step.cohort.configs):
            raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 1 TiB")

    with before_each_step(fail):
        outcomes = train([*CONFIGS, tiny(9, "topk:3")], tmp_path, runtime())
    assert states(outcomes) == ["done", "failed", "done", "done", "done", "done"]
    status = outcomes[1].run.status()
    assert status["state"] == "failed"
    assert "1 TiB" in status["reason"]
    assert states(train(CONFIGS, tmp_path, runtime())) == ["done"] * 5


def test_another_error_is_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    with (
        _room_for(0, error=RuntimeError("shapes do not fit")) as failed,
        pytest.raises(RuntimeError, match="shapes do not fit"),
    ):
        train(CONFIGS, tmp_path, runtime())
    assert failed == [5]
    assert "shapes do not fit" in run_of(CONFIGS[0], tmp_path).status()["reason"]


def _fits(most: int) -> AbstractContextManager[None]:
    """Let steps with more than so many examples at a time fail."""

    def fail(step: TrainStep) -> None:
        if step.micro_batch > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return before_each_step(fail)


def test_what_does_not_fit_alone_says_which_part_of_a_batch_to_try(tmp_path: Path) -> None:
    with _fits(3):
        (outcome,) = train([tiny(1)], tmp_path, runtime())
    assert outcome.state == "failed"
    assert "try --micro-batch 5, or --fit-memory" in outcome.run.status()["reason"]
    assert "not fit" not in tiny_reason(tmp_path / "other", micro_batch=1)


def tiny_reason(out: Path, **changes: int) -> str:
    with _fits(0):
        (outcome,) = train([tiny(1)], out, runtime(**changes))
    return outcome.run.status()["reason"]


def test_where_asked_for_the_part_of_a_batch_that_fits_is_found_and_kept(tmp_path: Path) -> None:
    config = tiny(1, model={"dropout": 0.0})
    (whole,) = trained([config], tmp_path / "whole")
    with _fits(3):
        (outcome,) = train([config], tmp_path / "narrow", runtime(fit_memory=True))
    assert outcome.state == "done"
    assert outcome.run.status()["micro_batch"] == 2  # of 10: 5 does not fit, half of it does
    torch.testing.assert_close(tensors(outcome.run)["parameters"], tensors(whole)["parameters"], rtol=1e-4, atol=1e-6)
    assert runtime().as_before(outcome.run.status()).micro_batch == 2
    with pytest.raises(UsageError, match="micro_batch = 0 must be at least 1"):
        runtime(micro_batch=0)
