"""An experiment from plan to page: which of its runs are there, train the rest, compare them, draw, write the page.

job = plan(get_study("figure_1").experiment(scale="smoke"), out="runs")
print(len(job.jobs), len(job.waiting))
for comparison in run(job).comparisons:
    print(comparison.task, comparison.sentences())
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from semfocus.analysis.comparison import Comparison, compare_records
from semfocus.analysis.groups import Group
from semfocus.analysis.results import Results
from semfocus.execution.cohorts import plan_jobs
from semfocus.execution.driver import train_jobs
from semfocus.execution.executor import AUTO, RunOutcome
from semfocus.experiments.experiment import Experiment
from semfocus.store import RunStore
from semfocus.store.measurements import measurement_names
from semfocus.training.runtime import Runtime
from semfocus.training.session import ENDED, Job


@dataclass(frozen=True)
class Plan:
    """An experiment and its runs, as they stand in a store."""

    experiment: Experiment
    jobs: list[Job]
    store: RunStore

    @cached_property
    def waiting(self) -> list[Job]:
        """The runs that have not ended, as things stood when first asked."""
        return [job for job in self.jobs if job.state not in ENDED]


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment."""

    experiment: Experiment
    runs: list[RunOutcome]
    comparisons: list[Comparison]  # one for each task and setting
    figures: list[Path]
    page: Path | None

    def measured(self) -> dict[str, int]:
        """For each measurement that the experiment needs, how many runs have it."""
        there = [measurement_names(outcome.run) for outcome in self.runs]
        return {name: sum(name in names for names in there) for name in self.experiment.measures}


def plan(experiment: Experiment, out: Path | str | None = None) -> Plan:
    """Check every run against its task. Each run once: two configurations may come to the same thing."""
    store = RunStore(out)
    jobs = {job.id: job for job in reversed(plan_jobs(experiment.configs, store))}
    return Plan(experiment, list(jobs.values())[::-1], store)


def run(plan: Plan, runtime: Runtime = Runtime(), on_progress: Callable | None = None, executor: str = AUTO) -> Outcome:
    """Train what is not there yet, compare all of it, and leave the figures and a page beside the runs."""
    experiment, root = plan.experiment, plan.store.root
    runtime = replace(runtime, keep_epochs=tuple(sorted({*runtime.keep_epochs, *experiment.keep_epochs})))
    outcomes = train_jobs(plan.jobs, plan.store, runtime, on_progress, executor)
    everything = Results.load(plan.store)
    results = everything.only({job.id for job in plan.jobs})
    comparisons = [_comparison(group, plan) for group in results.groups]
    if not any(record.metrics for record in results.records):
        return Outcome(experiment, outcomes, comparisons, [], None)
    from semfocus.report.page.page import write_page

    figures = _figures(experiment, results.groups, comparisons, root)
    return Outcome(experiment, outcomes, comparisons, figures, write_page(everything, root / "report.html"))


def _comparison(group: Group, plan: Plan) -> Comparison:
    """The group's runs in the experiment's order of mechanisms, with what the task itself knows of baselines."""
    order = plan.experiment.mechanisms
    task = next(job.task for job in plan.jobs if job.id == group.records[0].id)
    records = sorted(group.records, key=lambda record: order.index(record.mechanism))
    return compare_records(group.name, records, task.baselines)


def _figures(
    experiment: Experiment, groups: Sequence[Group], comparisons: Sequence[Comparison], root: Path
) -> list[Path]:
    from semfocus.report.figures.curves import draw_curves

    stem = experiment.figure or experiment.name
    drawn: list[Path] = []
    for group, comparison in zip(groups, comparisons, strict=True):
        name = stem if len(groups) == 1 else f"{stem}-{_slug(group.name)}"
        drawn += draw_curves(comparison, group.records, root / name)
    return drawn


def _slug(name: str) -> str:
    """`even_pairs, blocks 6` as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
