"""The main job: mechanisms side by side on one task, and what learns faster.

comparison = semfocus.compare("even_pairs", attention=["full", "topk:5"], seeds=3, quick=True)
print(comparison.arm("topk:5").times.median)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from semfocus import recipes
from semfocus.analysis.comparison import Comparison
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.config_files import apply_overrides, parse_config
from semfocus.errors import UsageError
from semfocus.execution.executor import AUTO
from semfocus.experiments.experiment import Experiment, curves_of, distinct
from semfocus.experiments.run import plan, run
from semfocus.tasks import Task, task_names
from semfocus.tasks.registry import task_class
from semfocus.training.objective import get_objective
from semfocus.training.runtime import Runtime, parse_epochs


def comparison_of(
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
) -> Experiment:
    """Every mechanism with every seed, by the paper's hyperparameters unless told otherwise."""
    named = attention or (recipes.QUICK if quick else recipes.COMPACT)
    mechanisms = [str(parse_mechanism(text)) for text in named]
    if quick and (options or recipe != "clean"):
        raise UsageError("--quick chooses the task's options and the clean recipe itself; give one or the other")
    changes = [*overrides, *([f"training.epochs={epochs}"] if epochs is not None else [])]
    changes += [f"training.stop_accuracy={stop_accuracy}"] if stop_accuracy is not None else []
    configs = []
    for mechanism in mechanisms:
        for seed in recipes.seeds(seeds):
            if quick:
                config = recipes.quick(task, mechanism, seed)
            else:
                config = recipes.configure(task, mechanism, seed, recipe, options)
            configs.append(parse_config(apply_overrides(config.model_dump(mode="json"), changes)))
    name = Path(task).stem if "." in task else task
    question = f"Which attention learns {name} in the fewest epochs, and which is right on rows it has not seen?"
    objective = get_objective(task_class(task).objective if task in task_names() else Task.objective)
    panels = (curves_of(objective),)
    return Experiment(name, name, question, tuple(distinct(configs)), panels, figure=f"curves-{name}")


def compare(
    task: str,
    *,
    device: str = "auto",
    threads: int | None = None,
    jobs: int = 1,
    keep: str = "",
    executor: str = AUTO,
    out: Path | str | None = None,
    until: float | None = None,
    **choices: Any,
) -> Comparison:
    """Compare mechanisms on a task or a data file; `choices` as for `comparison_of`. The same as `semfocus compare`.

    With `jobs` above 1 in a script, call this below `if __name__ == "__main__":`. `until` is the old name of
    `stop_accuracy`.
    """
    if until is not None:
        warnings.warn("compare(until=...) is now compare(stop_accuracy=...)", DeprecationWarning, stacklevel=2)
        choices.setdefault("stop_accuracy", until)
    runtime = Runtime(device=device, threads=threads, jobs=jobs, keep_epochs=parse_epochs(keep))
    return run(plan(comparison_of(task, **choices), out), runtime, executor=executor).comparisons[0]
