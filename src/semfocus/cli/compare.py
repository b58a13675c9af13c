"""`semfocus compare`, `train` and `resume`: the main job, single runs from a file, and going on with either."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from semfocus.cli.shared import (
    Compile,
    Detach,
    Device,
    DryRun,
    EvaluateEvery,
    ExecutorName,
    FitMemory,
    Jobs,
    Keep,
    MicroBatch,
    Mix,
    Out,
    Sets,
    Threads,
    Track,
    assignments,
    fail_if_needed,
    names_of,
    print_comparison,
    print_files,
    print_run,
    say,
)
from semfocus.cli.sizing import print_estimates
from semfocus.errors import nearby


def compare_command(
    task: Annotated[str, typer.Argument(help="A task (see `semfocus tasks`) or a .csv, .tsv, .jsonl, .parquet file.")],
    attention: Annotated[
        str | None,
        typer.Option(
            help="Mechanisms, separated by commas: full,topk:5,banded:9+1g. Default: the paper's six. "
            "auto: full and a short ladder of k, with a recommendation."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many runs each mechanism has. The paper's ten seeds come first.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take smaller numbers, for a few minutes on a laptop.")
    ] = False,
    recipe: Annotated[
        Literal["clean", "paper", "authors"],
        typer.Option(
            help="Which habits of the paper's own code to follow. clean: none; paper: padding is visible; authors: all."
        ),
    ] = "clean",
    epochs: Annotated[
        int | None, typer.Option(help="How many epochs to train, instead of the paper's number for the task.")
    ] = None,
    stop_accuracy: Annotated[
        float | None,
        typer.Option(help="Stop a run at this training accuracy, e.g. 0.95."),
    ] = None,
    early_stop: Annotated[
        int | None,
        typer.Option(help="Stop a run after so many epochs without a lower held-out loss, and judge the test split."),
    ] = None,
    tune: Annotated[
        Literal["lr"] | None,
        typer.Option(help="Choose the learning rate (lr) of each mechanism first, on seeds of its own."),
    ] = None,
    until: Annotated[float | None, typer.Option(hidden=True)] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Set an option of the task, e.g. length=60. Repeatable.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="The size of a language model: tiny, 1m, 3m, 10m, 30m or 124m. Default: tiny.")
    ] = None,
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    mix: Mix = None,
    compile: Compile = "auto",
    micro_batch: MicroBatch = None,
    fit_memory: FitMemory = False,
    evaluate_every: EvaluateEvery = None,
    keep: Keep = "",
    executor: ExecutorName = "auto",
    detach: Detach = False,
    track: Track = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train mechanisms side by side on TASK and show what learns faster.

    Interrupt it whenever you like: the same command goes on where it was. Finished runs are not trained again.

    \b
    semfocus compare even_pairs --quick
    semfocus compare listops --attention full,topk:5 --seeds 10 --device cuda
    semfocus compare reviews.csv --attention full,topk:8 --epochs 20
    semfocus compare reviews.csv --attention auto --tune lr --early-stop 5
    semfocus compare text --size tiny --quick
    """
    from semfocus.analysis.recommend import recommend
    from semfocus.cli import cluster
    from semfocus.execution.resuming import stale_runs
    from semfocus.experiments.compare import asks_which_k, comparison_of
    from semfocus.experiments.estimate import work_of
    from semfocus.experiments.run import plan, run
    from semfocus.experiments.tuning import choose_rates, plan_tuning
    from semfocus.integrations.trackers import tracking
    from semfocus.report.terminal.progress import StudyProgressTable
    from semfocus.training import Runtime, parse_epochs, parse_shares

    if until is not None:
        say("--until is now --stop-accuracy; the old name will go", err=True)
    experiment = comparison_of(
        task,
        attention=names_of("attention", attention),
        seeds=seeds,
        quick=quick,
        recipe=recipe,
        epochs=epochs,
        stop_accuracy=until if stop_accuracy is None else stop_accuracy,
        early_stop=early_stop,
        options=assignments(option),
        size=size,
        overrides=sets or (),
        out=out,
    )
    if detach:
        cluster.detach(out)
        return
    runtime = Runtime(
        device=device,
        threads=threads,
        jobs=jobs,
        mix=mix,
        compile=compile,
        micro_batch=micro_batch,
        fit_memory=fit_memory,
        evaluate_every=evaluate_every,
        keep_epochs=parse_epochs(keep),
        keep_shares=parse_shares(keep),
    )
    first = None if tune is None else plan_tuning(experiment, tune, out)
    if dry_run:
        print_estimates([*([first] if first else []), plan(experiment, out)], runtime, as_json, executor)
        return
    tuning: list[str] = []
    if first is not None:
        with StudyProgressTable(work_of(first), len(first.jobs) - len(first.waiting)) as table:
            tuned = choose_rates(experiment, first, runtime, table, executor)
        experiment, tuning = tuned.experiment, tuned.lines
    job = plan(experiment, out)
    left = stale_runs(experiment.configs, job.store)
    if left:
        say(f"{task} has changed since {', '.join(left)} began; new runs begin, those are left alone", err=True)
    there = len(job.jobs) - len(job.waiting)
    with (
        StudyProgressTable(work_of(job), there) as table,
        tracking(table, track or []) as on_progress,
        cluster.may_detach(table, out),
    ):
        outcome = run(job, runtime, on_progress, executor)
    (comparison,) = outcome.comparisons
    advice = recommend(comparison) if asks_which_k(attention) else None
    if as_json:
        more = {"tuning": tuning} if tuning else {}
        more |= {"recommendation": asdict(advice)} if advice else {}
        say(json.dumps({**comparison.to_dict(), **more}, indent=2))
    else:
        print_comparison(comparison)
        for line in [*tuning, *([advice.text] if advice else [])]:
            say(line)
        print_files(outcome)
    fail_if_needed(outcome.runs, outcome.faults)


def train_command(
    config: Annotated[Path, typer.Argument(help="A .toml or .yaml file with one run's configuration.")],
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    compile: Compile = "auto",
    micro_batch: MicroBatch = None,
    fit_memory: FitMemory = False,
    keep: Keep = "",
    executor: ExecutorName = "auto",
    track: Track = None,
) -> None:
    """Train the run that a configuration file describes.

    \b
    semfocus train run.toml
    semfocus train run.toml --set training.lr=0.3 --track tensorboard:logs
    """
    from semfocus.config_files import apply_overrides, parse_config, read_config
    from semfocus.execution import train
    from semfocus.integrations.trackers import tracking
    from semfocus.report.terminal.progress import ProgressTable
    from semfocus.training import Runtime, parse_epochs, parse_shares

    runtime = Runtime(
        device=device, threads=threads, compile=compile, micro_batch=micro_batch, fit_memory=fit_memory,
        keep_epochs=parse_epochs(keep), keep_shares=parse_shares(keep),
    )  # fmt: skip
    run = parse_config(apply_overrides(read_config(config), sets or []))
    with ProgressTable({run.attention.mechanism: 1}) as table, tracking(table, track or []) as on_progress:
        (outcome,) = train([run], out, runtime, on_progress, executor=executor)
    print_run(outcome)
    fail_if_needed([outcome])


def resume_command(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run directories, or beginnings of ids. Default: all that can go on.")
    ] = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    compile: Compile = "auto",
    micro_batch: MicroBatch = None,
    fit_memory: FitMemory = False,
    keep: Keep = "",
    executor: ExecutorName = "auto",
    track: Track = None,
) -> None:
    """Go on with interrupted runs, each as it began: its configuration, device and threads come from its directory.

    At the end stands the table of every comparison that these runs belong to.

    \b
    semfocus resume
    semfocus resume 1f0c 9a3e --out runs
    """
    from semfocus.execution.resuming import missing_cohort_members, resume, unfinished, unreadable
    from semfocus.experiments.estimate import work_of_runs
    from semfocus.experiments.run import conclude
    from semfocus.integrations.trackers import tracking
    from semfocus.report.terminal.progress import StudyProgressTable
    from semfocus.store import DamagedRuns, RunStore
    from semfocus.training import Runtime, parse_epochs, parse_shares

    store = RunStore(out)
    chosen = [store.find(run) for run in runs] if runs else unfinished(store)
    damaged = {} if runs else unreadable(store)
    if not chosen:
        if damaged:
            raise DamagedRuns(damaged)
        say(f"nothing to go on with in {store.root}")
        return
    others = missing_cohort_members(chosen)
    if others:
        say(f"give {', '.join(others)} too for results to the bit: they trained together", err=True)
    runtime = Runtime(
        device=device, threads=threads, jobs=jobs, compile=compile, micro_batch=micro_batch, fit_memory=fit_memory,
        keep_epochs=parse_epochs(keep), keep_shares=parse_shares(keep),
    )  # fmt: skip
    try:
        with StudyProgressTable(work_of_runs(chosen)) as table, tracking(table, track or []) as on_progress:
            outcomes = resume(chosen, runtime, on_progress, executor)
    except DamagedRuns as error:
        raise DamagedRuns(error.reasons | damaged) from error
    for outcome in outcomes:
        print_run(outcome)
    for root in dict.fromkeys(run.path.parent for run in chosen):
        comparisons, page = conclude(RunStore(root), {run.id for run in chosen if run.path.parent == root}, runtime)
        for comparison in comparisons:
            say("")
            print_comparison(comparison)
        say(f"\npage: {nearby(page)}")
    if damaged:
        raise DamagedRuns(damaged)
    fail_if_needed(outcomes)
