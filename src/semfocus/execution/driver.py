"""`train([RunConfig, ...])`: form cohorts, hand them to an executor, never lose a result.

Finished runs are skipped, interrupted ones go on, runs that another process holds are left to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from semfocus.config import RunConfig
from semfocus.execution.cohorts import form_cohorts, open_runs, plan_jobs
from semfocus.execution.executor import AUTO, RunOutcome, make_executor
from semfocus.store import RunStore
from semfocus.training.runtime import Runtime
from semfocus.training.session import Job
from semfocus.training.trainer import Callback


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

    Interrupted: all save, then it raises Interrupted. Several processes import the main module: in a script, call
    this below `if __name__ == "__main__":`. `watcher` is the old name of `on_progress`.
    """
    if watcher is not None:
        warnings.warn("train(watcher=...) is now train(on_progress=...)", DeprecationWarning, stacklevel=2)
        on_progress = on_progress or watcher
    store = RunStore(out)
    return train_jobs(plan_jobs(configs, store), store, runtime, on_progress, executor)


def train_jobs(
    jobs: Sequence[Job],
    store: RunStore,
    runtime: Runtime = Runtime(),
    on_progress: Callback | None = None,
    executor: str = AUTO,
) -> list[RunOutcome]:
    """The same for jobs that are planned already."""
    cohorts = form_cohorts(jobs, runtime)
    chosen = make_executor(executor, runtime, len(cohorts))  # what cannot start is named before anything is written
    open_runs(jobs, store)
    ran = chosen.run(cohorts, store, on_progress or (lambda progress: None)) if cohorts else []
    states = {outcome.run.id: outcome.state for outcome in ran}
    return [RunOutcome(job.config, job.run, states.get(job.id) or job.state) for job in jobs]
