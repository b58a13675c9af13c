"""Machines of a Ray cluster that have too little: no disk space, no memory, no data file."""

from __future__ import annotations

from pathlib import Path

import pytest

from semfocus.config import TaskConfig
from semfocus.execution import train
from semfocus.execution.cluster.losing import LostWorker
from semfocus.tasks.registry import TASKS
from semfocus.training.objective import OBJECTIVES
from tests.faults.machines import OFTEN, QUIET, Machines
from tests.training.helpers import assert_same_bits, runtime, tiny, trained

pytestmark = QUIET

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
