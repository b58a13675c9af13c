"""`semfocus studies` and `semfocus run`: the experiments that are declared, and running them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.shared import (
    Compile,
    Detach,
    Device,
    DryRun,
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
    say,
)
from semfocus.cli.sizing import heading, print_estimates

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.experiments.experiment import Experiment
    from semfocus.experiments.run import Outcome, Plan
    from semfocus.training import Runtime


def list_studies(
    name: Annotated[str | None, typer.Argument(help="A study to show in full, or the path of a study file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the studies as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the list as a Markdown table.")] = False,
) -> None:
    """List the studies: figure of the paper, runs, tasks, mechanisms. With NAME, one of them in full.

    \b
    semfocus studies
    semfocus studies figure_3
    """
    from semfocus.experiments.registry import described, find_study, markdown_table, studies

    rows = [described(each) for each in (studies() if name is None else [find_study(name)])]
    if as_json:
        say(json.dumps(rows if name is None else rows[0], indent=2))
    elif markdown:
        say(markdown_table(rows))
    elif name is None:
        console().print(_studies_table(rows))
        say("\nLook at one: semfocus studies figure_3      Size one: semfocus run figure_3 --dry-run")
    else:
        for key, value in rows[0].items():
            say(f"{key + ':':12} {', '.join(map(str, value)) if isinstance(value, list) else value}")


def run_study(
    study: Annotated[str, typer.Argument(help="A study (see `semfocus studies`) or the path of a study file.")],
    scale: Annotated[
        Literal["paper", "quick", "smoke"] | None,
        typer.Option(
            help="The size of the runs. paper: the paper's; quick: for a laptop; smoke: seconds, to see that it works."
        ),
    ] = None,
    recipe: Annotated[
        Literal["clean", "paper", "authors"] | None,
        typer.Option(
            help="Quirks of the paper's code to follow. clean: none; paper: those that shape the input; authors: all."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many runs there are of each kind. The paper's ten seeds come first.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="The tasks to take instead of the study's own, separated by commas.")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="Take only these of the study's mechanisms, separated by commas.")
    ] = None,
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    mix: Mix = None,
    compile: Compile = "auto",
    evaluate_every: EvaluateEvery = None,
    executor: ExecutorName = "auto",
    detach: Detach = False,
    track: Track = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Make the measurements that the study needs as well, when all is trained.")
    ] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm a study of more than 5000 runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a study: train the runs that are not there yet, show what they say.

    Interrupt it whenever you like: the same command goes on where it was. Studies share runs, and a finished run is
    never trained again.

    \b
    semfocus run figure_1 --dry-run
    semfocus run figure_1 --scale quick --seeds 3
    semfocus run heavy_hitters --measure
    semfocus run my_study.toml --device cuda
    semfocus run figure_3 --executor ray:10.0.0.1:6379 --detach
    """
    from semfocus.errors import UsageError
    from semfocus.experiments.registry import find_study
    from semfocus.experiments.run import plan
    from semfocus.experiments.study import MANY, TOO_MANY
    from semfocus.experiments.tuning import plan_tuning
    from semfocus.training import Runtime

    if study == "positional_semantic":
        raise UsageError("positional_semantic trains layers of its own; run it by semfocus theory positional-semantic")
    given = {"tasks": names_of("tasks", tasks), "seeds": seeds, "recipe": recipe, "scale": scale}
    choices: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    experiment = find_study(study).experiment(**choices, overrides=sets or (), most=TOO_MANY if yes else MANY)
    mechanisms = names_of("attention", attention)
    experiment = experiment if mechanisms is None else experiment.only(mechanisms)
    first = None if experiment.tuning is None else plan_tuning(experiment, out=out)
    runtime = Runtime(
        device=device, threads=threads, jobs=jobs, mix=mix, compile=compile, evaluate_every=evaluate_every
    )
    if first is not None and not first.waiting:  # rates can be chosen without training
        experiment, first = _tuned(experiment, first, runtime, executor), None
    if dry_run:
        print_estimates([*([first] if first else []), plan(experiment, out)], runtime, as_json, executor)
        return
    if detach:
        from semfocus.cli import cluster

        cluster.detach(out)
        return
    if first is not None:
        experiment = _tuned(experiment, first, runtime, executor)
    _run(plan(experiment, out), runtime, executor, track or [], as_json, measure)


def _tuned(experiment: Experiment, first: Plan, runtime: Runtime, executor: str) -> Experiment:
    """The experiment with the learning rate of each arm, chosen by runs of their own."""
    from semfocus.experiments.estimate import work_of
    from semfocus.experiments.tuning import choose_rates
    from semfocus.report.terminal.progress import StudyProgressTable

    say(heading(first), err=True)
    with StudyProgressTable(work_of(first), len(first.jobs) - len(first.waiting)) as table:
        tuned = choose_rates(experiment, first, runtime, table, executor)
    for line in tuned.lines:
        say(line, err=True)
    return tuned.experiment


def _studies_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semfocus.experiments.registry import COLUMNS, cells

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        table.add_column(title, justify="right" if title in ("runs", "tasks", "mechanisms") else "left")
    for row in rows:
        table.add_row(*cells(row))
    return table


def _run(job: Plan, runtime: Runtime, executor: str, track: list[str], as_json: bool, measure: bool) -> None:
    from semfocus.cli.cluster import may_detach
    from semfocus.cli.shared import fail_if_needed, print_comparison, print_files
    from semfocus.cli.verdicts import verdict_line
    from semfocus.experiments.estimate import work_of
    from semfocus.experiments.run import run
    from semfocus.integrations.trackers import tracking
    from semfocus.report.terminal.progress import StudyProgressTable
    from semfocus.report.text import counted

    say(heading(job), err=True)
    there = len(job.jobs) - len(job.waiting)
    with (
        StudyProgressTable(work_of(job), there) as table,
        tracking(table, track) as on_progress,
        may_detach(table, job.store.root),
    ):
        outcome = run(job, runtime, on_progress, executor)
    if measure and _measure(outcome, runtime):
        outcome = run(job, runtime)  # trains nothing: figures and page show what was measured
    if as_json:
        say(json.dumps([comparison.to_dict() for comparison in outcome.comparisons], indent=2))
    else:
        for comparison in outcome.comparisons:
            print_comparison(comparison)
            say("")
        for verdict in outcome.verdicts:
            say(verdict_line(verdict) + "\n")
        for name, count in outcome.measured().items():
            say(f"this study also needs the measurement {name}: {count} of {counted(len(job.jobs), 'run')} have it")
        print_files(outcome)
    fail_if_needed(outcome.runs, outcome.faults)


def _measure(outcome: Outcome, runtime: Runtime) -> int:
    """Make the measurements that are missing, kept with each run; how many runs there were to measure."""
    from semfocus.archive.merge import by_reason
    from semfocus.cli.shared import progress_bar
    from semfocus.diagnostics.measuring import MEASURES, missing

    names = outcome.experiment.measures
    lacking = [(each.run, name) for each in outcome.runs if each.state == "done" for name in missing(each.run, names)]
    bare = {run.id: "its checkpoints are not here" for run, _ in lacking if not run.checkpoint_steps()}
    for text in by_reason(bare):
        say(f"not measured: {text}; to measure it, train it again in another store (--out), with --measure", err=True)
    waiting = [(run, name) for run, name in lacking if run.id not in bare]
    with progress_bar(f"measuring {', '.join(names)}") as bar:
        for done, (directory, name) in enumerate(waiting):
            bar(done, len(waiting))
            MEASURES[name](directory, runtime)
    return len(waiting)
