"""`semfocus studies` and `semfocus run`: the experiments that are declared, and running them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.compare import Compile, Device, Jobs, Out, Sets, Threads
from semfocus.cli.shared import console
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.experiments.estimate import Size
    from semfocus.experiments.run_study import StudyJob


def list_studies(
    name: Annotated[str | None, typer.Argument(help="A study, to see more of it; or the path of a study file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the list as a Markdown table.")] = False,
) -> None:
    """List the studies: figure of the paper, runs, tasks, mechanisms. With NAME, one of them in full."""
    from semfocus.experiments.listing import described, markdown_table
    from semfocus.experiments.registry import find_study, studies

    found = [described(each) for each in (studies() if name is None else [find_study(name)])]
    if as_json:
        typer.echo(json.dumps(found if name is None else found[0], indent=2))
    elif markdown:
        typer.echo(markdown_table(found))
    elif name is None:
        console().print(_studies_table(found))
        typer.echo("\nLook at one: semfocus studies figure_3      Size one: semfocus run figure_3 --dry-run")
    else:
        for key, value in found[0].items():
            typer.echo(f"{key + ':':12} {', '.join(map(str, value)) if isinstance(value, list) else value}")


def run_study(
    study: Annotated[str, typer.Argument(help="A study (see `semfocus studies`) or the path of a study file.")],
    scale: Annotated[
        Literal["paper", "quick", "smoke"] | None,
        typer.Option(help="paper: the paper's numbers; quick: for a laptop; smoke: seconds, to see that it works."),
    ] = None,
    recipe: Annotated[
        Literal["paper", "clean"] | None, typer.Option(help="paper: quirks of its code and all; clean: none of them.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each kind. The paper's ten come first.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Instead of the study's own, separated by commas.")] = None,
    attention: Annotated[str | None, typer.Option(help="Only these of the study's mechanisms.")] = None,
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    compile: Compile = "auto",
    evaluate_every: Annotated[float, typer.Option(help="Epochs between evaluations; may be a fraction.")] = 1.0,
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
    from semfocus.experiments.run_study import plan
    from semfocus.training import Runtime

    job = plan(
        study,
        tasks=_names("tasks", tasks),
        attention=_names("attention", attention),
        seeds=seeds,
        recipe=recipe,
        scale=scale,
        overrides=sets or (),
        many=yes,
        out=out,
    )
    runtime = Runtime(device=device, threads=threads, jobs=jobs, compile=compile, evaluate_every=evaluate_every)
    if dry_run:
        from semfocus.experiments.estimate import size

        _print_size(job, size(job, runtime), runtime.num_jobs(), as_json)
    else:
        _run(job, runtime, as_json)


def _studies_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semfocus.experiments.listing import COLUMNS, cells

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        table.add_column(title, justify="right" if title in ("runs", "tasks", "mechanisms") else "left")
    for row in rows:
        table.add_row(*cells(row))
    return table


def _run(job: StudyJob, runtime: Any, as_json: bool) -> None:
    from semfocus.cli.compare import fail_if_needed, print_outcome
    from semfocus.experiments.estimate import work_of
    from semfocus.experiments.run_study import carry_out
    from semfocus.report.terminal.study_progress import StudyProgressTable

    there = len(job.runs) - len(job.waiting)
    typer.echo(
        f"{job.study.title}: {_count(len(job.runs), 'run')}, {there} there, {len(job.waiting)} to train", err=True
    )
    with StudyProgressTable(work_of(job), there) as board:
        outcome = carry_out(job, runtime, board)
    if as_json:
        typer.echo(json.dumps([part.comparison.to_dict() for part in outcome.parts], indent=2))
    else:
        for part in outcome.parts:
            print_outcome(part)
            typer.echo("")
        for name, count in outcome.measured().items():
            typer.echo(
                f"this study also needs the measurement {name}: {count} of {_count(len(job.runs), 'run')} have it"
            )
    fail_if_needed(outcome)


def _print_size(job: StudyJob, found: Size, jobs: int, as_json: bool) -> None:
    from semfocus.experiments.estimate import SOURCES
    from semfocus.report.text import duration

    rows = found.by_task()
    if as_json:
        total = {"steps": found.steps, "seconds": found.seconds, "bytes": found.bytes, "free": found.free}
        how = {source: SOURCES[source] for source in found.sources}
        typer.echo(json.dumps({"study": job.study.name, **total, "time": how, "tasks": rows}, indent=2))
        return
    there = len(job.runs) - len(job.waiting)
    typer.echo(f"{job.study.title}: {_count(len(job.runs), 'run')}, {there} there, {len(job.waiting)} to train\n")
    console().print(_size_table(rows))
    if found.steps:
        known = found.sources.items()
        how = "; ".join(f"{SOURCES[source]} ({_count(count, 'shape')})" for source, count in known)
        sure = "at most" if found.may_stop_early else "about"
        shared = f", {duration(found.seconds / jobs)} at best with {jobs} at a time" if jobs > 1 else ""
        typer.echo(f"\n{found.steps:,} steps in all: {sure} {duration(found.seconds)} one after the other{shared}")
        typer.echo(f"time {how}")
    typer.echo(f"{_room(found.bytes)} of disk space at most; {_room(found.free)} free at {job.store.root}")


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


def _names(flag: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--{flag} names nothing; write names separated by commas")
    return names


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
