"""Cohorts side by side on one GPU, each on a stream of one process.

    StreamExecutor(Runtime(device="cuda", jobs=4)).run(cohorts, store, on_progress)

A cohort queues its training and evaluation up to the next line of metrics, and gives way. While it waits, or its lines
are written, the others' kernels run; those of small cohorts run at the same time. Each cohort computes what it would
alone. Cohorts that torch compiles train alone: compiling one throws away what was compiled for another.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from signal import SIGTERM

import torch

from semfocus.errors import UsageError
from semfocus.execution.executor import Executor, RunOutcome, outcomes_of, register_executor
from semfocus.store import RunStore
from semfocus.training.cohort import spec_of
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime, numerics
from semfocus.training.session import Job, training_turns
from semfocus.training.signals import Interrupted, Interruption, listening

POLL_SECONDS = 0.0005  # between two looks at whether a cohort's work is done

Turns = Generator[None, None, list[str]]


@register_executor
class StreamExecutor(Executor):
    """Trains `runtime.jobs` cohorts at a time on one GPU."""

    name = "streams"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        if runtime.torch_device().type != "cuda":
            raise UsageError(f"executor 'streams' needs a GPU, not {runtime.torch_device()}; take processes or serial")

    def run(self, cohorts: Sequence[Sequence[Job]], store: RunStore, on_progress: Callback) -> list[RunOutcome]:
        failed: list[str] = []
        with listening() as interruption, torch.cuda.device(self.runtime.torch_device()):
            for company in companies(cohorts, self.runtime):
                starts = [training_turns(jobs, self.runtime, on_progress, interruption) for jobs in company]
                # Each trainer sets precision and threads for itself, and restores what it found. They leave in any
                # order: with the same ones around all, what each restores is right for the others.
                with numerics(company[0][0].config.precision, self.runtime.num_threads()):
                    failed += take_turns(starts, self.runtime.num_jobs(), interruption, torch.cuda.Stream)
                if interruption.signal:
                    raise Interrupted(interruption.signal)
        return outcomes_of(cohorts, failed)


def companies(cohorts: Iterable[Sequence[Job]], runtime: Runtime) -> list[list[Sequence[Job]]]:
    """The cohorts in groups that may train at the same time, in their order."""
    groups = []
    for (shares, _), group in groupby(cohorts, lambda jobs: (_shares(jobs, runtime), jobs[0].config.precision)):
        company = list(group)
        groups += [company] if shares else [[jobs] for jobs in company]
    return groups


def _shares(jobs: Sequence[Job], runtime: Runtime) -> bool:
    """Whether nothing of a cohort's step is compiled by torch, whose compiler serves one cohort at a time."""
    job = jobs[0]
    return not runtime.as_before(job.run.status() if job.run.path.is_dir() else None).compiles(
        spec_of(job.config, job.task), job.config.training
    )


@dataclass
class _AtWork:
    """A cohort's turns, its stream, and the end of the work that it has queued there."""

    turns: Turns
    stream: torch.cuda.Stream | None
    end: torch.Event | None = None

    def is_ready(self) -> bool:
        return self.end is None or self.end.query()

    def take(self) -> list[str] | None:
        """One turn; the runs that failed, once it was the last."""
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            try:
                next(self.turns)
            except StopIteration as last:
                return last.value
        self.end = self.stream.record_event() if self.stream else None
        return None


def take_turns(
    starts: Iterable[Turns],
    at_once: int,
    interruption: Interruption,
    new_stream: Callable[[], torch.cuda.Stream | None] = lambda: None,
) -> list[str]:
    """Train `at_once` cohorts at a time to their ends: whoever's queued work is done has the next turn.

    After an error in one cohort, or a signal, the others at work save and stop; no other begins.
    """
    waiting, at_work, failed = deque(starts), deque[_AtWork](), list[str]()
    error: BaseException | None = None
    while at_work or (waiting and not interruption.signal):
        while waiting and len(at_work) < at_once and not interruption.signal:
            at_work.append(_AtWork(waiting.popleft(), new_stream()))
        ready = next((cohort for cohort in at_work if cohort.is_ready()), None)
        if ready is None:
            time.sleep(POLL_SECONDS)
            continue
        at_work.remove(ready)
        try:
            ended = ready.take()
        except Exception as problem:
            error = error or problem
            interruption.signal = interruption.signal or SIGTERM
            continue
        if ended is None:
            at_work.append(ready)
        else:
            failed += ended
    if error is not None:
        raise error
    return failed
