"""`train([RunConfig, ...])`: group runs into cohorts, train each to its end, never lose a result.

Finished runs are skipped, interrupted ones go on, runs that another process holds are left to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from semfocus.config import RunConfig
from semfocus.errors import Locked
from semfocus.store import RunDirectory, RunStore, RunWriter
from semfocus.tasks import Task
from semfocus.training import loading
from semfocus.training.cohort import spec_of
from semfocus.training.runtime import Runtime
from semfocus.training.signals import Interrupted, Interruption, listening
from semfocus.training.trainer import Callback, Member, Trainer, out_of_memory

COHORT_BYTES = {"cpu": 2**31, "cuda": 2**35}  # of activations that a cohort may take
ENDED = ("done", "diverged")
# May differ between sessions: a name for people, a file that has moved, options that are written out or left out
# (what they come to is part of the data's fingerprint, which may not differ).
FREE_FIELDS = ("label", "task.name", "task.options")


@dataclass(frozen=True)
class RunOutcome:
    """How one run stands after `train`."""

    config: RunConfig
    run: RunDirectory
    state: str  # done, diverged, failed (out of memory even alone), or held (by another process)


@dataclass(frozen=True)
class Job:
    """A run to be trained."""

    config: RunConfig
    task: Task
    run: RunDirectory


def train(
    configs: Sequence[RunConfig],
    out: Path | str | None = None,
    runtime: Runtime = Runtime(),
    watcher: Callback = lambda progress: None,
) -> list[RunOutcome]:
    """Train these runs, a cohort after the other, and return how each stands, in the same order.

    Interrupted: saves, then raises Interrupted.
    """
    jobs, groups = prepare(configs, out, runtime)
    return outcomes(jobs, train_in_turn(groups, runtime, watcher))


def prepare(
    configs: Sequence[RunConfig], out: Path | str | None, runtime: Runtime
) -> tuple[list[Job], list[list[Job]]]:
    """All runs, their directories made where missing, and the cohorts of those that have not ended."""
    device = runtime.torch_device()
    jobs = _jobs(configs, RunStore(out))
    return jobs, cohorts([job for job in jobs if _state(job.run) not in ENDED], runtime, device.type)


def train_in_turn(groups: Sequence[list[Job]], runtime: Runtime, watcher: Callback) -> list[str]:
    """Train cohorts one after the other; the ids of the runs that do not fit into memory even alone."""
    failed: list[str] = []
    with listening() as interruption:
        for group in groups:
            failed += _train_group(group, runtime, watcher, interruption)
            if interruption.signal:
                raise Interrupted(interruption.signal)
    return failed


def outcomes(jobs: Sequence[Job], failed: Sequence[str]) -> list[RunOutcome]:
    """How each run stands, now that all has been tried."""
    found = []
    for job in jobs:
        state = _state(job.run)
        state = state if state in ENDED else "failed" if job.run.id in failed else "held"
        found.append(RunOutcome(job.config, job.run, state))
    return found


def _jobs(configs: Sequence[RunConfig], store: RunStore) -> list[Job]:
    tasks: dict[str, Task] = {}
    planned: list[tuple[str, RunConfig, Task]] = []
    for config in configs:
        key = json.dumps([config.task.name, config.task.options], sort_keys=True, default=str)
        if key not in tasks:
            tasks[key] = config.task.build()
        config.check(tasks[key])
        planned.append((config.run_id(tasks[key]), config, tasks[key]))
    documents = {run_id: loading.document(config, task) for run_id, config, task in planned}
    runs = dict(zip(documents, store.create_or_open_all(documents, free=FREE_FIELDS), strict=True))
    return [Job(config, task, runs[run_id]) for run_id, config, task in planned]


def _state(run: RunDirectory) -> str:
    status = run.status()
    return status["state"] if status else "new"


def cohorts(jobs: Sequence[Job], runtime: Runtime, device: str) -> list[list[Job]]:
    """Jobs that share shapes and mechanism, as many together as memory allows; resumed ones as they were before."""
    before = _former_cohorts(jobs)
    groups: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
    for job in {job.run.id: job for job in jobs}.values():
        former = before.get(job.run.id, ())
        groups.setdefault((cohort_key(job.config, job.task), former), []).append(job)
    found = []
    for (_, former), group in groups.items():
        if former:
            group.sort(key=lambda job, places=former: places.index(job.run.id))
        limit = len(group) if former else cohort_limit(group[0].config, group[0].task, device)
        size = runtime.cohort_size or limit
        found += [group[i : i + size] for i in range(0, len(group), size)]
    return found


def _former_cohorts(jobs: Sequence[Job]) -> dict[str, tuple[str, ...]]:
    """The ids that each run trained with so far, its own included, in their order."""
    own: dict[str, tuple[str, ...]] = {}
    promised: dict[str, tuple[str, ...]] = {}  # for runs killed before their own status was written
    for job in jobs:
        ids = (job.run.status() or {}).get("cohort")
        if isinstance(ids, list) and job.run.id in ids and all(isinstance(item, str) for item in ids):
            own[job.run.id] = tuple(ids)
            if not job.run.checkpoint_steps():
                promised |= {other: tuple(ids) for other in ids}
    return promised | own


def cohort_key(config: RunConfig, task: Task) -> str:
    """What runs must share to train in lockstep: everything but seed, learning rate, decay and label."""
    own = {"seed": True, "label": True, "training": {"lr", "decay"}, "task": {"name"}}
    fields = config.model_dump(mode="json", exclude=own)
    shape = [task.seq_len, task.vocab_size, task.num_classes, *config.rows(task)]
    return json.dumps([fields, shape, task.fingerprint()["task"]], sort_keys=True, default=str)


def cohort_limit(config: RunConfig, task: Task, device: str) -> int:
    """How many members fit: activations of one step, generously counted."""
    spec = spec_of(config, task)
    model, length = spec.model, spec.length
    rows = config.training.batch_size * length
    per_position = 12 * model.d_model + 4 * model.d_mlp + 4 * model.heads * (model.head_dim + 2 * length)
    return max(1, COHORT_BYTES.get(device, 2**31) // (4 * model.blocks * rows * per_position))


def _train_group(
    group: list[Job], runtime: Runtime, watcher: Callback, interruption: Interruption, too_many: int | None = None
) -> list[str]:
    """Train a cohort under the locks of its runs; out of memory, train its halves. The ids that do not fit even alone.

    `too_many`: how many members were too many before this one was split off.
    """
    with ExitStack() as locks:
        members = _members(group, locks)
        if not members:
            return []
        status = members[0].writer.status() or {}
        notes = {} if too_many is None else {"out_of_memory_with": too_many}
        try:
            Trainer(members, runtime.as_before(status), watcher, interruption, notes).run()
            return []
        except Exception as error:
            if not out_of_memory(error) or len(members) == 1:
                for member in members:
                    note_failure(member.writer, f"{type(error).__name__}: {error}")
            if not out_of_memory(error):
                raise
        if len(members) == 1:
            return [members[0].writer.id]
    failed = []
    for half in (group[: len(group) // 2], group[len(group) // 2 :]):
        if not interruption.signal:
            failed += _train_group(half, runtime, watcher, interruption, len(members))
    return failed


def _members(group: list[Job], locks: ExitStack) -> list[Member]:
    """The runs of a group that can be locked and that nobody has finished since the group was made."""
    members: list[Member] = []
    for job in group:
        try:
            writer = locks.enter_context(job.run.lock())
        except Locked:
            continue  # whoever holds it goes on with it
        if _state(writer) not in ENDED:
            members.append(Member(job.config, job.task, writer, len(members)))
    return members


def note_failure(writer: RunWriter, reason: str) -> None:
    """Record why a run failed, beside what its status said before; unless nothing can be recorded."""
    try:
        known = {name: value for name, value in (writer.status() or {}).items() if name != "state"}
        writer.write_status("failed", **known | {"reason": reason[:500]})
    except Exception:  # the storage itself failed: the first error is the one to report
        return
