"""What a driver knows of its cohorts: those that wait (`Load`), those that an engine has (`Flight`), their order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from semfocus.store import RunWriter
from semfocus.training.cohort import spec_of
from semfocus.training.runtime import flop_per_row
from semfocus.training.session import Job
from semfocus.training.trainer import Progress


@dataclass(eq=False)
class Load:
    """A cohort on its way to being trained."""

    jobs: list[Job]
    losses: int = 0  # in a row, without a new checkpoint in between
    stood: tuple[int, ...] = ()  # the newest checkpoint of each run when it last went out


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
