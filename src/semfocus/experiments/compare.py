"""The main job: mechanisms side by side on one task, and what learns faster.

result = semfocus.compare("even_pairs", attention="full,topk:5", seeds=3, quick=True)
result.rows(), result.plot(), result.arm("topk:5").times.median
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from semfocus import recipes
from semfocus.analysis.recommend import recommend
from semfocus.attention.plans import parse_plan
from semfocus.config import RunConfig, TaskConfig
from semfocus.config_files import apply_overrides, parse_config
from semfocus.errors import UsageError, check_int
from semfocus.execution.executor import AUTO
from semfocus.experiments.experiment import Experiment, curves_of, distinct
from semfocus.experiments.result import ComparisonResult
from semfocus.experiments.run import Plan, plan, run
from semfocus.experiments.tuning import choose_rates, plan_tuning
from semfocus.report.terminal.bar import ProgressBar
from semfocus.store import RunStore
from semfocus.tasks import Task, given
from semfocus.tasks.table import TableTask
from semfocus.training.objective import get_objective
from semfocus.training.runtime import Runtime, parse_epochs, parse_shares

LADDER = "auto"  # as attention: full, and a short ladder of k


def comparison_of(
    task: Any,
    *,
    attention: str | Iterable[str] | None = None,
    seeds: int = 3,
    quick: bool = False,
    recipe: recipes.Recipe = "clean",
    epochs: int | None = None,
    stop_accuracy: float | None = None,
    early_stop: int | None = None,
    options: Mapping[str, Any] | None = None,
    size: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | str | None = None,
    name: str = "data",
) -> Experiment:
    """Every mechanism with every seed, by the paper's hyperparameters unless told otherwise.

    Data in memory are called `name` and stored beside the runs in `out`; nothing else is written.
    """
    root = RunStore(out).root
    place, chosen = given.keep(task, root, options, name)
    make = partial(recipes.quick if quick else recipes.configure, size=size)
    built = TaskConfig(name=place, options=make(place, "full", 0, recipe, chosen).task.options).build(root)
    if isinstance(built, TableTask) and built.is_unbalanced and "metrics" not in chosen:
        chosen = {**chosen, "metrics": "balanced"}
        built = dataclasses.replace(built, settings=dataclasses.replace(built.settings, metrics="balanced"))
    title = Path(place).stem if "." in place else place
    if early_stop is not None and built.size("test") == 0:
        raise UsageError(
            f"early_stop = {early_stop} judges the test split, and {title} has none: choose a test_share above 0"
        )
    changes = [*overrides, *_changes(epochs, stop_accuracy, early_stop)]
    configs = []
    is_language = recipes.language_size(place) is not None
    for mechanism in _mechanisms(attention, recipes.usual_mechanisms(place, quick), built):
        for seed in recipes.seeds(seeds):
            config = make(place, mechanism, seed, recipe, chosen)
            if quick and not is_language and built.size("train") is not None:  # a quick decoder has its own numbers
                config = config.model_copy(update={"task": _at_most(config, built)})
            configs.append(parse_config(apply_overrides(config.model_dump(mode="json"), changes)))
    question = f"Which attention learns {title} in the fewest epochs, and which is right on rows it has not seen?"
    panels = (curves_of(get_objective(built.objective)),)
    return Experiment(title, title, question, tuple(distinct(configs)), panels, figure=f"curves-{title}")


def _mechanisms(attention: str | Iterable[str] | None, usual: Sequence[str], task: Task) -> list[str]:
    asked = _listed(attention) or usual
    if LADDER in asked:
        if len(asked) > 1:
            raise UsageError(
                f"attention = {','.join(asked)}: auto chooses the mechanisms by itself; leave the others out"
            )
        asked = ["full", *recipes.ladder(task.seq_len)]
    return [str(parse_plan(text)) for text in asked]


def _listed(attention: str | Iterable[str] | None) -> list[str]:
    if isinstance(attention, str):
        return [text.strip() for text in attention.split(",") if text.strip()] or [""]
    return list(attention or ())


def asks_which_k(attention: str | Iterable[str] | None) -> bool:
    """Whether mechanisms are left to the comparison, which then recommends one."""
    return _listed(attention) == [LADDER]


def _changes(epochs: int | None, stop_accuracy: float | None, early_stop: int | None) -> list[str]:
    fields: dict[str, Any] = {"epochs": epochs, "stop_accuracy": stop_accuracy}
    if epochs is not None:
        check_int("epochs", epochs, at_least=1)
    if stop_accuracy is not None and not 0 < stop_accuracy <= 1:
        raise UsageError(f"stop_accuracy = {stop_accuracy:g} is not a share of 1: for 95 % write 0.95")
    if early_stop is not None:
        check_int("early_stop", early_stop, at_least=1)
        fields |= {"patience": early_stop, "patience_on": "validation", "evaluate_test": True}
    return [f"training.{name}={json.dumps(value)}" for name, value in fields.items() if value is not None]


def _at_most(config: RunConfig, task: Task) -> TaskConfig:
    """With fewer examples where the task has more than a quick run takes; otherwise all, as ever."""
    train, heldout = recipes.QUICK_ROWS
    if (task.size("train") or 0) <= train and (task.size("heldout") or 0) <= heldout:
        return config.task
    return recipes.with_fewer_rows(config.task, task, train, heldout)


def compare(
    task: Any,
    *,
    attention: str | Iterable[str] | None = None,
    seeds: int = 3,
    quick: bool = False,
    recipe: recipes.Recipe = "clean",
    epochs: int | None = None,
    stop_accuracy: float | None = None,
    early_stop: int | None = None,
    tune: Literal["lr"] | None = None,
    options: Mapping[str, Any] | None = None,
    size: str | None = None,
    overrides: Sequence[str] = (),
    name: str = "data",
    out: Path | str | None = None,
    device: str = "auto",
    threads: int | None = None,
    jobs: int | None = 1,
    mix: bool | None = None,
    compile: Literal["auto", "on", "off"] = "auto",
    micro_batch: int | None = None,
    fit_memory: bool = False,
    evaluate_every: float | None = None,
    keep: str = "",
    executor: str = AUTO,
    progress: bool | Callable[[Any], None] = True,
    until: float | None = None,
) -> ComparisonResult:
    """Compare mechanisms on a task, a file or your own data. The same as `semfocus compare`.

    task            a task's name, a file, a Task, pairs of (text, label), a dictionary of columns, a pandas or polars
                    frame, or a Hugging Face Dataset
    attention       "full,topk:5" or a list; "auto": full and a short ladder of k, with a recommendation
    seeds           runs of each mechanism
    quick           smaller numbers: a few minutes on a laptop
    recipe          clean, paper or authors
    epochs          instead of the recipe's number
    stop_accuracy   a run stops at this training accuracy
    early_stop      a run stops after so many epochs without a lower held-out loss; the test split is judged
    tune            "lr": choose each mechanism's learning rate first, on seeds of its own
    options         of the task: {"text_column": "review", "tokenizer": "char"}
    size            of a language model: tiny, 1m, 3m, 10m, 30m or 124m
    overrides       any field of the configuration: ["model.blocks=2"]
    name            how messages, page and files call data in memory
    out             where runs live; default SEMFOCUS_RUNS, else ./runs
    device, threads, jobs, mix, compile, micro_batch, fit_memory, evaluate_every, keep, executor    how to train; no
                    effect on results beyond rounding
    progress        a progress bar, or a function that is called with the progress

    With `jobs` above 1 in a script, call this below `if __name__ == "__main__":`. `until` is the old name of
    `stop_accuracy`.
    """
    if until is not None:
        warnings.warn("compare(until=...) is now compare(stop_accuracy=...)", DeprecationWarning, stacklevel=2)
        stop_accuracy = until if stop_accuracy is None else stop_accuracy
    experiment = comparison_of(
        task, attention=attention, seeds=seeds, quick=quick, recipe=recipe, epochs=epochs,
        stop_accuracy=stop_accuracy, early_stop=early_stop, options=options, size=size, overrides=overrides, out=out,
        name=name,
    )  # fmt: skip
    runtime = Runtime(
        device=device, threads=threads, jobs=jobs, mix=mix, compile=compile, micro_batch=micro_batch,
        fit_memory=fit_memory, evaluate_every=evaluate_every, keep_epochs=parse_epochs(keep),
        keep_shares=parse_shares(keep),
    )  # fmt: skip
    lines: list[str] = []
    if tune is not None:
        first = plan_tuning(experiment, tune, out)
        with _shown(first, progress, "choosing learning rates") as on_progress:
            tuned = choose_rates(experiment, first, runtime, on_progress, executor)
        experiment, lines = tuned.experiment, tuned.lines
    job = plan(experiment, out)
    with _shown(job, progress, "training") as on_progress:
        outcome = run(job, runtime, on_progress, executor)
    advice = recommend(outcome.comparisons[0]) if asks_which_k(attention) else None
    return ComparisonResult.of(outcome, lines, advice)


def _shown(
    job: Plan, progress: bool | Callable[[Any], None], title: str
) -> AbstractContextManager[Callable[[Any], None] | None]:
    """A progress bar, the caller's own function, or nothing."""
    if progress is True:
        return ProgressBar({each.id: each.epochs_to_go for each in job.waiting}, title)
    return nullcontext(progress or None)
