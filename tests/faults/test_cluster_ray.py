"""Workers and nodes of a Ray cluster that vanish: nothing lost, nothing twice, equal to the bit."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semfocus.config import RunConfig
from semfocus.execution import train
from semfocus.execution.cluster.losing import LostWorker
from semfocus.training import Progress
from tests.faults.machines import OFTEN, QUIET, Machines, pids_of, processes_of, workers_of
from tests.faults.pacing import Pace, once
from tests.training.helpers import assert_same_bits, runtime, states, tiny, trained

pytestmark = QUIET

PAIR = [tiny(seed, mechanism, epochs=6) for mechanism in ("full", "topk:3") for seed in (1, 2)]


@pytest.mark.parametrize("shared", [pytest.param("yes", marks=pytest.mark.slow), "no"])
def test_a_cluster_gives_what_one_process_gives_to_the_bit(tmp_path: Path, machines: Machines, shared: str) -> None:
    expected = trained(PAIR, tmp_path / "alone")
    told: list[Progress] = []
    outcomes = train(
        PAIR,
        tmp_path / "ray",
        runtime(),
        told.append,
        executor=machines.executor.replace("shared=no", f"shared={shared}"),
    )
    assert states(outcomes) == ["done"] * 4
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert {progress.worker for progress in told} == {os.uname().nodename}
    assert all(outcome.run.holder() is None for outcome in outcomes)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_its_runs_go_on_to_the_bit(
    tmp_path: Path, machines: Machines, pace: Pace
) -> None:
    """Row 59."""
    configs = [pace.run(seed) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    strike = once(machines.kill_workers, pace)
    with pace.slow(), pytest.warns(LostWorker, match="they go on from their checkpoints elsewhere"):
        outcomes = train(configs, tmp_path / "ray", OFTEN, strike, executor=machines.executor)
    assert_same_bits([outcome.run for outcome in outcomes], expected)


@pytest.mark.slow
def test_a_mailbox_that_is_killed_is_replaced_and_no_word_of_it_is_missed(
    tmp_path: Path, machines: Machines, pace: Pace
) -> None:
    """It is a process beside the driver, which may run out of memory as any other."""
    configs = [pace.run(seed) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    killed: list[int] = []

    def strike() -> None:
        killed.extend(processes_of(machines.cluster.head_node, "ray::Mailbox"))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    with pace.slow(), pytest.warns(LostWorker, match="they go on from their checkpoints elsewhere"):
        outcomes = train(configs, tmp_path / "ray", OFTEN, once(strike, pace), executor=machines.executor)
    assert len(killed) == 1
    assert_same_bits([outcome.run for outcome in outcomes], expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "paused"])
def test_a_node_that_is_killed_or_cut_off_loses_nothing_and_its_late_words_are_refused(
    tmp_path: Path, machines: Machines, pace: Pace, way: str
) -> None:
    """Rows 59 and 60: a paused node is to the others what one behind a broken network is, and it comes back."""
    configs = [pace.run(seed) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    hit: list[Any] = []

    def strike() -> None:
        node = next(node for node in machines.nodes if workers_of(node))
        hit.append((node, pids_of(node)))
        for pid in hit[0][1]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL if way == "killed" else signal.SIGSTOP)

    with pace.slow(), pytest.warns(LostWorker, match="they go on from their checkpoints elsewhere"):
        outcomes = train(configs, tmp_path / "ray", OFTEN, once(strike, pace), executor=f"{machines.executor},lease=6")
    for pid in hit[0][1]:  # it comes back: what it writes now must not count
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    machines.replace(hit[0][0])


@pytest.mark.slow
def test_a_thousand_short_runs_under_fire_are_all_there_once_and_equal_to_the_bit(
    tmp_path: Path, machines: Machines
) -> None:
    """Workers are killed at random for five minutes."""
    configs = [tiny(seed, ("full", "topk:3")[seed % 2], epochs=6) for seed in range(1000)]
    under_fire(tmp_path, machines, configs, seconds=300.0, pause=(4.0, 16.0))


def test_a_few_short_runs_under_fire_are_all_there_once_and_equal_to_the_bit(
    tmp_path: Path, machines: Machines, pace: Pace
) -> None:
    configs = [pace.run(seed, epochs=6) for seed in range(8)]
    under_fire(tmp_path, machines, configs, seconds=0.0, pause=(0.5, 2.0), pace=pace)


def under_fire(
    tmp_path: Path,
    machines: Machines,
    configs: list[RunConfig],
    seconds: float,
    pause: tuple[float, float],
    pace: Pace | None = None,
) -> None:
    """Workers are killed for so many seconds, and until three are; until then runs are slow, if they have a pace."""
    alone = runtime(cohort_size=1)
    expected = [outcome.run for outcome in train(configs, tmp_path / "alone", alone)]
    over, kills = threading.Event(), list[int]()

    def fire() -> None:
        rng, end = random.Random(7), 0.0
        while not over.wait(0.05):
            pids = [pid for node in machines.nodes for pid in workers_of(node)]
            end = end or (time.monotonic() + seconds if pids else 0.0)
            if pids and not over.wait(rng.uniform(*pause)):
                victim = rng.choice(pids)
                if any(victim in workers_of(node) for node in machines.nodes):  # it has not ended meanwhile
                    kills.append(victim)
                    with suppress(OSError):
                        os.kill(victim, signal.SIGKILL)
            if len(kills) >= 3 and time.monotonic() >= end:
                break
        if pace is not None:
            pace.end()

    if pace is not None:
        pace.file.touch()
    gun = threading.Thread(target=fire)
    gun.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LostWorker)
            outcomes = train(configs, tmp_path / "ray", alone, executor=f"{machines.executor},retries=50")
    finally:
        over.set()
        gun.join()
    print(f"{len(kills)} workers killed")
    assert len(kills) >= 3
    assert states(outcomes) == ["done"] * len(configs)
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    names = {path.name for path in (tmp_path / "ray").iterdir()} - {"cluster"}
    assert names == {run.id for run in expected}, "nothing more, nothing less"
