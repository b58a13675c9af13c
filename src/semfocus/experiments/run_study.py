"""A whole study: which of its runs are there, train the rest, compare all of it, draw the curves.

job = plan("figure_1", scale="smoke", out="runs")
print(len(job.runs), len(job.waiting))
for part in carry_out(job).parts:
    print(part.comparison.task, part.comparison.sentences())
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from semfocus.attention.mechanisms import parse_mechanism
from semfocus.config import RunConfig
from semfocus.errors import UsageError, unknown
from semfocus.execution.processes import train
from semfocus.experiments.compare import Outcome, Trained
from semfocus.experiments.registry import find_study
from semfocus.experiments.study import MANY, TOO_MANY, Study
from semfocus.recipes import Recipe, Scale
from semfocus.store import RunDirectory, RunStore
from semfocus.store.measurements import measurement_names
from semfocus.tasks import Task
from semfocus.training.runtime import Runtime
from semfocus.training.session import ENDED, RunOutcome


@dataclass(frozen=True)
class Planned:
    """A run of a study, and where it lives once it has begun."""

    id: str
    config: RunConfig
    task: Task
    run: RunDirectory

    @property
    def state(self) -> str:
        """As its status says; new when there is none."""
        status = self.run.status() if self.run.path.is_dir() else None
        return status["state"] if status else "new"

    @property
    def steps(self) -> int:
        """Training steps from the start to the end of its last epoch."""
        training = self.config.training
        rows = self.config.rows(self.task)[0] - training.drop_one_row
        return training.epochs * -(-rows // training.batch_size)

    @property
    def steps_to_go(self) -> int:
        """The same from the newest checkpoint on; a run that has ended makes none."""
        if self.state in ENDED:
            return 0
        made = self.run.checkpoint_steps() if self.run.path.is_dir() else []
        return max(0, self.steps - made[0]) if made else self.steps


@dataclass(frozen=True)
class StudyJob:
    """What `semfocus run` is going to do."""

    study: Study
    runs: list[Planned]
    store: RunStore

    @cached_property
    def waiting(self) -> list[Planned]:
        """The runs that have not ended, as things stood when first asked."""
        return [planned for planned in self.runs if planned.state not in ENDED]


@dataclass(frozen=True)
class StudyOutcome(Trained):
    """What came of it: besides, a comparison with its figure for each task and setting."""

    study: Study
    parts: list[Outcome]

    def measured(self) -> dict[str, int]:
        """For each measurement that the study needs, how many runs have it."""
        there = [measurement_names(outcome.run) for outcome in self.runs]
        return {name: sum(name in names for names in there) for name in self.study.measures}


def plan(
    study: Study | str,
    *,
    tasks: Sequence[str] | None = None,
    attention: Sequence[str] | None = None,
    seeds: int | None = None,
    recipe: Recipe | None = None,
    scale: Scale | None = None,
    overrides: Sequence[str] = (),
    many: bool = False,
    out: Path | str | None = None,
) -> StudyJob:
    """The runs of a study; what is left open is as the study says. `attention` picks some of its mechanisms."""
    study = find_study(study) if isinstance(study, str) else study
    given: dict[str, Any] = {"tasks": tasks, "seeds": seeds, "recipe": recipe, "scale": scale}
    choices = {name: value for name, value in given.items() if value is not None}
    configs = study.runs(**choices, overrides=overrides, most=TOO_MANY if many else MANY)
    if attention is not None:
        configs = _only(configs, attention)
    store = RunStore(out)
    return StudyJob(study, _planned(configs, store), store)


def carry_out(job: StudyJob, runtime: Runtime = Runtime(), watcher: Callable = lambda progress: None) -> StudyOutcome:
    """Train what is not there yet, compare all of it, and draw the curves beside the runs."""
    runtime = replace(runtime, keep_epochs=tuple(sorted({*runtime.keep_epochs, *job.study.keep_epochs})))
    outcomes = train([planned.config for planned in job.runs], job.store.root, runtime, watcher)
    return StudyOutcome(outcomes, job.study, _parts(job, outcomes))


def _parts(job: StudyJob, outcomes: list[RunOutcome]) -> list[Outcome]:
    from semfocus.analysis.results import Results
    from semfocus.report.figures.curves import draw_curves

    by_id = {outcome.run.id: outcome for outcome in outcomes}
    parts = []
    for group in Results.load(job.store, list(by_id)).groups:
        stem = job.store.root / f"{job.study.name}-{_slug(group.name)}"
        measured = any(len(record.metrics) for record in group.records)
        figures = draw_curves(group.comparison, group.records, stem) if measured else []
        parts.append(Outcome([by_id[record.id] for record in group.records], group.comparison, figures))
    return parts


def _slug(name: str) -> str:
    """`even_pairs, blocks 6` as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _only(configs: list[RunConfig], attention: Sequence[str]) -> list[RunConfig]:
    there = dict.fromkeys(config.attention.mechanism for config in configs)
    wanted = [str(parse_mechanism(text)) for text in attention]
    for mechanism in wanted:
        if mechanism not in there:
            raise unknown("mechanism of this study", mechanism, there)
    if not wanted:
        raise UsageError("attention names no mechanism; write for example full,topk:5")
    return [config for config in configs if config.attention.mechanism in wanted]


def _planned(configs: list[RunConfig], store: RunStore) -> list[Planned]:
    """Each run once: two configurations may come to the same thing, by options written out or left out."""
    tasks: dict[str, Task] = {}
    found: dict[str, Planned] = {}
    for config in configs:
        key = json.dumps([config.task.name, config.task.options], sort_keys=True, default=str)
        if key not in tasks:
            tasks[key] = config.task.build()
        task = tasks[key]
        config.check(task)
        run_id = config.run_id(task)
        found.setdefault(run_id, Planned(run_id, config, task, RunDirectory(store.root / run_id)))
    return list(found.values())
