"""The main job: train mechanisms side by side on one task, and say what learns faster.

found = semfocus.compare("even_pairs", attention=["full", "topk:5"], seeds=3, quick=True)
print(found.arm("topk:5").times.median)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus import recipes
from semfocus.analysis.comparison import Comparison, compare_records
from semfocus.analysis.results import Results
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.config import RunConfig
from semfocus.config_files import apply_overrides, parse_config
from semfocus.errors import UsageError
from semfocus.execution.processes import train
from semfocus.store import RunDirectory, RunStore
from semfocus.training.runtime import Runtime, parse_epochs
from semfocus.training.session import RunOutcome


@dataclass(frozen=True)
class Job:
    """What `compare` is going to do."""

    configs: list[RunConfig]
    store: RunStore

    @property
    def mechanisms(self) -> list[str]:
        return list(dict.fromkeys(config.attention.mechanism for config in self.configs))


@dataclass(frozen=True)
class Trained:
    """How each run stands."""

    runs: list[RunOutcome]

    @property
    def diverged(self) -> int:
        return sum(outcome.state == "diverged" for outcome in self.runs)

    @property
    def failed(self) -> list[RunDirectory]:
        """Runs that could not be trained, for want of memory even alone."""
        return [outcome.run for outcome in self.runs if outcome.state == "failed"]

    @property
    def held(self) -> list[RunDirectory]:
        """Runs that another process is working on."""
        return [outcome.run for outcome in self.runs if outcome.state == "held"]


@dataclass(frozen=True)
class Outcome(Trained):
    """What came of it: the table, the figure's files and the page too."""

    comparison: Comparison
    figures: list[Path]
    page: Path | None = None


def plan(
    task: str,
    *,
    attention: Iterable[str] | None = None,
    seeds: int = 3,
    quick: bool = False,
    recipe: recipes.Recipe = "clean",
    epochs: int | None = None,
    stop_accuracy: float | None = None,
    options: dict[str, Any] | None = None,
    overrides: Sequence[str] = (),
    out: Path | str | None = None,
) -> Job:
    """The runs to make: every mechanism with every seed, by the paper's hyperparameters unless told otherwise."""
    named = attention or (recipes.QUICK if quick else recipes.COMPACT)
    mechanisms = [str(parse_mechanism(text)) for text in named]
    if quick and (options or recipe != "clean"):
        raise UsageError("--quick chooses the task's options and the clean recipe itself; give one or the other")
    configs = []
    for mechanism in mechanisms:
        for seed in recipes.seeds(seeds):
            if quick:
                config = recipes.quick(task, mechanism, seed)
            else:
                config = recipes.configure(task, mechanism, seed, recipe, options)
            changes = [*overrides, *([f"training.epochs={epochs}"] if epochs is not None else [])]
            changes += [f"training.stop_accuracy={stop_accuracy}"] if stop_accuracy is not None else []
            configs.append(parse_config(apply_overrides(config.model_dump(mode="json"), changes)))
    return Job(_distinct(configs), RunStore(out))


def _distinct(configs: list[RunConfig]) -> list[RunConfig]:
    """Each once, in order: `--attention topk:5,topk:5` is one mechanism."""
    found: list[RunConfig] = []
    for config in configs:
        if config not in found:
            found.append(config)
    return found


def carry_out(job: Job, runtime: Runtime = Runtime(), watcher: Callable = lambda progress: None) -> Outcome:
    """Train what is not there yet, compare all of it, and leave the curves and a page beside the runs."""
    outcomes = train(job.configs, job.store.root, runtime, watcher)
    records = Results.load(job.store, [outcome.run.id for outcome in outcomes]).records
    task = job.configs[0].task
    name = Path(task.name).stem if "." in task.name else task.name
    comparison = compare_records(name, records, task.build().baselines)
    if not any(record.metrics for record in records):
        return Outcome(outcomes, comparison, [])
    from semfocus.report.figures.curves import draw_curves
    from semfocus.report.page.page import write_page

    root = job.store.root
    figures = draw_curves(comparison, records, root / f"curves-{comparison.task}")
    return Outcome(outcomes, comparison, figures, write_page(root, root / "report.html"))


def compare(
    task: str, *, device: str = "auto", threads: int | None = None, jobs: int = 1, keep: str = "", **choices: Any
) -> Comparison:
    """Compare mechanisms on a task or a data file; `choices` as for `plan`. The same as `semfocus compare`.

    With `jobs` above 1 in a script, call this below `if __name__ == "__main__":`.
    """
    runtime = Runtime(device=device, threads=threads, jobs=jobs, keep_epochs=parse_epochs(keep))
    return carry_out(plan(task, **choices), runtime).comparison
