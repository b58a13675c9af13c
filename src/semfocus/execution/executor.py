"""`train([RunConfig, ...])`, and who does the work: an `Executor` takes cohorts one by one, in processes, or elsewhere.

Finished runs are skipped, interrupted ones go on, runs that another process holds are left to it.

@register_executor
class Mine(Executor):
    name = "mine"

    def run(self, cohorts, store, on_progress):
        for cohort in cohorts: ...
        return outcomes_of(cohorts)

semfocus compare even_pairs --executor mine --plugin my_module
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from semfocus.config import RunConfig
from semfocus.errors import CorruptData, SemfocusError, UsageError
from semfocus.execution.cohorts import damaged_jobs, form_cohorts, open_runs, plan_jobs
from semfocus.registry import Registry
from semfocus.store import DamagedRuns, RunDirectory, RunStore
from semfocus.training.evaluation import check_metrics
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime
from semfocus.training.session import CORRUPT, ENDED, Job

AUTO = "auto"
_BUILT_IN = {
    **{name: f"semfocus.execution.{name}" for name in ("serial", "processes", "streams")},
    "ray": "semfocus.execution.ray_executor",
    "slurm": "semfocus.execution.slurm_executor",
    "slurm-local": "semfocus.execution.slurm_executor",
}


@dataclass(frozen=True)
class Machines:
    """Where an executor would train."""

    text: str  # for people
    slots: int  # cohorts at a time
    device: str


@dataclass(frozen=True)
class RunOutcome:
    """How one run stands after training: done, diverged, failed (does not fit into memory even alone, or its process
    was killed twice), held, or corrupt (its directory is damaged); `reason` explains the last three."""

    config: RunConfig
    run: RunDirectory
    state: str
    reason: str = ""


class Executor(ABC):
    """Trains cohorts. Progress lives in the run directories, so that an executor may die at any time."""

    name: ClassVar[str]

    def __init__(self, runtime: Runtime) -> None:
        """Raise a UsageError here when this machine cannot do it.

        One that has options takes them as a second argument, a text: what stands after the colon in `mine:fast`.
        """
        self.runtime = runtime

    def form_cohorts(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Which of the jobs train with whom."""
        return form_cohorts(jobs, self.runtime)

    def machines(self) -> Machines | None:
        """Other machines on which it trains; None when it is this one."""
        return None

    def close(self) -> None:  # noqa: B027
        """Called in the end, also when `run` was not called or has failed."""

    @abstractmethod
    def run(self, cohorts: Sequence[Sequence[Job]], store: RunStore, on_progress: Callback) -> list[RunOutcome]:
        """Train every cohort to its end and say how each of its runs stands.

        The run directories exist. Interrupted: all save, then `Interrupted` is raised.
        """


registry: Registry[type[Executor]] = Registry("executor", _BUILT_IN)


def register_executor(cls: type[Executor]) -> type[Executor]:
    """Make an executor known under `cls.name`; usable as a class decorator."""
    if not (isinstance(cls, type) and issubclass(cls, Executor)):
        raise UsageError(f"{cls!r} cannot be registered as an executor; derive it from Executor")
    return registry.register(cls)


def executor_names() -> list[str]:
    """The names that `--executor` takes."""
    return [AUTO, *registry.names()]


def make_executor(name: str, runtime: Runtime, cohorts: int = 0) -> Executor:
    """The executor of this name, which may be followed by a colon and options.

    `auto` takes streams or processes where several cohorts may train at a time.
    """
    if name == AUTO:
        several = "streams" if runtime.torch_device().type == "cuda" else "processes"
        name = several if min(runtime.num_jobs(), cohorts) > 1 else "serial"
    name, colon, options = name.partition(":")
    cls = registry.get(name)
    takes_options = len(inspect.signature(cls.__init__).parameters) > 2
    if colon and not takes_options:
        raise UsageError(f"executor {name!r} has no options, and was given {options!r}")
    try:
        return cls(runtime, options) if takes_options else cls(runtime)  # type: ignore[call-arg]
    except SemfocusError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"executor {name!r} cannot start: {reason}; choose another, such as serial") from error


def outcomes_of(cohorts: Iterable[Sequence[Job]], failed: Sequence[str] = ()) -> list[RunOutcome]:
    """How each run stands by its own status; `failed` are those that could not be trained. The rest are held."""
    return [_outcome(job, job.id in failed) for cohort in cohorts for job in cohort]


def _outcome(job: Job, has_failed: bool) -> RunOutcome:
    try:
        status = job.run.status() or {}
    except CorruptData as error:
        return RunOutcome(job.config, job.run, CORRUPT, str(error))
    state, reason = status.get("state"), str(status.get("reason", ""))
    if state in ENDED:
        return RunOutcome(job.config, job.run, state)
    if state == "failed" and status.get("damaged") is True:
        return RunOutcome(job.config, job.run, CORRUPT, reason)
    return RunOutcome(job.config, job.run, "failed" if has_failed else "held", reason if has_failed else "")


def train(
    configs: Sequence[RunConfig],
    out: Path | str | None = None,
    runtime: Runtime = Runtime(),
    on_progress: Callback | None = None,
    *,
    executor: str = AUTO,
    watcher: Callback | None = None,
) -> list[RunOutcome]:
    """Train these runs and return how each stands, in the same order.

    A damaged run keeps no other from its end; then DamagedRuns, a CorruptData, says which they are.
    Interrupted: all save, then it raises Interrupted. Several processes import the main module: in a script, call
    this below `if __name__ == "__main__":`. `watcher` is the old name of `on_progress`.
    """
    if watcher is not None:
        warnings.warn("train(watcher=...) is now train(on_progress=...)", DeprecationWarning, stacklevel=2)
        on_progress = on_progress or watcher
    store = RunStore(out)
    outcomes = train_jobs(plan_jobs(configs, store), store, runtime, on_progress, executor)
    damaged = {outcome.run.id: outcome.reason for outcome in outcomes if outcome.state == CORRUPT}
    if damaged:
        raise DamagedRuns(damaged)
    return outcomes


def train_jobs(
    jobs: Sequence[Job],
    store: RunStore,
    runtime: Runtime = Runtime(),
    on_progress: Callback | None = None,
    executor: str = AUTO,
) -> list[RunOutcome]:
    """The same for jobs that are planned already."""
    damage = damaged_jobs(jobs)
    sound = [job for job in jobs if job.id not in damage]
    count = len(form_cohorts(sound, runtime)) if executor == AUTO else 0
    chosen = make_executor(executor, runtime, count)  # what cannot start is named before anything is written
    try:
        cohorts = chosen.form_cohorts(sound)
        for job in {job.task.objective: job for cohort in cohorts for job in cohort}.values():
            check_metrics(job.config, job.task)
        open_runs(sound, store)
        ran = chosen.run(cohorts, store, on_progress or (lambda progress: None)) if cohorts else []
    finally:
        chosen.close()
    if not isinstance(ran, list) or not all(isinstance(outcome, RunOutcome) for outcome in ran):
        raise UsageError(f"executor {chosen.name!r} must return outcomes_of(cohorts), not {ran!r:.60}")
    by_id = {outcome.run.id: outcome for outcome in ran}
    by_id |= {job.id: RunOutcome(job.config, job.run, CORRUPT, damage[job.id]) for job in jobs if job.id in damage}
    # The outcome's configuration is the one that was asked for: several may come to the same run.
    return [
        replace(by_id[job.id], config=job.config) if job.id in by_id else RunOutcome(job.config, job.run, job.state)
        for job in jobs
    ]
