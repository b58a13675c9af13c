"""An experiment from plan to page: which of its runs are there, train the rest, compare them, draw, write the page.

job = plan(get_study("figure_1").experiment(scale="smoke"), out="runs")
print(len(job.jobs), len(job.waiting))
for comparison in run(job).comparisons:
    print(comparison.task, comparison.sentences())
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from semfocus.analysis.comparison import Comparison, compare_records
from semfocus.analysis.groups import Group
from semfocus.analysis.records import Fault, Record
from semfocus.analysis.results import Results
from semfocus.analysis.verdicts import Verdict
from semfocus.errors import CorruptData
from semfocus.execution.cohorts import plan_jobs
from semfocus.execution.executor import AUTO, RunOutcome, train_jobs
from semfocus.experiments.experiment import Experiment, config_key
from semfocus.store import RunDirectory, RunStore
from semfocus.store.measurements import measurement_names
from semfocus.training.runtime import Runtime
from semfocus.training.session import CORRUPT, ENDED, Job


@dataclass(frozen=True)
class Plan:
    """An experiment and its runs, as they stand in a store."""

    experiment: Experiment
    jobs: list[Job]  # each run once
    store: RunStore
    ids: dict[str, str]  # run ids by `config_key`: two configurations may come to the same run

    @cached_property
    def waiting(self) -> list[Job]:
        """The runs that have not ended, as things stood when first asked."""
        return [job for job in self.jobs if job.state not in (*ENDED, CORRUPT)]


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment."""

    experiment: Experiment
    runs: list[RunOutcome]
    comparisons: list[Comparison]  # one for each task and setting
    figures: list[Path]
    page: Path | None
    faults: list[Fault]  # runs of the experiment that are damaged, and left out
    records: list[Record] = field(default_factory=list)  # the others, as analysis reads them
    verdicts: list[Verdict] = field(default_factory=list)  # by these runs alone, on the claims that they bear on

    def measured(self) -> dict[str, int]:
        """For each measurement that the experiment needs, how many runs have it."""
        there = [measurement_names(outcome.run) for outcome in self.runs]
        return {name: sum(name in names for names in there) for name in self.experiment.measures}


def plan(experiment: Experiment, out: Path | str | None = None) -> Plan:
    """Check every run against its task. Nothing is written."""
    store = RunStore(out)
    jobs = plan_jobs(experiment.configs, store)
    first = {job.id: job for job in reversed(jobs)}
    return Plan(experiment, list(first.values())[::-1], store, {config_key(job.config): job.id for job in jobs})


def run(plan: Plan, runtime: Runtime = Runtime(), on_progress: Callable | None = None, executor: str = AUTO) -> Outcome:
    """Train what is not there yet, compare all of it, and leave the figures and a page beside the runs.

    report.html is about everything in the store. A study's title and question are its headline where the store holds
    that study alone; beside other runs the study has a page of its own, named after it.
    """
    experiment = plan.experiment
    outcomes = train_jobs(plan.jobs, plan.store, keeping(experiment, runtime), on_progress, executor)
    _write_samples([job.run for job in plan.jobs], runtime)
    everything = Results.load(plan.store)
    ids = {job.id for job in plan.jobs}
    results, faults = everything.only(ids), [fault for fault in everything.faults if fault.name in ids]
    if not results.records:
        raise CorruptData(f"every run of {experiment.name} is damaged: {'; '.join(fault.text for fault in faults)}")
    comparisons = [_comparison(group, plan) for group in results.groups]
    if not any(record.metrics for record in results.records):
        return Outcome(experiment, outcomes, comparisons, [], None, faults, results.records)
    page = _write_page(plan, everything, results)
    verdicts = (
        [verdict for verdict in results.verdicts if verdict.claim in experiment.claims] if experiment.claims else []
    )
    return Outcome(experiment, outcomes, comparisons, _draw(plan, results), page, faults, results.records, verdicts)


def keeping(experiment: Experiment, runtime: Runtime) -> Runtime:
    """The runtime with the checkpoints that the experiment wants kept, beside those that it keeps itself."""
    return replace(
        runtime,
        keep_epochs=tuple(sorted({*runtime.keep_epochs, *experiment.keep_epochs})),
        keep_shares=tuple(sorted({*runtime.keep_shares, *experiment.keep_shares})),
    )


def _write_samples(runs: Sequence[RunDirectory], runtime: Runtime) -> None:
    """Let each trained language model write a few lines, which are kept with its run: the page shows them."""
    from semfocus.diagnostics.samples import can_write, measure_sample

    for run in runs:
        try:
            if can_write(run):
                measure_sample(run, runtime=runtime)
        except Exception as error:  # the runs are trained: what cannot be written must not cost their comparison
            text = f"run {run.id} has no sample of its text: {type(error).__name__}: {error}"
            warnings.warn(text, stacklevel=2)


def _write_page(plan: Plan, everything: Results, own: Results) -> Path:
    """The page that answers the experiment's question."""
    from semfocus.report.page.page import write_page
    from semfocus.report.page.summary import About

    experiment, root = plan.experiment, plan.store.root
    if not experiment.heads_page:
        return write_page(everything, root / "report.html")
    about = About(experiment.name, experiment.title, experiment.question)
    if len(own.records) == len(everything.records):
        return write_page(everything, root / "report.html", about=about)
    write_page(everything, root / "report.html")
    return write_page(own, root / f"{experiment.name}.html", about=about)


def conclude(store: RunStore, ids: Collection[str], runtime: Runtime = Runtime()) -> tuple[list[Comparison], Path]:
    """The comparisons that these runs belong to, with all other runs of each, and the page of their store."""
    from semfocus.report.page.page import write_page

    _write_samples([store.open(id) for id in ids], runtime)
    results = Results.load(store)
    touched = [group for group in results.groups if any(record.id in ids for record in group.records)]
    return [group.comparison for group in touched], write_page(results, store.root / "report.html")


def _comparison(group: Group, plan: Plan) -> Comparison:
    """The group's runs in the experiment's order of mechanisms, with what the task itself knows of baselines."""
    order = plan.experiment.mechanisms
    task = next(job.task for job in plan.jobs if job.id == group.records[0].id)
    records = sorted(group.records, key=lambda record: order.index(record.mechanism))
    return compare_records(group.name, records, task.baselines)


def _draw_races(plan: Plan, results: Results) -> list[Path]:
    """Of language models, held-out loss by tokens."""
    from semfocus.report.figures.race import draw_race

    is_study = plan.experiment.heads_page
    groups = [group for group in results.groups if group.comparison.race is not None and not is_study]
    stem = plan.store.root / f"tokens-{plan.experiment.name}"
    places = [stem if len(groups) == 1 else stem.with_name(f"{stem.name}-{i + 1}") for i in range(len(groups))]
    drawn = [draw_race(group, place, formats=("svg", "png")) for group, place in zip(groups, places, strict=True)]
    return [path for paths in drawn for path in paths]


def _draw(plan: Plan, results: Results) -> list[Path]:
    """The panels that the experiment declares, as far as the runs have what they show."""
    from semfocus.report.figures.declared import draw_panels

    experiment = plan.experiment
    stem = plan.store.root / (experiment.figure or experiment.name)
    try:
        return _draw_races(plan, results) + draw_panels(
            experiment.panels,
            results,
            stem,
            shown=lambda place: {plan.ids[config_key(config)] for config in experiment.shown(place)},
            formats=("svg", "png"),
        )
    except Exception as error:  # the runs are trained: what cannot be drawn must not cost their comparison
        warnings.warn(f"figures of {experiment.name} are missing: {type(error).__name__}: {error}", stacklevel=2)
        return []
