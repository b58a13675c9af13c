"""Rows 5, 6, 10 and 12 where cohorts train in processes of their own: whoever dies, nothing is lost."""

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

    def watcher(progress: Progress) -> None:
        own = progress.members[0].config.attention.mechanism == mechanism
        if own and len(done) < times and progress.step >= step:
            done.append(progress.step)
            act(progress)

    return watcher


def _kill_holder(progress: Progress) -> None:
    holder = progress.members[0].run.holder()
    if holder is not None and holder.pid in _workers():
        os.kill(holder.pid, signal.SIGKILL)


def test_a_cohort_whose_process_is_killed_goes_on_to_the_bit_and_its_siblings_do_not_notice(tmp_path: Path) -> None:
    """Rows 5 and 12."""
    expected = trained(CONFIGS, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    with pytest.warns(LostProcess, match="was killed by SIGKILL; they go on from their checkpoint"):
        outcomes = train(CONFIGS, out, JOBS, _once_at("full", 10, _kill_holder))
    assert states(outcomes) == ["done"] * 4
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert _workers() == []


def test_a_cohort_whose_process_is_killed_again_is_recorded_as_failed_and_can_be_tried_anew(tmp_path: Path) -> None:
    """Rows 5 and 63: as when the machine runs out of memory."""
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
    """Row 6."""

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
    """Row 10."""
    lost = run_of(CONFIGS[0], tmp_path)
    # In one step: its process writes to it all the while, and would trip up who deletes file by file.
    watcher = _once_at("full", 5, lambda progress: lost.path.rename(tmp_path / "elsewhere"))
    with pytest.raises(StorageError, match=f"{lost.id} was (deleted|replaced)") as caught:
        train(CONFIGS, tmp_path, JOBS, watcher)
    assert caught.value.exit_code == 6
    assert _workers() == []
    assert run_of(CONFIGS[2], tmp_path).holder() is None


def _train_long(configs: list[RunConfig], out: Path) -> None:
    train(configs, out, JOBS)


def test_when_the_first_process_is_killed_the_others_save_and_stop(tmp_path: Path) -> None:
    """Row 5: nobody would tell them to go on, and nobody would hear of it."""
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
