"""Machines of a Ray cluster that vanish, stop and come back: nothing lost, nothing twice, equal to the bit.

The machines are nodes that Ray simulates on this one (`ray.cluster_utils.Cluster`), bound to the loopback interface.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semfocus.config import RunConfig, TaskConfig
from semfocus.execution import train
from semfocus.execution.cluster import ray_access
from semfocus.execution.cluster.losing import LostWorker
from semfocus.tasks.registry import TASKS
from semfocus.training import Interrupted, Progress
from semfocus.training.objective import OBJECTIVES
from tests.faults.pacing import Pace, paced
from tests.training.helpers import assert_same_bits, run_of, runtime, states, tiny, trained

pytest.importorskip("ray", reason="ray is not installed: pip install 'semfocus[cluster]'")

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)

HEALTH = {  # sooner than Ray's own, and not so soon that a busy machine is taken for a dead one
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
PAIR = [tiny(seed, mechanism, epochs=6) for mechanism in ("full", "topk:3") for seed in (1, 2)]
ROOT = Path(__file__).parents[2]
FULL_DISK = """
import errno, os
from pathlib import Path
from semfocus.store import atomic
from semfocus.training import step
from semfocus import register_task
from semfocus.tasks.even_pairs import EvenPairs

@register_task
class Unused(EvenPairs):
    name = "unused_of_full_disk"

real = atomic.create_directories

def create_directories(contents, also_sync=()):
    import ray

    here = ray.get_runtime_context().get_node_id()
    try:
        with open({marker!r}, "x") as marker:
            marker.write(here)
    except FileExistsError:
        if Path({marker!r}).read_text() != here:
            return real(contents, also_sync)
    with atomic.storage_errors(atomic.Path("/full")):
        raise OSError(errno.ENOSPC, "No space left on device")

if os.environ.get("RAY_JOB_ID") or "ray::" in open("/proc/self/cmdline").read():
    atomic.create_directories = create_directories
"""
HUNGRY = """
import os, signal
from dataclasses import dataclass
from semfocus import register_objective, register_task
from semfocus.tasks.even_pairs import EvenPairs
from semfocus.training.objective import Classification

@register_objective
class Hungry(Classification):
    name = "hungry"

    def loss(self, logits, targets):
        if len(logits) > 2 and open("/proc/self/cmdline").read().startswith("ray::"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(logits, targets)

@register_task
@dataclass(frozen=True, kw_only=True)
class HungryEvenPairs(EvenPairs):
    name = objective = "hungry"
"""
ENDLESS = [tiny(seed, "full", epochs=100_000) for seed in (1, 2)]
OFTEN = runtime(checkpoint_seconds=0, cohort_size=1)


class Machines:
    """A head without room for work, on which the driver runs, and nodes."""

    def __init__(self) -> None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args=NODE | {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH},
        )
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]

    @property
    def executor(self) -> str:
        """Without a shared disk, as on most clusters."""
        return f"ray:{self.cluster.address},shared=no"

    def kill_workers(self) -> None:
        for node in self.nodes:
            for pid in workers_of(node):
                os.kill(pid, signal.SIGKILL)

    def replace(self, node: Any) -> None:
        """Take away what is left of a node, and add another."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes[self.nodes.index(node)] = self.cluster.add_node(**NODE)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()
        ray_access.read_again()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machines = Machines()
        yield machines
        machines.close()


@pytest.fixture
def pace(tmp_path: Path) -> Iterator[Pace]:
    with paced(tmp_path / "plugin") as pace:
        yield pace


def pids_of(node: Any) -> list[int]:
    """The raylet of a node, and every process that it started."""
    found = [node.all_processes["raylet"][0].process.pid]
    for pid in found:  # grows meanwhile
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def workers_of(node: Any) -> list[int]:
    """The processes of a node that train just now."""
    return processes_of(node, "ray::semfocus-")


def processes_of(node: Any, name: str) -> list[int]:
    """The processes of a node that Ray has given a name that begins so."""
    pids = []
    for pid in pids_of(node):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(name):
                pids.append(pid)
    return pids


def once(act: Callable[[], None], pace: Pace | None = None) -> Callable[[Progress], None]:
    """Strike as soon as one trains; afterwards at full speed."""
    done: list[int] = []

    def on_progress(progress: Progress) -> None:
        if not done and progress.step and progress.going_on:
            done.append(progress.step)
            act()
            if pace is not None:
                pace.end()

    return on_progress


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
from tests.faults.test_cluster_ray import OFTEN
from tests.training.helpers import tiny
from semfocus.execution import train
sys.path.insert(0, sys.argv[1])
import paced
train([tiny(seed, "full", task="paced", epochs=40) for seed in (1, 2)], sys.argv[2], OFTEN, executor=sys.argv[3])
"""
HEAD = """
import sys
from tests.faults.test_cluster_ray import Machines, OFTEN
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


@pytest.mark.slow
def test_a_full_disk_of_one_machine_sends_its_runs_to_another(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin stands in for a disk: on the node where something is stored first, there is no space for anything."""
    configs = [tiny(seed, "full", epochs=40) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    plugin = tmp_path / "full_disk.py"
    plugin.write_text(FULL_DISK.format(marker=str(tmp_path / "struck")))
    monkeypatch.syspath_prepend(str(tmp_path))
    import full_disk  # noqa: F401

    try:
        with pytest.warns(LostWorker, match="cannot store runs and gets no more of them"):
            outcomes = train(configs, tmp_path / "ray", OFTEN, executor=machines.executor)
    finally:
        del TASKS._entries["unused_of_full_disk"]  # other tests have no such plugin
    assert (tmp_path / "struck").exists()
    assert_same_bits([outcome.run for outcome in outcomes], expected)


@pytest.mark.slow
def test_a_cohort_that_the_kernel_kills_for_its_memory_is_split_and_trains(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 63. The plugin stands in for the kernel: it kills whatever trains more than two runs at once."""
    (tmp_path / "hungry.py").write_text(HUNGRY)
    monkeypatch.syspath_prepend(str(tmp_path))
    import hungry  # noqa: F401

    try:
        configs = [tiny(seed, "full", task="hungry", epochs=6) for seed in (1, 2, 3, 4)]
        expected = trained(configs, tmp_path / "alone", cohort_size=2)
        executor = f"{machines.executor},retries=2"
        with pytest.warns(LostWorker) as told:
            outcomes = train(configs, tmp_path / "ray", runtime(cohort_size=4), executor=executor)
    finally:
        del TASKS._entries["hungry"], OBJECTIVES._entries["hungry"]  # other tests have no such plugin
    assert "in two halves (losses in a row: 2; out of memory?)" in str(told[-1].message)
    assert_same_bits([outcome.run for outcome in outcomes], expected)


@pytest.mark.slow
def test_a_data_file_travels_to_machines_that_do_not_have_it(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "own.csv"
    data.write_text("text,label\n" + "".join(f"a{i} b{i % 7},{i % 2}\n" for i in range(200)))
    task = TaskConfig(name="own.csv", train_rows=None, heldout_rows=None)
    config = tiny(1, epochs=2).model_copy(update={"task": task})
    monkeypatch.chdir(tmp_path)  # workers have another working directory
    expected = trained([config], tmp_path / "alone")
    outcomes = train([config], tmp_path / "ray", runtime(), executor=machines.executor)
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert outcomes[0].run.config()["task"]["name"] == "own.csv"


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


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
