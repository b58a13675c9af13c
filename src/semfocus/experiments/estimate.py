"""What an experiment takes, before it is begun: runs, steps, time and disk space. Nothing is written, nothing kept.

    cost = estimate(plan(experiment), Runtime())
    print(cost.steps, cost.seconds, cost.bytes)

Seconds of a step come from earlier runs of the same shape if the store has some (their timing.jsonl), else from a few
steps made now; when the time for that is used up, from the arithmetic that a step takes, beside one that was measured.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from semfocus.analysis.comparability import differing, setting_text, settings_of, task_label
from semfocus.config import RunConfig
from semfocus.errors import SemfocusError
from semfocus.execution.cohorts import cohort_key, cohort_limit
from semfocus.experiments.run import Plan, keeping
from semfocus.report.terminal.progress import Work
from semfocus.store import RunDirectory
from semfocus.store.writer import NEWEST_KEPT
from semfocus.tasks import Task
from semfocus.training.cohort import MOMENTS, Cohort, spec_of
from semfocus.training.evaluation import Evaluator
from semfocus.training.loading import config_of
from semfocus.training.objective import objective_of
from semfocus.training.runtime import Runtime, flop_per_row, numerics
from semfocus.training.session import Job
from semfocus.training.step import TrainStep

SECONDS_TO_MEASURE = 20.0
STEPS_TO_MEASURE = 3
SLOW = 1.0  # seconds: a step that takes so long is measured once
OWN_TO_A_MEMBER = ("training.lr", "training.decay")  # may differ among runs of one shape
BYTES_AN_EVALUATION = 330  # a line of metrics and one of timing
BYTES_A_RUN = 6000  # configuration, status, lock and directories
BYTES_A_MANIFEST = 700

Source = Literal["earlier", "measured", "scaled"]
SOURCES: dict[Source, str] = {
    "earlier": "from the clocks of earlier runs of the same shape",
    "measured": "from steps measured now",
    "scaled": "from the arithmetic of a step, beside one that was measured",
}


@dataclass(frozen=True)
class Part:
    """Runs of one shape: those that could train in lockstep."""

    task: str
    runs: list[Job]
    waiting: list[Job]
    steps: int  # to go, of all of them together
    seconds: float
    source: Source | None  # of the seconds; None when nothing is left to train
    bytes: int  # that the waiting runs will take


@dataclass(frozen=True)
class Estimate:
    """An experiment's parts, and what they come to."""

    parts: list[Part]
    free: int  # bytes on the disk where runs live

    @property
    def steps(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def sources(self) -> dict[Source, int]:
        """How many shapes were timed in which way."""
        known = [part.source for part in self.parts]
        return {source: known.count(source) for source in SOURCES if source in known}

    @property
    def may_stop_early(self) -> bool:
        """Whether some run stops once it has learned enough, or learns no more: steps and time are then bounds."""
        kinds = [part.waiting[0].config.training for part in self.parts if part.waiting]
        return any(training.stop_accuracy is not None or training.patience is not None for training in kinds)

    def by_task(self) -> list[dict[str, Any]]:
        """The same for each task, as plain values."""
        rows = []
        for task in dict.fromkeys(part.task for part in self.parts):
            own = [part for part in self.parts if part.task == task]
            steps = [job.steps for part in own for job in part.runs]
            waiting = sum(len(part.waiting) for part in own)
            rows.append(
                {
                    "task": task,
                    "runs": len(steps),
                    "there": len(steps) - waiting,
                    "waiting": waiting,
                    "steps_per_run": [min(steps), max(steps)],
                    "steps": sum(part.steps for part in own),
                    "seconds": sum(part.seconds for part in own),
                    "bytes": sum(part.bytes for part in own),
                }
            )
        return rows


def estimate(plan: Plan, runtime: Runtime, seconds_to_measure: float = SECONDS_TO_MEASURE) -> Estimate:
    """What is left to do of an experiment, and what it takes, one cohort after the other."""
    shapes = shapes_of(plan)
    waiting = {job.id for job in plan.waiting}
    left = {key: [job for job in runs if job.id in waiting] for key, runs in shapes.items()}
    costs = _costs({key: (shapes[key], runs) for key, runs in left.items() if runs}, runtime, seconds_to_measure)
    kept = keeping(plan.experiment, runtime)
    parts = []
    for key, runs in shapes.items():
        steps = sum(job.steps_to_go for job in left[key])
        seconds, source = costs.get(key, (0.0, None))
        room = sum(_bytes(job, kept) for job in left[key])
        parts.append(Part(runs[0].config.task.name, runs, left[key], steps, steps * seconds, source, room))
    return Estimate(parts, _free(plan.store.root))


def shapes_of(plan: Plan) -> dict[str, list[Job]]:
    """The runs of an experiment by what they must share to train in lockstep."""
    return _by_shape(plan.jobs)


def _by_shape(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    shapes: dict[str, list[Job]] = {}
    for job in jobs:
        shapes.setdefault(cohort_key(job.config, job.task), []).append(job)
    return shapes


def work_of(plan: Plan) -> dict[str, Work]:
    """What each run that has not ended has to do yet, for the progress table."""
    return _work_of(plan.jobs, {job.id for job in plan.waiting})


def work_of_runs(runs: Iterable[RunDirectory]) -> dict[str, Work]:
    """The same for runs that are to go on; one that cannot be read is left out, for `resume` says what is wrong."""
    jobs: list[Job] = []
    tasks: dict[str, Task] = {}
    for run in runs:
        with suppress(SemfocusError):
            config = config_of(run)
            key = config.task.model_dump_json()
            tasks[key] = tasks.get(key) or config.task.build()
            jobs.append(Job(config, tasks[key], run))
    return _work_of(jobs, {job.id for job in jobs})


def _work_of(jobs: Sequence[Job], waiting: set[str]) -> dict[str, Work]:
    work = {}
    shapes = _by_shape(jobs)
    for name, own in zip(_line_names(shapes), shapes.values(), strict=True):
        cost = arithmetic(own[0].config, own[0].task)
        work |= {job.id: Work(name, job.steps_to_go, cost) for job in own if job.id in waiting}
    return work


def _line_names(shapes: Mapping[str, list[Job]]) -> list[str]:
    """A name for each shape: task (of several) and mechanism, and what sets it apart from others of that task."""
    shown = [runs[0].config.model_dump(mode="json") for runs in shapes.values()]
    by_task: dict[str, list[dict[str, Any]]] = {}
    for config in shown:
        by_task.setdefault(task_label(config), []).append(settings_of(config))
    apart = {task: [n for n in differing(many) if n not in OWN_TO_A_MEMBER] for task, many in by_task.items()}
    names = []
    for config in shown:
        task, settings = task_label(config), settings_of(config)
        details = [setting_text(name, settings.get(name)) for name in apart[task]]
        mechanism = config["attention"]["mechanism"]
        names.append(", ".join([f"{task} {mechanism}" if len(by_task) > 1 else mechanism, *details]))
    return names


def arithmetic(config: RunConfig, task: Task) -> float:
    """Floating-point operations of one run's step, evaluation aside: enough to compare shapes by."""
    return config.training.batch_size * flop_per_row(spec_of(config, task))


def _costs(
    shapes: dict[str, tuple[list[Job], list[Job]]], runtime: Runtime, budget: float
) -> dict[str, tuple[float, Source]]:
    """Seconds of a member's step, its share of the evaluations included, and how they are known, for each shape."""
    device = runtime.torch_device().type
    work = {key: arithmetic(waiting[0].config, waiting[0].task) for key, (_, waiting) in shapes.items()}
    names = {key: waiting[0].config.task.name for key, (_, waiting) in shapes.items()}
    known: dict[str, tuple[float, Source]] = {}
    for key, (every, _) in shapes.items():
        earlier = [cost for job in every if (cost := _earlier(job.run, device)) is not None]
        if earlier:
            known[key] = (statistics.median(earlier), "earlier")

    def scaled(key: str) -> float:
        alike = [other for other in known if names[other] == names[key]] or list(known)
        return work[key] * statistics.median(known[other][0] / work[other] for other in alike)

    end = time.monotonic() + budget
    for key in _by_turns({key: names[key] for key in sorted(shapes, key=work.__getitem__, reverse=True)}):
        waiting = shapes[key][1]
        steps = STEPS_TO_MEASURE * min(len(waiting), runtime.cohort_size or len(waiting))
        if key not in known and (not known or time.monotonic() + steps * scaled(key) < end):
            known[key] = (_measured(waiting, runtime), "measured")
    rest: dict[str, tuple[float, Source]] = {key: (scaled(key), "scaled") for key in shapes if key not in known}
    return known | rest


def _by_turns(names: dict[str, str]) -> list[str]:
    """Each task once before any task twice: time to measure may run out."""
    queues: dict[str, list[str]] = {}
    for key, name in names.items():
        queues.setdefault(name, []).append(key)
    return [key for turn in itertools.zip_longest(*queues.values()) for key in turn if key is not None]


def _earlier(run: RunDirectory, device: str) -> float | None:
    """Seconds of a step by the run's own clock, shared among the members of its cohort."""
    if not run.path.is_dir():
        return None
    try:
        status, rows = run.status() or {}, run.timing()
    except SemfocusError:
        return None  # damaged: training it will say so; the size of the study can do without
    cohort = status.get("cohort")
    if not rows or status.get("device") != device or not isinstance(cohort, list) or not cohort:
        return None
    step, seconds = rows[-1].get("step"), rows[-1].get("seconds")
    if not isinstance(step, int) or not isinstance(seconds, (int, float)) or step < 1 or not seconds > 0:
        return None
    return seconds / step / len(cohort)


def _measured(runs: Sequence[Job], runtime: Runtime) -> float:
    """Seconds of a member's step, from a few made now with as many members as would train together."""
    device = runtime.torch_device()
    config, task = runs[0].config, runs[0].task
    members = min(len(runs), runtime.cohort_size or cohort_limit(config, task, device.type))
    rows, heldout = config.rows(task)
    batch = config.training.batch_size
    few = {"train_rows": min(rows, batch + config.training.drop_one_row), "heldout_rows": min(heldout, 2)}
    small = [job.config.model_copy(update={"task": job.config.task.model_copy(update=few)}) for job in runs[:members]]
    with numerics(config.precision, max(1, runtime.num_threads() // runtime.num_jobs())):
        cohort = Cohort.begin(small, [job.task for job in runs[:members]], device)
        step = _step_seconds(TrainStep(cohort), device)
        evaluation = _timed(Evaluator(cohort).scores, device) / sum(few.values())
    per_epoch = -(-(rows - config.training.drop_one_row) // batch)
    steps = runs[0].steps
    evaluations = runtime.evaluations(per_epoch, steps, cohort.objective.evaluations).count()
    evaluated = min(rows, config.training.evaluated_rows or rows) + heldout
    return (step + evaluation * evaluated * evaluations / steps) / members


def _step_seconds(stepper: TrainStep, device: torch.device) -> float:
    """The quickest of a few steps; of slow ones the first alone, though it also allocates and captures."""
    seconds: list[float] = []
    for _ in range(STEPS_TO_MEASURE):
        stepper.begin_epoch(0, 0)
        seconds.append(_timed(lambda: stepper.run(1), device))
        if sum(seconds) > SLOW:
            break
    return min(seconds)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _bytes(job: Job, runtime: Runtime) -> int:
    """What a run directory takes at most: the newest checkpoints and those that stay, and a line an evaluation."""
    training = job.config.training
    row = 4 * spec_of(job.config, job.task).layout.size
    checkpoint = row * (1 + len(MOMENTS[training.optimizer])) + BYTES_A_MANIFEST
    per_epoch = job.steps // training.epochs
    checkpoints = NEWEST_KEPT + len(runtime.kept_steps(per_epoch, job.steps))
    evaluations = runtime.evaluations(per_epoch, job.steps, objective_of(job.task).evaluations).count()
    return int(checkpoints * checkpoint + evaluations * BYTES_AN_EVALUATION) + BYTES_A_RUN


def _free(root: Path) -> int:
    place = root
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
