"""`semfocus studies` and `semfocus run`: the experiments that are declared, and running them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.shared import (
    Compile,
    Device,
    EvaluateEvery,
    ExecutorName,
    Jobs,
    Mix,
    Out,
    Sets,
    Threads,
    Track,
    console,
    names_of,
)

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.experiments.estimate import Estimate
    from semfocus.experiments.run import Plan
    from semfocus.training import Runtime


def list_studies(
    name: Annotated[str | None, typer.Argument(help="A study, to see more of it; or the path of a study file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the list as a Markdown table.")] = False,
) -> None:
    """List the studies: figure of the paper, runs, tasks, mechanisms. With NAME, one of them in full."""
    from semfocus.experiments.registry import described, find_study, markdown_table, studies

    rows = [described(each) for each in (studies() if name is None else [find_study(name)])]
    if as_json:
        typer.echo(json.dumps(rows if name is None else rows[0], indent=2))
    elif markdown:
        typer.echo(markdown_table(rows))
    elif name is None:
        console().print(_studies_table(rows))
        typer.echo("\nLook at one: semfocus studies figure_3      Size one: semfocus run figure_3 --dry-run")
    else:
        for key, value in rows[0].items():
            typer.echo(f"{key + ':':12} {', '.join(map(str, value)) if isinstance(value, list) else value}")


def run_study(
    study: Annotated[str, typer.Argument(help="A study (see `semfocus studies`) or the path of a study file.")],
    scale: Annotated[
        Literal["paper", "quick", "smoke"] | None,
        typer.Option(help="paper: the paper's numbers; quick: for a laptop; smoke: seconds, to see that it works."),
    ] = None,
    recipe: Annotated[
        Literal["clean", "paper", "authors"] | None,
        typer.Option(help="clean: no quirk of the paper's code; paper: those that shape the input; authors: all."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each kind. The paper's ten come first.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Instead of the study's own, separated by commas.")] = None,
    attention: Annotated[str | None, typer.Option(help="Only these of the study's mechanisms.")] = None,
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    mix: Mix = None,
    compile: Compile = "auto",
    evaluate_every: EvaluateEvery = None,
    executor: ExecutorName = "auto",
    track: Track = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run, and what it takes.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, more than 5000 runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a study: train the runs that are not there yet, show what they say.

    Interrupt it whenever you like: the same command goes on where it was. Studies share runs, and a finished run is
    never trained again.

    semfocus run figure_1 --dry-run
    semfocus run figure_1 --scale quick --seeds 3
    semfocus run my_study.toml --device cuda
    """
    from semfocus.experiments.registry import find_study
    from semfocus.experiments.run import plan
    from semfocus.experiments.study import MANY, TOO_MANY
    from semfocus.training import Runtime

    given = {"tasks": names_of("tasks", tasks), "seeds": seeds, "recipe": recipe, "scale": scale}
    choices: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    experiment = find_study(study).experiment(**choices, overrides=sets or (), most=TOO_MANY if yes else MANY)
    mechanisms = names_of("attention", attention)
    job = plan(experiment if mechanisms is None else experiment.only(mechanisms), out)
    runtime = Runtime(
        device=device, threads=threads, jobs=jobs, mix=mix, compile=compile, evaluate_every=evaluate_every
    )
    if dry_run:
        from semfocus.experiments.estimate import estimate

        at_once = runtime.num_jobs() if runtime.torch_device().type == "cpu" else 1  # cohorts of a GPU share it
        _print_estimate(job, estimate(job, runtime), at_once, as_json)
    else:
        _run(job, runtime, executor, track or [], as_json)


def _studies_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semfocus.experiments.registry import COLUMNS, cells

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        table.add_column(title, justify="right" if title in ("runs", "tasks", "mechanisms") else "left")
    for row in rows:
        table.add_row(*cells(row))
    return table


def _run(job: Plan, runtime: Runtime, executor: str, track: list[str], as_json: bool) -> None:
    from semfocus.cli.shared import fail_if_needed, print_comparison, print_files
    from semfocus.experiments.estimate import work_of
    from semfocus.experiments.run import run
    from semfocus.integrations.trackers import tracking
    from semfocus.report.terminal.progress import StudyProgressTable

    typer.echo(_heading(job), err=True)
    there = len(job.jobs) - len(job.waiting)
    with StudyProgressTable(work_of(job), there) as table, tracking(table, track) as on_progress:
        outcome = run(job, runtime, on_progress, executor)
    if as_json:
        typer.echo(json.dumps([comparison.to_dict() for comparison in outcome.comparisons], indent=2))
    else:
        for comparison in outcome.comparisons:
            print_comparison(comparison)
            typer.echo("")
        for name, count in outcome.measured().items():
            typer.echo(
                f"this study also needs the measurement {name}: {count} of {_count(len(job.jobs), 'run')} have it"
            )
        print_files(outcome)
    fail_if_needed(outcome.runs, outcome.faults)


def _heading(job: Plan) -> str:
    there = len(job.jobs) - len(job.waiting)
    return f"{job.experiment.title}: {_count(len(job.jobs), 'run')}, {there} there, {len(job.waiting)} to train"


def _print_estimate(job: Plan, cost: Estimate, jobs: int, as_json: bool) -> None:
    from semfocus.experiments.estimate import SOURCES
    from semfocus.report.text import duration

    rows = cost.by_task()
    if as_json:
        total = {"steps": cost.steps, "seconds": cost.seconds, "bytes": cost.bytes, "free": cost.free}
        how = {source: SOURCES[source] for source in cost.sources}
        typer.echo(json.dumps({"study": job.experiment.name, **total, "time": how, "tasks": rows}, indent=2))
        return
    typer.echo(f"{_heading(job)}\n")
    console().print(_size_table(rows))
    if cost.steps:
        known = cost.sources.items()
        how = "; ".join(f"{SOURCES[source]} ({_count(count, 'shape')})" for source, count in known)
        sure = "at most" if cost.may_stop_early else "about"
        shared = f", {duration(cost.seconds / jobs)} at best with {jobs} at a time" if jobs > 1 else ""
        typer.echo(f"\n{cost.steps:,} steps in all: {sure} {duration(cost.seconds)} one after the other{shared}")
        typer.echo(f"time {how}")
    typer.echo(f"{_room(cost.bytes)} of disk space at most; {_room(cost.free)} free at {job.store.root}")


def _size_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semfocus.report.text import duration

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("task", "runs", "there", "to train", "steps a run", "steps in all", "time", "disk"):
        table.add_column(title, justify="left" if title == "task" else "right", no_wrap=True)
    for row in rows:
        least, most = row["steps_per_run"]
        span = f"{least:,}" if least == most else f"{least:,}-{most:,}"
        cells = [str(row[name]) for name in ("runs", "there", "waiting")]
        table.add_row(row["task"], *cells, span, f"{row['steps']:,}", duration(row["seconds"]), _room(row["bytes"]))
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _room(count: int) -> str:
    """`74 MB`, `1.2 GB`."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
