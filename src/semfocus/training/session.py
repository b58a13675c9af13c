"""`train([RunConfig, ...])`: group runs into cohorts, train each to its end, never lose a result.

Finished runs are skipped, interrupted ones go on, runs that another process holds are left to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.config import RunConfig
from semfocus.errors import Locked
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task
from semfocus.training import saved
from semfocus.training.cohort import spec_of
from semfocus.training.loop import Loop, Member, Watcher, out_of_memory
from semfocus.training.runtime import Runtime
from semfocus.training.signals import Interrupted, Interruption, listening

COHORT_BYTES = {"cpu": 2**31, "cuda": 2**35}  # of activations that a cohort may take
ENDED = ("done", "diverged")
FREE_FIELDS = ("label", "task.name")  # may differ between sessions: a name for people, a file that has moved


@dataclass(frozen=True)
class RunOutcome:
    """How one run stands after `train`."""

    config: RunConfig
    run: RunDirectory
    state: str  # done, diverged, or held (by another process)


@dataclass(frozen=True)
class _Job:
    config: RunConfig
    task: Task
    run: RunDirectory


def train(
    configs: Sequence[RunConfig],
    out: Path | str | None = None,
    runtime: Runtime = Runtime(),
    watcher: Watcher = lambda progress: None,
) -> list[RunOutcome]:
    """Train these runs and return how each stands, in the same order. Interrupted: saves, then raises Interrupted."""
    device = runtime.torch_device()
    jobs = _jobs(configs, RunStore(out))
    waiting = [job for job in jobs if _state(job.run) not in ENDED]
    with listening() as interruption:
        for group in cohorts(waiting, runtime, device.type):
            _train_group(group, runtime, watcher, interruption)
            if interruption.signal:
                raise Interrupted(interruption.signal)
    outcomes = []
    for job in jobs:
        state = _state(job.run)
        outcomes.append(RunOutcome(job.config, job.run, state if state in ENDED else "held"))
    return outcomes


def _jobs(configs: Sequence[RunConfig], store: RunStore) -> list[_Job]:
    tasks: dict[str, Task] = {}
    planned: list[tuple[str, RunConfig, Task]] = []
    for config in configs:
        key = json.dumps([config.task.name, config.task.options], sort_keys=True, default=str)
        if key not in tasks:
            tasks[key] = config.task.build()
        config.check(tasks[key])
        planned.append((config.run_id(tasks[key]), config, tasks[key]))
    documents = {run_id: saved.document(config, task) for run_id, config, task in planned}
    runs = dict(zip(documents, store.create_or_open_all(documents, free=FREE_FIELDS), strict=True))
    return [_Job(config, task, runs[run_id]) for run_id, config, task in planned]


def _state(run: RunDirectory) -> str:
    status = run.status()
    return status["state"] if status else "new"


def cohorts(jobs: Sequence[_Job], runtime: Runtime, device: str) -> list[list[_Job]]:
    """Jobs that share shapes and mechanism, as many together as memory allows; resumed ones as they were before."""
    groups: dict[Any, list[_Job]] = {}
    for job in {job.run.id: job for job in jobs}.values():
        status = job.run.status() or {}
        groups.setdefault((cohort_key(job.config, job.task), tuple(status.get("cohort", ()))), []).append(job)
    found = []
    for group in groups.values():
        size = runtime.cohort_size or cohort_limit(group[0].config, group[0].task, device)
        found += [group[i : i + size] for i in range(0, len(group), size)]
    return found


def cohort_key(config: RunConfig, task: Task) -> str:
    """What runs must share to train in lockstep: everything but seed, learning rate, decay and label."""
    own = {"seed": True, "label": True, "training": {"lr", "decay"}, "task": {"name"}}
    fields = config.model_dump(mode="json", exclude=own)
    shape = [task.width, task.num_symbols, task.num_classes, *config.rows(task)]
    return json.dumps([fields, shape, task.fingerprint()["task"]], sort_keys=True, default=str)


def cohort_limit(config: RunConfig, task: Task, device: str) -> int:
    """How many members fit: activations of one step, generously counted."""
    spec = spec_of(config, task)
    model, length = spec.model, spec.length
    rows = config.training.batch_size * length
    per_position = 12 * model.d_model + 4 * model.d_mlp + 4 * model.heads * (model.head_dim + 2 * length)
    return max(1, COHORT_BYTES.get(device, 2**31) // (4 * model.blocks * rows * per_position))


def _train_group(group: list[_Job], runtime: Runtime, watcher: Watcher, interruption: Interruption) -> None:
    """Train a cohort under the locks of its runs; out of memory, train its halves instead."""
    with ExitStack() as locks:
        members = []
        for job in group:
            try:
                members.append(Member(job.config, job.task, locks.enter_context(job.run.lock()), len(members)))
            except Locked:
                continue  # whoever holds it goes on with it
        if not members:
            return
        try:
            Loop(members, runtime, watcher, interruption).run()
            return
        except Exception as error:
            if not out_of_memory(error) or len(members) == 1:
                for member in members:
                    _note_failure(member, error)
                raise
        halves = [group[: len(group) // 2], group[len(group) // 2 :]]
    for half in halves:
        if not interruption.signal:
            _train_group(half, runtime, watcher, interruption)


def _note_failure(member: Member, error: Exception) -> None:
    """Record why a run failed, unless the reason is that nothing can be recorded."""
    try:
        member.writer.write_status("failed", reason=f"{type(error).__name__}: {error}"[:500])
    except Exception:  # the storage itself failed: the first error is the one to report
        return
