"""Going on with interrupted runs from their own directories: no file and no command of the first time is needed.

    resume([RunStore().find("07d9")])

Configuration, device, threads and compile choice are those that a run began with. Data that have changed since are
refused: a run would go on with rows that it did not begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from semfocus.config import RunConfig
from semfocus.errors import CorruptData, UsageError
from semfocus.execution.cohorts import plan_jobs
from semfocus.execution.executor import AUTO, RunOutcome, train_jobs
from semfocus.store import DamagedRuns, RunDirectory, RunStore, is_run_id
from semfocus.tasks import Task
from semfocus.training.loading import config_of
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime
from semfocus.training.session import CORRUPT, ENDED

UNFINISHED = ("interrupted", "failed", "empty")  # as a store calls them
SHOWN = 16  # characters of a value in a message


def resume(
    runs: Sequence[RunDirectory],
    runtime: Runtime = Runtime(),
    on_progress: Callback | None = None,
    executor: str = AUTO,
) -> list[RunOutcome]:
    """Train these runs to their ends and return how each stands. All are checked before the first goes on.

    A damaged run keeps no other from its end; then DamagedRuns, a CorruptData, says which they are.
    """
    damaged: dict[str, str] = {}
    sound: dict[RunDirectory, tuple[RunConfig, str]] = {}
    for run in runs:
        try:
            sound[run] = recorded(run), _device(run, runtime)
        except CorruptData as error:
            damaged[run.id] = str(error)
    outcomes: dict[str, RunOutcome] = {}
    for root, device in dict.fromkeys((run.path.parent, device) for run, (_, device) in sound.items()):
        store = RunStore(root)
        configs = [config for run, (config, own) in sound.items() if (run.path.parent, own) == (root, device)]
        jobs = plan_jobs(configs, store)
        for outcome in train_jobs(jobs, store, replace(runtime, device=device), on_progress, executor):
            outcomes[str(outcome.run.path)] = outcome
    damaged |= {outcome.run.id: outcome.reason for outcome in outcomes.values() if outcome.state == CORRUPT}
    if damaged:
        raise DamagedRuns(damaged)
    return [outcomes[str(run.path)] for run in runs]


def unfinished(store: RunStore) -> list[RunDirectory]:
    """The runs of a store that could go on, and that nobody is working on."""
    return [store.open(entry.name) for entry in store.entries() if entry.state in UNFINISHED and entry.config]


def unreadable(store: RunStore) -> dict[str, str]:
    """The damaged runs of a store, and what is wrong with each: nobody can say whether they could go on."""
    return {entry.name: entry.why for entry in store.entries() if entry.state == CORRUPT and is_run_id(entry.name)}


def recorded(run: RunDirectory) -> RunConfig:
    """The configuration that a run began with, after a look at whether its data are still the same."""
    config = config_of(run)
    task = config.task.build(run.path.parent)
    changes = _changes(run.config().get("data"), task)
    if changes:
        raise UsageError(
            f"the data of run {run.id} have changed since it began: {config.task.name} ({'; '.join(changes)}). "
            f"Restore the data to go on with it, or start new runs from the new data: "
            f"semfocus compare {config.task.name}"
        )
    if config.run_id(task) != run.id:
        raise CorruptData(f"{run.path / 'config.json'} is not what run {run.id} was named after; it was edited")
    return config


def missing_cohort_members(runs: Sequence[RunDirectory]) -> list[str]:
    """The ids of runs that trained together with some of these, have not ended, and are not among them."""
    given = {run.id for run in runs}
    missing: dict[str, None] = {}
    for run in runs:
        for other in _cohort_of(run):
            if other not in given and _could_go_on(run.path.parent / other):
                missing[other] = None
    return list(missing)


def _cohort_of(run: RunDirectory) -> list[str]:
    """The ids of the runs that a run trained with; none where its status does not name any."""
    try:
        ids = (run.status() or {}).get("cohort")
    except CorruptData:
        return []
    return [one for one in ids if isinstance(one, str) and is_run_id(one)] if isinstance(ids, list) else []


def _could_go_on(path: Path) -> bool:
    try:
        return path.is_dir() and (RunDirectory(path).status() or {}).get("state") not in ENDED
    except (CorruptData, UsageError):
        return False


def stale_runs(configs: Sequence[RunConfig], store: RunStore) -> list[str]:
    """The ids of unfinished runs on files of the same name as these, begun when the files held something else."""
    files = {config.task.name: config.task for config in configs if Path(config.task.name).is_file()}
    if not files:
        return []
    now: dict[str, Any] = {}  # by name, the hash of a file that some unfinished run began with
    stale = []
    for entry in store.entries():
        task, data = ((entry.config or {}).get(part) for part in ("task", "data"))
        name = task.get("name") if isinstance(task, Mapping) else None
        if entry.state not in UNFINISHED or name not in files or not isinstance(data, Mapping):
            continue
        if name not in now:
            now[name] = files[name].build().fingerprint().get("sha256")
        stale += [entry.name] if data.get("sha256") != now[name] else []
    return stale


def _changes(before: Any, task: Task) -> list[str]:
    if not isinstance(before, Mapping):
        return ["the run does not say what they were"]
    now = task.fingerprint()
    return [
        f"{name} was {_shown(before.get(name))}, is {_shown(now.get(name))}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _device(run: RunDirectory, runtime: Runtime) -> str:
    """As asked, or as the run began."""
    before = (run.status() or {}).get("device")
    if runtime.device != "auto" or not isinstance(before, str):
        return runtime.device
    try:
        return replace(runtime, device=before).torch_device().type
    except UsageError as error:
        raise UsageError(
            f"run {run.id} began on {before[:SHOWN]!r}: {error}. Give --device to go on elsewhere: then results are "
            "equal to rounding, not to the bit"
        ) from None
