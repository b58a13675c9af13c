"""What a driver knows of its cohorts: those that wait (`Load`), those that an engine has (`Flight`), their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from semfocus.errors import SemfocusError
from semfocus.execution.cluster.messages import Adopted
from semfocus.execution.cohorts import cohort_limit
from semfocus.store import RunStore, RunWriter
from semfocus.training.cohort import spec_of
from semfocus.training.progress import MemberProgress, Progress
from semfocus.training.runtime import flop_per_row
from semfocus.training.session import ENDED, Job

SHARES = (1.0, 0.5, 0.25, 0.125)  # of a GPU that a cohort may be given


@dataclass(eq=False)
class Load:
    """A cohort on its way to being trained."""

    jobs: list[Job]
    losses: int = 0  # in a row, without a new checkpoint in between
    stood: tuple[int, ...] = ()  # the newest checkpoint of each run when it last went out

    def mark(self) -> Load:
        """Note where its runs stand now, as it goes out."""
        self.stood = stand(self.jobs)
        return self


@dataclass(eq=False)
class Flight:
    """An attempt that an engine has."""

    load: Load
    share: float
    heard: float | None = None  # when the worker last said something; None while it waits for a machine
    node: str = ""  # for people
    place: str = ""  # what the engine calls it
    device: str = ""
    progress: Progress | None = None
    log: str = ""
    writers: dict[str, RunWriter] = field(default_factory=dict)
    locks: ExitStack = field(default_factory=ExitStack)


def shortest_first(cohorts: Sequence[Sequence[Job]]) -> list[list[Job]]:
    """The cohorts of small studies before those of large ones; within one, the longest first, so that none is late.

    A study is here what belongs to one task: what a command was asked to compare.
    """
    work = {id(cohort): sum(map(work_of, cohort)) for cohort in cohorts}
    of_task: dict[str, float] = {}
    for cohort in cohorts:
        name = cohort[0].config.task.name
        of_task[name] = of_task.get(name, 0.0) + work[id(cohort)]

    def key(cohort: Sequence[Job]) -> tuple[float, str, float]:
        name = cohort[0].config.task.name
        return of_task[name], name, -work[id(cohort)]

    return [list(cohort) for cohort in sorted(cohorts, key=key)]


def work_of(job: Job) -> float:
    return job.steps_to_go * job.config.training.batch_size * flop_per_row(spec_of(job.config, job.task))


def stand(jobs: Sequence[Job]) -> tuple[int, ...]:
    """The newest checkpoint of each run; -1 where there is none."""
    return tuple((job.run.checkpoint_steps() or [-1])[0] for job in jobs)


def got_further(load: Load, jobs: Sequence[Job]) -> bool:
    """Whether one of these runs has a newer checkpoint than when its cohort last went out."""
    stood = dict(zip((job.id for job in load.jobs), load.stood, strict=True))
    return any(now > stood[job.id] for job, now in zip(jobs, stand(jobs), strict=True))


def share_of(jobs: Sequence[Job], cohorts: int, slots: Callable[[float], int]) -> float:
    """The part of a GPU for one of so many cohorts: what its activations need, more where there is enough for all."""
    need = min(len(jobs) / cohort_limit(jobs[0].config, jobs[0].task, "cuda"), 1.0)
    enough = [share for share in SHARES if share >= need]
    return next((share for share in enough if slots(share) >= cohorts), enough[-1])


def adopted(queue: deque[Load], alive: Sequence[Adopted], store: RunStore) -> dict[str, Load]:
    """The attempts of an earlier driver that train runs of this queue, from which those are taken."""
    jobs = {job.id: job for load in queue for job in load.jobs}
    loads: dict[str, Load] = {}
    for one in alive:
        own = [jobs[run_id] for run_id in one.ids if run_id in jobs]
        others = [run_id for run_id in one.ids if run_id not in jobs]
        if not own or not all(_has_ended(run_id, store) for run_id in others):
            continue  # of another study
        for load in queue:
            load.jobs = [job for job in load.jobs if job.id not in one.ids]
        loads[one.attempt] = Load(own).mark()
    rest = [load for load in queue if load.jobs]
    queue.clear()
    queue.extend(rest)
    return loads


def _has_ended(run_id: str, store: RunStore) -> bool:
    with suppress(SemfocusError):
        return (store.open(run_id).status() or {}).get("state") in ENDED
    return False


def progress_of(flight: Flight, body: Mapping[str, Any]) -> Progress:
    """What a worker says of its progress; of runs that it was not given, nothing."""
    by_id = {job.id: job for job in flight.load.jobs}
    members = [
        MemberProgress(by_id[run_id].run, by_id[run_id].config, last)
        for run_id, last in body["members"]
        if run_id in by_id
    ]
    numbers = {name: value for name, value in body.items() if name != "members"}
    return Progress(members=members, worker=flight.node, **numbers)


def board_row(attempt: str, flight: Flight) -> dict[str, Any]:
    """What `semfocus.store.board` notes of an attempt."""
    jobs, progress = flight.load.jobs, flight.progress
    names = list(dict.fromkeys(job.config.attention.mechanism for job in jobs))
    what = f"{jobs[0].config.task.name} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    row = {"attempt": attempt, "node": flight.node, "device": flight.device, "what": what, "runs": len(jobs)}
    if progress is None:
        return row | {"state": "waiting" if flight.heard is None else "starting"}
    made = progress.session_steps * len(progress.members)
    seconds = progress.seconds / progress.session_steps if progress.session_steps else 0.0
    return row | {
        "state": "training", "step": progress.step, "total_steps": progress.total_steps,
        "rate": made / progress.seconds if progress.seconds else 0.0,
        "left": seconds * (progress.total_steps - progress.step),
    }  # fmt: skip
