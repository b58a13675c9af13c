"""One cohort, trained under the locks of its runs: `train_cohort(jobs, runtime, on_progress, interruption)`.

`training_turns` is the same in turns, between which a GPU may be given the work of other cohorts.

A `Job` is a run to train: its configuration, its task and its directory. Runs that another process holds are left to
it. A cohort that does not fit into memory is split, down to single runs; one of these adds up gradients over parts of
its batches, if `Runtime.fit_memory` says so. One on which torch's compiler fails trains without it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from semfocus.config import RunConfig
from semfocus.errors import CorruptData, Locked, StorageError
from semfocus.store import DamagedRuns, RunDirectory, RunStore, RunWriter
from semfocus.tasks import Task
from semfocus.training.member import Member
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime
from semfocus.training.signals import Interruption
from semfocus.training.trainer import Trainer


class CompilerFailed(UserWarning):
    """Torch's compiler failed on a cohort, which trains without it."""


ENDED = ("done", "diverged")
CORRUPT = "corrupt"  # a run whose directory is damaged


@dataclass(frozen=True)
class Job:
    """A run to train, and its directory once it has begun."""

    config: RunConfig
    task: Task
    run: RunDirectory

    @staticmethod
    def of(config: RunConfig, task: Task, store: RunStore) -> Job:
        """The job of a configuration whose sizes fit its task. Nothing is written."""
        config.check(task)
        return Job(config, task, RunDirectory(store.root / config.run_id(task)))

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def state(self) -> str:
        """The state in the run's status; new when there is none, corrupt when it cannot be read."""
        try:
            status = self.run.status() if self.run.path.is_dir() else None
        except CorruptData:
            return CORRUPT
        return status["state"] if status else "new"

    @property
    def steps(self) -> int:
        """Training steps of the whole run."""
        training = self.config.training
        rows = self.config.rows(self.task)[0] - training.drop_one_row
        return training.epochs * -(-rows // training.batch_size)

    @property
    def steps_to_go(self) -> int:
        """Training steps after the newest checkpoint; 0 when the run has ended."""
        if self.state in ENDED:
            return 0
        saved = self.run.checkpoint_steps() if self.run.path.is_dir() else []
        return max(0, self.steps - saved[0]) if saved else self.steps

    @property
    def epochs_to_go(self) -> float:
        """The same in epochs."""
        return self.steps_to_go * self.config.training.epochs / self.steps


def train_cohort(
    jobs: Sequence[Job],
    runtime: Runtime,
    on_progress: Callback,
    interruption: Interruption,
    too_many: int | None = None,
) -> list[str]:
    """Train these runs in lockstep to their ends, and return the ids of those that cannot be: they do not fit into
    memory even alone, or their directory is damaged. The others go on without them.

    `too_many` is the size of the cohort that this one was split off from.
    """
    turns = training_turns(jobs, runtime, on_progress, interruption, too_many)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value


def training_turns(
    jobs: Sequence[Job],
    runtime: Runtime,
    on_progress: Callback,
    interruption: Interruption,
    too_many: int | None = None,
) -> Generator[None, None, list[str]]:
    """`train_cohort` in turns: each leaves work queued on the current stream of the GPU."""
    damaged: list[str] = []
    smaller: int | None = None
    uncompiled: Runtime | None = None
    with ExitStack() as locks:
        members = _locked_members(jobs, locks)
        if not members:
            return []
        status = members[0].writer.status() or {}
        notes = {} if too_many is None else {"out_of_memory_with": too_many}
        chosen = runtime.as_before(status)
        try:
            ids = _former_ids(members, status) if too_many is None else None
            yield from Trainer(members, chosen, on_progress, interruption, notes, ids).turns()
            return []
        except DamagedRuns as error:
            for member in members:
                if member.writer.id in error.reasons:
                    note_failure(member.writer, error.reasons[member.writer.id], damaged=True)
            damaged = [*error.reasons]
        except (CorruptData, StorageError):  # no fault of every run: all can go on from their checkpoints
            raise
        except Exception as error:
            if chosen.compile == "auto" and compiler_failed(error):
                uncompiled = replace(runtime, compile="off")
                warnings.warn(_slower(members, error), CompilerFailed, stacklevel=2)
            elif out_of_memory(error):
                smaller = _smaller(members, runtime) if len(members) == 1 else None
                if len(members) == 1 and not (smaller and runtime.fit_memory):
                    note_failure(members[0].writer, f"{_advice(smaller)}{type(error).__name__}: {error}")
            else:
                hint = "torch's compiler failed; try --compile off: " if compiler_failed(error) else ""
                for member in members:
                    note_failure(member.writer, f"{hint}{type(error).__name__}: {error}")
                raise
        if uncompiled is None and len(members) == 1 and not (smaller and runtime.fit_memory):
            return [members[0].writer.id]
    if uncompiled is not None:
        return (yield from training_turns(jobs, uncompiled, on_progress, interruption, too_many))
    if smaller and runtime.fit_memory:
        reduced = replace(runtime, micro_batch=smaller)
        return (yield from training_turns(jobs, reduced, on_progress, interruption, too_many))
    if damaged:
        sound = [job for job in jobs if job.id not in damaged]
        rest = (yield from training_turns(sound, runtime, on_progress, interruption, too_many)) if sound else []
        return damaged + rest
    failed = []
    for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
        if not interruption.signal:
            failed += yield from training_turns(half, runtime, on_progress, interruption, len(members))
    return failed


def _smaller(members: Sequence[Member], runtime: Runtime) -> int | None:
    """Half as many examples at a time as were in memory; None where it was one."""
    return (runtime.micro_batch or members[0].config.training.batch_size) // 2 or None


def _advice(smaller: int | None) -> str:
    if smaller is None:
        return ""
    return f"it does not fit into memory; try --micro-batch {smaller}, or --fit-memory to find what fits: "


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device, or the host, is out of memory."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def compiler_failed(error: BaseException) -> bool:
    """Whether torch's compiler could not make a program of the model: no C++ compiler, or an error of its own."""
    exceptions = sys.modules.get("torch._dynamo.exc")  # importing it takes a second, and only it raises them
    return exceptions is not None and isinstance(error, exceptions.TorchDynamoException)


def _slower(members: Sequence[Member], error: BaseException) -> str:
    attention = members[0].config.attention
    reason = next(iter(str(error).strip().splitlines()), "")[:200]
    return (
        f"torch's compiler failed on {attention.mechanism} with {attention.normaliser} "
        f"({type(error).__name__}: {reason}); {len(members)} runs train without it, more slowly"
    )


def _locked_members(jobs: Sequence[Job], locks: ExitStack) -> list[Member]:
    """The jobs whose run can be locked and has not ended since the cohort was formed."""
    members: list[Member] = []
    for job in jobs:
        try:
            writer = locks.enter_context(job.run.lock())
        except Locked:
            continue  # the process that holds the lock trains it
        if (writer.status() or {}).get("state") not in ENDED:
            members.append(Member(job.config, job.task, writer, len(members)))
    return members


def _former_ids(members: Sequence[Member], status: Mapping[str, Any]) -> list[str] | None:
    """The runs of the cohort that these are what is left of; None where their status names none."""
    ids = status.get("cohort")
    own = {member.writer.id for member in members}
    return ids if isinstance(ids, list) and all(isinstance(one, str) for one in ids) and own <= {*ids} else None


def note_failure(writer: RunWriter, reason: str, damaged: bool = False) -> None:
    """Record why a run failed, and keep the other facts of its status. `damaged`: its directory is."""
    try:
        known = {name: value for name, value in (writer.status() or {}).items() if name != "state"}
        facts = known | {"reason": reason[:500]} | ({"damaged": True} if damaged else {})
        writer.write_status("failed", **facts)
    except Exception:  # the storage itself failed: the first error is the one to report
        return
