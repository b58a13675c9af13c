"""Cohorts that train in worker processes: whichever process dies, nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semfocus.config import RunConfig
from semfocus.errors import StorageError
from semfocus.execution import LostProcess, train
from semfocus.training import Interrupted, Progress
from tests.training.helpers import assert_same_bits, process, run_of, runtime, states, tiny, trained

CONFIGS = [tiny(seed, mechanism, epochs=6) for mechanism in ("full", "topk:3") for seed in (1, 2)]
LONG = [tiny(1, mechanism, epochs=100_000) for mechanism in ("full", "topk:3")]
JOBS = runtime(jobs=2, checkpoint_seconds=0)


def _workers() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def _once_at(mechanism: str, step: int, act: Callable[[Progress], None], times: int = 1) -> Callable[[Progress], None]:
    done: list[int] = []

    def on_progress(progress: Progress) -> None:
        own = progress.members[0].config.attention.mechanism == mechanism
        if own and len(done) < times and progress.step >= step:
            done.append(progress.step)
            act(progress)

    return on_progress


def _kill_holder(progress: Progress) -> None:
    holder = progress.members[0].run.holder()
    if holder is not None and holder.pid in _workers():
        os.kill(holder.pid, signal.SIGKILL)


def test_a_cohort_whose_process_is_killed_continues_to_the_bit_and_its_siblings_are_undisturbed(tmp_path: Path) -> None:
    expected = trained(CONFIGS, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    with pytest.warns(LostProcess, match="was killed by SIGKILL; they go on from their checkpoint"):
        outcomes = train(CONFIGS, out, JOBS, _once_at("full", 10, _kill_holder))
    assert states(outcomes) == ["done"] * 4
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert _workers() == []


def test_a_cohort_whose_process_is_killed_again_is_recorded_as_failed_and_can_be_tried_anew(tmp_path: Path) -> None:
    """As when the machine runs out of memory."""
    with pytest.warns(LostProcess):
        outcomes = train(CONFIGS, tmp_path, JOBS, _once_at("full", 5, _kill_holder, times=99))
    assert states(outcomes) == ["failed", "failed", "done", "done"]
    status = outcomes[0].run.status()
    assert status["state"] == "failed"
    assert "was killed by SIGKILL, twice; out of memory?" in status["reason"]
    assert_same_bits(trained(CONFIGS, tmp_path), trained(CONFIGS, tmp_path / "undisturbed"))


@pytest.mark.parametrize(
    ("number", "to_all"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],
    ids=["to the first process", "to all of them, as a terminal does"],
)
def test_a_polite_signal_makes_all_processes_save_and_stop(
    tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:

    def interrupt(progress: Progress) -> None:
        _wait_for(lambda: all(run.checkpoint_steps() for run in runs))
        for pid in [*(_workers() if to_all else []), os.getpid()]:
            os.kill(pid, number)

    runs = [run_of(config, tmp_path) for config in LONG]
    with pytest.raises(Interrupted) as caught:
        train(LONG, tmp_path, JOBS, _once_at("topk:3", 10, interrupt))
    assert caught.value.exit_code == 128 + number
    assert _workers() == []
    for run in runs:
        assert run.status()["state"] == "interrupted"
        assert run.load_checkpoint().step == run.status()["step"] > 0
        assert run.holder() is None


def test_an_error_in_one_process_arrives_as_itself_after_the_others_have_saved(tmp_path: Path) -> None:
    lost = run_of(CONFIGS[0], tmp_path)
    # Renamed in one step: its process keeps writing, which would disturb a deletion file by file.
    move_away = _once_at("full", 5, lambda progress: lost.path.rename(tmp_path / "elsewhere"))
    with pytest.raises(StorageError, match=f"{lost.id} was (deleted|replaced)") as caught:
        train(CONFIGS, tmp_path, JOBS, move_away)
    assert caught.value.exit_code == 6
    assert _workers() == []
    assert run_of(CONFIGS[2], tmp_path).holder() is None


def _train_long(configs: list[RunConfig], out: Path) -> None:
    train(configs, out, JOBS)


def test_when_the_first_process_is_killed_the_others_save_and_stop(tmp_path: Path) -> None:
    """Nothing coordinates or observes them any more."""
    started = process(_train_long, LONG, tmp_path)
    runs = [run_of(config, tmp_path) for config in LONG]
    _wait_for(lambda: all(run.path.exists() and run.checkpoint_steps() for run in runs))
    started.kill()
    started.join()
    _wait_for(lambda: all(run.holder() is None for run in runs))
    for run in runs:
        assert run.status()["state"] == "interrupted"
        assert run.load_checkpoint().step == run.status()["step"] > 0


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
