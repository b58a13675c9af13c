"""Cohorts side by side, in processes of their own: the same results, the same words, the same order."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semfocus import errors
from semfocus.config import RunConfig
from semfocus.errors import Locked, MissingExtra, StorageError, UsageError
from semfocus.execution import processes, train
from semfocus.execution.cohorts import form_cohorts, open_runs, plan_jobs
from semfocus.execution.executor import make_executor, outcomes_of
from semfocus.store import RunStore
from semfocus.training import Progress, Runtime
from semfocus.training.step import TrainStep
from tests.training.helpers import assert_same_bits, runtime, states, tiny, trained

CONFIGS = [tiny(seed, mechanism, epochs=4) for mechanism in ("full", "topk:3", "banded:3") for seed in (1, 2)]


def side_by_side(configs: Sequence[RunConfig], out: Path, on_progress: Any = None, **changes: Any) -> list:
    return train(configs, out, runtime(**{"jobs": 2} | changes), on_progress)


def test_side_by_side_gives_what_one_after_the_other_gives_to_the_bit_and_tells_all_of_it(tmp_path: Path) -> None:
    expected = trained(CONFIGS, tmp_path / "in turn")
    told: list[Progress] = []
    outcomes = side_by_side(CONFIGS, tmp_path / "side by side", told.append)
    assert states(outcomes) == ["done"] * 6
    assert [outcome.config for outcome in outcomes] == CONFIGS
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    for mechanism in ("full", "topk:3", "banded:3"):
        own = [progress for progress in told if progress.members[0].config.attention.mechanism == mechanism]
        own = [progress for progress in own if progress.step % 5 == 0]  # a slow machine is told of others in between
        assert [progress.step for progress in own] == [0, 5, 10, 15, 20]
        assert [progress.going_on for progress in own] == [2, 2, 2, 2, 0]
        assert own[-1].members[0].last == own[-1].members[0].run.metrics()[-1]


@pytest.mark.parametrize(
    ("jobs", "cohorts", "expected"), [(2, 1, "serial"), (1, 3, "serial"), (2, 2, "processes"), (2, 0, "serial")]
)
def test_processes_are_used_only_where_several_cohorts_have_something_to_do(
    jobs: int, cohorts: int, expected: str
) -> None:
    assert make_executor("auto", runtime(jobs=jobs), cohorts).name == expected


def test_each_process_has_its_share_of_the_threads_unless_told_or_begun_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int | None] = []

    def process(args: tuple[Any, ...], **options: Any) -> Any:
        given.append(args[1].runtime.threads)
        return SimpleNamespace(start=lambda: None)

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=process, set_forkserver_preload=lambda names: None)
    monkeypatch.setattr(Runtime, "num_threads", lambda self: self.threads or 8)

    store = RunStore(tmp_path)
    jobs = plan_jobs(CONFIGS, store)
    open_runs(jobs, store)

    def begin(**changes: Any) -> None:
        own = runtime(**changes)
        pool = processes.WorkerPool(form_cohorts(jobs, own), 2, store, own, lambda progress: None, context)
        pool.start_workers()
        assert len(pool.workers) == 2

    begin(threads=None)
    begin(threads=3)
    with jobs[0].run.lock() as writer:
        writer.write_status("interrupted", threads=5)
    begin(threads=None)
    assert given == [4, 4, 3, 3, 5, 4]


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (UsageError("task.name = 5"), UsageError, 2),
        (Locked("held"), Locked, 4),
        (StorageError("cannot write there"), StorageError, 6),
        (MissingExtra("ray", "cluster", "a cluster"), MissingExtra, 2),
    ],
)
def test_an_error_of_ours_arrives_as_itself(error: Exception, kind: type[errors.SemfocusError], code: int) -> None:
    found = processes._Raised(type(error).__name__, str(error), "").rebuilt()
    assert type(found) is kind
    assert str(found) == str(error)
    assert found.exit_code == code


@pytest.mark.parametrize("name", ["ZeroDivisionError", "annotations", "Iterable", "check_int"])
def test_another_error_arrives_with_its_trace(name: str) -> None:
    found = processes._Raised(name, "by zero", "line 7").rebuilt()
    assert type(found) is RuntimeError
    assert f"{name}: by zero\nline 7" in str(found)


def test_a_worker_reports_what_does_not_fit_into_memory_even_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 63: what it says last is what the pool hands on."""
    real = TrainStep.step

    def wrapped(self: TrainStep) -> None:
        if any(config.seed == 2 for config in self.cohort.configs):
            raise torch.OutOfMemoryError("tried to allocate 1 TiB")
        real(self)

    monkeypatch.setattr(TrainStep, "step", wrapped)
    here, there = multiprocessing.Pipe(duplex=False)
    store = RunStore(tmp_path)
    jobs = plan_jobs(CONFIGS[:2], store)
    open_runs(jobs, store)
    processes._work(there, processes.Work(CONFIGS[:2], tmp_path, runtime(), [], []))
    messages = []
    while here.poll():
        messages.append(here.recv())
    assert messages[-1] == [jobs[1].id]
    assert states(outcomes_of([jobs], messages[-1])) == ["done", "failed"]


@pytest.mark.parametrize(("device", "jobs", "expected"), [("cpu", None, "cores"), ("cpu", 3, 3), ("cpu", 1, 1)])
def test_by_default_there_is_a_process_for_each_core(device: str, jobs: int | None, expected: int | str) -> None:
    import os

    found = Runtime(device=device, jobs=jobs).num_jobs()
    assert found == (len(os.sched_getaffinity(0)) if expected == "cores" else expected)
    with pytest.raises(UsageError, match="jobs = 0 must be at least 1"):
        Runtime(jobs=0)
