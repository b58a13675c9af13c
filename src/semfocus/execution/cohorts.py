"""From configurations to cohorts: which runs there are, and which of them train in lockstep.

jobs = plan_jobs(configs, store)
open_runs(jobs, store)
for cohort in form_cohorts(jobs, runtime): ...
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from semfocus.config import AttentionConfig, RunConfig
from semfocus.errors import CorruptData
from semfocus.store import RunStore
from semfocus.tasks import Task
from semfocus.training.cohort import spec_of
from semfocus.training.loading import document
from semfocus.training.runtime import Runtime
from semfocus.training.session import CORRUPT, ENDED, Job

COHORT_BYTES = {"cpu": 2**31, "cuda": 2**35}  # of activations that a cohort may take
# May differ between two commands for the same run: a name for people, a file that has moved, options that are written
# out or left out (what they come to is part of the data's fingerprint, which may not differ), what is told of the data.
FREE_FIELDS = ("label", "task.name", "task.options", "facts")


def plan_jobs(configs: Sequence[RunConfig], store: RunStore) -> list[Job]:
    """A job for each configuration, in the same order; each task is built once. Nothing is written."""
    tasks: dict[str, Task] = {}
    jobs = []
    for config in configs:
        key = json.dumps([config.task.name, config.task.options], sort_keys=True, default=str)
        if key not in tasks:
            tasks[key] = config.task.build(store.root)
        jobs.append(Job.of(config, tasks[key], store))
    return jobs


def open_runs(jobs: Sequence[Job], store: RunStore) -> None:
    """Make the run directories that are missing; refuse those that hold another configuration."""
    store.create_or_open_all({job.id: document(job.config, job.task) for job in jobs}, free=FREE_FIELDS)


def damaged_jobs(jobs: Sequence[Job]) -> dict[str, str]:
    """By id, what is wrong with the directories of these runs; nothing of sound ones and of those that are not there.

    Checkpoints and logs of one that has not ended are looked at where it goes on.
    """
    reasons: dict[str, str] = {}
    for job in jobs:
        try:
            if job.run.path.is_dir() and any(job.run.path.iterdir()):
                job.run.check_config(document(job.config, job.task), FREE_FIELDS)
                job.run.status()
                if job.state in ENDED:
                    job.run.check_logs()
        except CorruptData as error:
            reasons[job.id] = str(error)
    return reasons


def form_cohorts(
    jobs: Sequence[Job], runtime: Runtime, device: str | None = None, workers: int | None = None
) -> list[list[Job]]:
    """The jobs that have not ended, grouped by what may train together, as many together as memory allows.

    Runs that trained together before do so again: their results are then the same to the bit. What memory splits is
    split evenly, since a small cohort costs more a member. New cohorts come in the order of their first jobs: where the
    seeds of a mechanism do not fit into one and jobs are listed seed by seed, so are the cohorts, and what is cut off
    leaves whole seeds behind. `device` and `workers` are those of other machines, where others train; else those of
    this one. New cohorts are split until each of the workers has one, which on this machine are the processes on a CPU:
    a GPU of its own takes them all.
    """
    device = device or runtime.torch_device().type
    if workers is None and device == "cpu":
        workers = runtime.num_jobs()
    waiting = {job.id: job for job in jobs if job.state not in (*ENDED, CORRUPT)}
    former = _former_cohorts(list(waiting.values()))
    groups: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
    for job in waiting.values():
        mixing = runtime.mixing_key(spec_of(job.config, job.task), device)
        groups.setdefault((cohort_key(job.config, job.task, mixing), former.get(job.id, ())), []).append(job)
    kept, new = [], []
    for (_, ids), group in groups.items():
        if ids:
            group.sort(key=lambda job, ids=ids: ids.index(job.id))
        else:
            group = [job for same in _by_attention(group) for job in same]
        limit = len(group) if ids else cohort_limit(group[0].config, group[0].task, device)
        size = runtime.cohort_size or _even(len(group), limit)
        (kept if ids else new).extend(group[i : i + size] for i in range(0, len(group), size))
    places = {id: place for place, id in enumerate(waiting)}
    new.sort(key=lambda cohort: min(places[job.id] for job in cohort))
    if workers is not None and runtime.cohort_size is None:
        new = _split_for(new, workers - len(kept))
    return kept + new


def _even(count: int, limit: int) -> int:
    """The size of the largest of as few parts as the limit allows, all of nearly one size: 7 for 20, at most 9 each."""
    return -(-count // -(-count // limit))


def _by_attention(jobs: Sequence[Job]) -> Iterable[list[Job]]:
    """The jobs of each attention, in the order of its first job."""
    groups: dict[AttentionConfig, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.config.attention, []).append(job)
    return groups.values()


def _split_for(cohorts: list[list[Job]], workers: int) -> list[list[Job]]:
    """The largest cohorts halved until there is one for each of the workers, or all are single runs."""
    cohorts = list(cohorts)
    while 0 < len(cohorts) < workers:
        i = max(range(len(cohorts)), key=lambda i: len(cohorts[i]))
        largest = cohorts[i]
        if len(largest) == 1:
            break
        half = -(-len(largest) // 2)
        cohorts[i : i + 1] = [largest[:half], largest[half:]]
    return cohorts


def _former_cohorts(jobs: Sequence[Job]) -> dict[str, tuple[str, ...]]:
    """By run id, the ids of the cohort that the run trained in so far, in their order."""
    own: dict[str, tuple[str, ...]] = {}
    promised: dict[str, tuple[str, ...]] = {}  # for runs that were killed before their own status was written
    for job in jobs:
        ids = (job.run.status() or {}).get("cohort")
        if isinstance(ids, list) and job.id in ids and all(isinstance(item, str) for item in ids):
            own[job.id] = tuple(ids)
            if not job.run.checkpoint_steps():
                promised |= {other: tuple(ids) for other in ids}
    return promised | own


def cohort_key(config: RunConfig, task: Task, mixing: tuple[object, ...] | None = None) -> str:
    """What runs must share to train in lockstep: everything but seed, learning rate, decay and label.

    `mixing` stands for the attention where several may train in one cohort (`Runtime.mixing_key`).
    """
    own = {"seed": True, "label": True, "training": {"lr", "decay"}, "task": {"name"}, "attention": True}
    fields = config.model_dump(mode="json", exclude=own)
    shape = [task.seq_len, task.vocab_size, task.num_classes, *config.rows(task)]
    attention = (config.attention,) if mixing is None else mixing
    return json.dumps([fields, shape, task.fingerprint()["task"], attention], sort_keys=True, default=str)


def cohort_limit(config: RunConfig, task: Task, device: str, limits: dict[str, int] = COHORT_BYTES) -> int:
    """How many members fit: the activations of one step, counted generously, within `limits` bytes by device."""
    spec = spec_of(config, task)
    model, length = spec.model, spec.length
    rows = config.training.batch_size * length
    per_position = 12 * model.d_model + 4 * model.d_mlp + 4 * model.heads * (model.head_dim + 2 * length)
    numbers = model.blocks * per_position + (3 * spec.num_classes if spec.predicts_positions else 0)
    return max(1, limits.get(device, 2**31) // (4 * rows * numbers))
