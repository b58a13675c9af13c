"""Cohorts: who trains with whom, what is skipped, and what a second session makes of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from semfocus.config import TaskConfig
from semfocus.execution import train
from semfocus.execution.cohorts import cohort_limit, form_cohorts, open_runs, plan_jobs
from semfocus.execution.serial import SerialExecutor
from semfocus.store import RunStore
from semfocus.training import Progress, Runtime
from semfocus.training.step import TrainStep
from tests.training.helpers import run_of, runtime, states, tensors, tiny, trained


class _Stop(Exception):
    pass


def _stop_at(step: int) -> Any:
    def watcher(progress: Progress) -> None:
        if progress.step == step:
            raise _Stop

    return watcher


def _interrupted(configs: list, out: Path, step: int = 10, **changes: Any) -> None:
    with pytest.raises(_Stop):
        train(configs, out, runtime(checkpoint_seconds=0, **changes), _stop_at(step))


def _cohort(config: Any, out: Path) -> list[str]:
    return (run_of(config, out).status() or {})["cohort"]


def test_runs_that_differ_in_seed_rate_and_decay_alone_train_together(tmp_path: Path) -> None:
    together = [tiny(1), tiny(2, lr=0.2), tiny(3, decay=0.9)]
    apart = [tiny(4, "topk:3"), tiny(5, batch_size=7), tiny(6, rows=(30, 21)), tiny(7, model={"d_mlp": 9})]
    assert states(train([*together, *apart], tmp_path, runtime())) == ["done"] * 7
    ids = [run_of(config, tmp_path).id for config in together]
    assert [_cohort(config, tmp_path) for config in together] == [ids] * 3
    assert [len(_cohort(config, tmp_path)) for config in apart] == [1] * 4


def test_outcomes_come_in_the_order_asked_for_and_a_run_asked_for_twice_is_trained_once(tmp_path: Path) -> None:
    configs = [tiny(1), tiny(2, "topk:3"), tiny(1), tiny(3)]
    outcomes = train(configs, tmp_path, runtime())
    assert [outcome.config for outcome in outcomes] == configs
    assert [outcome.run.id for outcome in outcomes] == [run_of(config, tmp_path).id for config in configs]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_cohort_is_no_larger_than_asked_for(tmp_path: Path) -> None:
    configs = [tiny(seed) for seed in range(5)]
    trained(configs, tmp_path, cohort_size=2)
    assert [len(_cohort(config, tmp_path)) for config in configs] == [2, 2, 2, 2, 1]


def test_cohorts_of_single_runs_come_seed_by_seed_where_they_were_asked_for_so(tmp_path: Path) -> None:
    """Cut off after some of them, the mechanisms of a seed are there or missing together."""
    configs = [tiny(seed, mechanism) for seed in (1, 2, 3) for mechanism in ("full", "topk:3", "banded:3")]
    formed = form_cohorts(plan_jobs(configs, RunStore(tmp_path)), runtime(cohort_size=1))
    assert [job.config for cohort in formed for job in cohort] == configs


def test_a_cohort_is_cut_to_what_memory_holds() -> None:
    config = tiny()
    task = config.task.build()
    whole = cohort_limit(config, task, "cpu", {"cpu": 2**31})
    assert cohort_limit(config, task, "cpu", {"cpu": 2**29}) == whole // 4 > 1
    assert cohort_limit(config, task, "cpu", {"cpu": 1}) == 1


def test_what_memory_splits_is_split_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semfocus.execution.cohorts.cohort_limit", lambda *args: 9)
    jobs = plan_jobs([tiny(seed) for seed in range(20)], RunStore(tmp_path))
    assert [len(cohort) for cohort in form_cohorts(jobs, runtime())] == [7, 7, 6]
    assert [len(cohort) for cohort in form_cohorts(jobs[:9], runtime())] == [9]


def test_finished_runs_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [tiny(1), tiny(2)]
    before = [tensors(run) for run in trained(configs, tmp_path)]
    monkeypatch.setattr(TrainStep, "step", lambda self: pytest.fail("a finished run was trained again"))
    assert states(train(configs, tmp_path, runtime())) == ["done", "done"]
    for config, weights in zip(configs, before, strict=True):
        assert torch.equal(tensors(run_of(config, tmp_path))["parameters"], weights["parameters"])


def test_a_run_that_another_process_finished_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def _files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}

    store = RunStore(tmp_path)
    jobs = plan_jobs([tiny(1)], store)
    open_runs(jobs, store)
    cohorts = form_cohorts(jobs, runtime())
    trained([tiny(1)], tmp_path)
    files = _files()
    assert states(SerialExecutor(runtime()).run(cohorts, store, lambda progress: None)) == ["done"]
    assert files == _files()
    assert any("status.json" in name for name in files)


def test_a_cohort_that_was_interrupted_is_put_together_again_as_it_was(tmp_path: Path) -> None:
    first, second = [tiny(seed) for seed in (1, 2)], [tiny(seed) for seed in (3, 4, 5)]
    for configs in (first, second):
        _interrupted(configs, tmp_path)
    everything = [tiny(seed) for seed in (5, 2, 9, 1, 4, 3)]
    groups: list[list[int]] = []

    def watcher(progress: Progress) -> None:
        seeds = [member.config.seed for member in progress.members]
        if seeds not in groups:
            groups.append(seeds)

    assert states(train(everything, tmp_path, runtime(), watcher)) == ["done"] * 6
    assert sorted(groups) == [[1, 2], [3, 4, 5], [9]]


def test_a_new_run_never_costs_an_interrupted_one_its_checkpoint(tmp_path: Path) -> None:
    old, new = tiny(1), tiny(2)
    _interrupted([old, new], tmp_path)
    run = run_of(new, tmp_path)
    for path in sorted(run.path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    run.path.rmdir()
    told: list[tuple[int, int]] = []

    def watcher(progress: Progress) -> None:
        told.extend((member.config.seed, progress.step) for member in progress.members)

    assert states(train([old, new], tmp_path, runtime(), watcher)) == ["done", "done"]
    assert min(step for seed, step in told if seed == 1) == 10
    assert min(step for seed, step in told if seed == 2) == 0


def test_a_failure_does_not_forget_who_trained_with_whom(tmp_path: Path) -> None:
    configs = [tiny(seed) for seed in (1, 2)]
    _interrupted(configs, tmp_path)
    status = run_of(configs[0], tmp_path).status()
    assert status["state"] == "failed"
    assert "_Stop" in status["reason"]
    assert status["cohort"] == [run_of(config, tmp_path).id for config in configs]


def test_threads_and_compile_choice_are_those_of_the_first_session(tmp_path: Path) -> None:
    config = tiny(1)
    _interrupted([config], tmp_path, threads=3)
    train([config], tmp_path, Runtime(device="cpu"))
    assert {name: run_of(config, tmp_path).status()[name] for name in ("threads", "compiled")} == {
        "threads": 3,
        "compiled": False,
    }


@pytest.mark.parametrize("cohort", [5, [[1]], [1, 2], ["elsewhere"], {"a": 1}, None])
def test_a_strange_cohort_in_a_status_does_not_stop_a_run(tmp_path: Path, cohort: Any) -> None:
    config = tiny(1)
    _interrupted([config], tmp_path)
    with run_of(config, tmp_path).lock() as writer:
        writer.write_status("interrupted", cohort=cohort, threads=10**9, compiled="yes", device=[])
    assert states(train([config], tmp_path, runtime())) == ["done"]


def test_options_written_out_and_a_label_do_not_make_it_another_run(tmp_path: Path) -> None:
    short = tiny(1).model_copy(update={"task": TaskConfig(name="even_pairs", train_rows=43, heldout_rows=21)})
    long = short.model_copy(
        update={"label": "the same", "task": short.task.model_copy(update={"options": {"length": 40}})}
    )
    (first,) = train([short], tmp_path, runtime())
    (second,) = train([long], tmp_path, runtime())
    assert first.run.id == second.run.id
    assert second.state == "done"


def test_results_do_not_depend_on_the_order_in_which_runs_are_asked_for(tmp_path: Path) -> None:
    configs = [tiny(seed, "topk:3") for seed in (1, 2, 3)]
    one, other = trained(configs, tmp_path / "a"), trained(configs[::-1], tmp_path / "b")[::-1]
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(tensors(mine)["parameters"], tensors(theirs)["parameters"], rtol=1e-4, atol=1e-6)


def test_a_status_says_what_must_be_the_same_for_identical_results(tmp_path: Path) -> None:
    (run,) = trained([tiny(1)], tmp_path)
    status = run.status()
    assert status["device"] == "cpu"
    assert status["threads"] == 1
    assert status["compiled"] is False
    assert status["torch"] == torch.__version__
    assert status["steps"] == status["step"] == 15


def test_training_leaves_global_generators_and_thread_settings_alone(tmp_path: Path) -> None:
    import random

    import numpy as np

    def snapshot() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()), torch.get_num_threads()

    before = snapshot()
    trained([tiny(1, "randomk:3")], tmp_path, threads=2)
    assert snapshot() == before
