"""A Ray cluster whose driver or head dies, or is interrupted: the same command goes on from the run directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semfocus.execution import train
from semfocus.training import Interrupted
from tests.faults.machines import OFTEN, QUIET, ROOT, Machines, wait_for
from tests.faults.pacing import Pace, once
from tests.training.helpers import assert_same_bits, run_of, runtime, tiny, trained

pytestmark = QUIET

ENDLESS = [tiny(seed, "full", epochs=100_000) for seed in (1, 2)]


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again_goes_on(tmp_path: Path, machines: Machines, pace: Pace) -> None:
    """Row 61: what is done stays done, and the rest goes on from its checkpoints."""
    configs = [pace.run(seed) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    store = tmp_path / "ray"
    with pace.slow():
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(pace.folder), str(store), machines.executor], cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        runs = [run_of(config, store) for config in configs]
        wait_for(lambda: all(run.path.is_dir() and run.checkpoint_steps() for run in runs))
        driver.kill()
        driver.wait()
    assert all(run.status()["state"] == "running" for run in runs)
    begun: list[int] = []
    outcomes = train(configs, store, OFTEN, lambda progress: begun.append(progress.step), executor=machines.executor)
    assert begun[0] > 0
    assert_same_bits([outcome.run for outcome in outcomes], expected)


DRIVER = """
import sys
from tests.faults.machines import OFTEN
from tests.training.helpers import tiny
from semfocus.execution import train
sys.path.insert(0, sys.argv[1])
import paced
train([tiny(seed, "full", task="paced", epochs=40) for seed in (1, 2)], sys.argv[2], OFTEN, executor=sys.argv[3])
"""
HEAD = """
import sys
from tests.faults.machines import Machines, OFTEN
from tests.training.helpers import tiny
from semfocus.execution import train
from semfocus.execution.cluster import ray_transport
sys.path.insert(0, sys.argv[1])
import paced
ray_transport.SLOTS_SECONDS, ray_transport.HEAD_SECONDS = 1.0, 3.0
machines = Machines()
print(machines.cluster.head_node.all_processes["gcs_server"][0].process.pid, flush=True)
try:
    configs = [tiny(seed, "full", task="paced", epochs=200) for seed in (1, 2)]  # longer than the head lives
    train(configs, sys.argv[2], OFTEN, executor=machines.executor)
except Exception as error:
    print(error, flush=True)
    raise
finally:
    machines.close()
"""


@pytest.mark.slow
def test_a_head_that_dies_takes_nothing_with_it(tmp_path: Path, machines: Machines, pace: Pace) -> None:
    """Row 61: the cluster is gone; the same command on another one goes on from the run directories."""
    configs = [pace.run(seed, epochs=200) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    store = tmp_path / "ray"
    pace.file.touch()
    driver = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(pace.folder), str(store)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        env={**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "10"},
    )  # fmt: skip
    assert driver.stdout is not None
    with driver.stdout:
        gcs = int(driver.stdout.readline())
        runs = [run_of(config, store) for config in configs]
        wait_for(lambda: any(run.path.is_dir() and run.checkpoint_steps() for run in runs))
        os.kill(gcs, signal.SIGKILL)
        assert "has not answered for 3 s; what workers saved is kept: start the cluster" in driver.stdout.readline()
    assert driver.wait(120) != 0
    pace.end()
    wait_for(lambda: all(run.holder() is None for run in runs))
    begun: list[int] = []
    outcomes = train(configs, store, OFTEN, lambda progress: begun.append(progress.step), executor=machines.executor)
    assert max(begun) > 0
    assert_same_bits([outcome.run for outcome in outcomes], expected)


@pytest.mark.slow
def test_ctrl_c_saves_and_brings_what_the_workers_have(tmp_path: Path, machines: Machines) -> None:
    interrupt = once(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        train(ENDLESS, tmp_path, runtime(checkpoint_seconds=60, cohort_size=2), interrupt, executor=machines.executor)
    for config in ENDLESS:
        run = run_of(config, tmp_path)
        assert run.status()["state"] == "interrupted"
        assert run.load_checkpoint().step == run.status()["step"] > 0
