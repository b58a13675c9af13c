"""`semfocus compare`, `train` and `resume`: the main job, single runs from a file, and going on with either."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semfocus.cli.shared import assignments, console, nearby
from semfocus.errors import Diverged, Locked, SemfocusError, UsageError

if TYPE_CHECKING:
    from semfocus.experiments.compare import Outcome, Trained
    from semfocus.training import RunOutcome

Out = Annotated[Path | None, typer.Option(help="Where runs live. Default: SEMFOCUS_RUNS, else ./runs.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; with the same number results repeat to the bit.")]
Compile = Annotated[
    Literal["auto", "on", "off"], typer.Option(help="Compile the model; auto: where it pays, always on a GPU.")
]
Jobs = Annotated[
    int | None, typer.Option(help="Mechanisms to train at a time, in processes of their own. Default: one a core.")
]
Keep = Annotated[
    str, typer.Option(help="Epochs whose checkpoints stay: 0,1,5 (0: before training), or ladder for 0,1,2,5 to 500.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change any field of the configuration, e.g. training.lr=0.3.")
]


def compare_command(
    task: Annotated[str, typer.Argument(help="A task (see `semfocus tasks`) or a .csv, .tsv, .jsonl, .parquet file.")],
    attention: Annotated[
        str | None,
        typer.Option(help="Mechanisms, separated by commas: full,topk:5,banded:9+1g. Default: the paper's six."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each mechanism. The paper's ten come first.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller numbers: a few minutes on a laptop.")] = False,
    recipe: Annotated[
        Literal["clean", "paper"], typer.Option(help="paper: padding is visible, as in the paper's own code.")
    ] = "clean",
    epochs: Annotated[int | None, typer.Option(help="Instead of the paper's number for the task.")] = None,
    stop_accuracy: Annotated[
        float | None,
        typer.Option("--stop-accuracy", "--until", help="Stop a run at this training accuracy, e.g. 0.95."),
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the task, e.g. length=60. Repeatable.")] = None,
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    compile: Compile = "auto",
    evaluate_every: Annotated[float, typer.Option(help="Epochs between evaluations; may be a fraction.")] = 1.0,
    keep: Keep = "",
    track: Annotated[
        list[str] | None, typer.Option(help="Follow in a tracker: tensorboard:DIR, wandb:PROJECT or trackio:PROJECT.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train mechanisms side by side on TASK and show what learns faster.

    Interrupt it whenever you like: the same command goes on where it was. Finished runs are not trained again.

    \b
    semfocus compare even_pairs --quick
    semfocus compare listops --attention full,topk:5 --seeds 10 --device cuda
    semfocus compare reviews.csv --attention full,topk:8 --epochs 20
    """
    from semfocus.execution.resuming import stale_runs
    from semfocus.experiments.compare import carry_out, plan
    from semfocus.integrations.trackers import watched
    from semfocus.report.terminal.progress import ProgressTable
    from semfocus.training import Runtime, parse_epochs

    mechanisms = [text for text in attention.split(",") if text] if attention is not None else None
    if mechanisms == []:
        raise UsageError("--attention names no mechanism; write for example full,topk:5")
    job = plan(
        task,
        attention=mechanisms,
        seeds=seeds,
        quick=quick,
        recipe=recipe,
        epochs=epochs,
        stop_accuracy=stop_accuracy,
        options=assignments(option),
        overrides=sets or (),
        out=out,
    )
    runtime = Runtime(
        device=device,
        threads=threads,
        jobs=jobs,
        compile=compile,
        evaluate_every=evaluate_every,
        keep_epochs=parse_epochs(keep),
    )
    left = stale_runs(job.configs, job.store)
    if left:
        typer.echo(f"{task} has changed since {', '.join(left)} began; new runs begin, those are left alone", err=True)
    with ProgressTable(dict.fromkeys(job.mechanisms, seeds)) as board, watched(board, track or []) as watcher:
        outcome = carry_out(job, runtime, watcher)
    if as_json:
        typer.echo(json.dumps(outcome.comparison.to_dict(), indent=2))
    else:
        print_outcome(outcome)
    fail_if_needed(outcome)


def train_command(
    config: Annotated[Path, typer.Argument(help="A .toml or .yaml file with one run's configuration.")],
    sets: Sets = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    compile: Compile = "auto",
    keep: Keep = "",
) -> None:
    """Train the run that a configuration file describes."""
    from semfocus.config_files import apply_overrides, parse_config, read_config
    from semfocus.execution import train
    from semfocus.experiments.compare import Trained
    from semfocus.report.terminal.progress import ProgressTable
    from semfocus.training import Runtime, parse_epochs

    runtime = Runtime(device=device, threads=threads, compile=compile, keep_epochs=parse_epochs(keep))
    run = parse_config(apply_overrides(read_config(config), sets or []))
    with ProgressTable({run.attention.mechanism: 1}) as board:
        (outcome,) = train([run], out, runtime, board)
    _tell(outcome)
    fail_if_needed(Trained([outcome]))


def resume_command(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run directories, or beginnings of ids. Default: all that can go on.")
    ] = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = None,
    compile: Compile = "auto",
    keep: Keep = "",
) -> None:
    """Go on with interrupted runs, each as it began: its configuration, device and threads come from its directory."""
    from collections import Counter

    from semfocus.execution.resuming import apart, resume, unfinished
    from semfocus.experiments.compare import Trained
    from semfocus.report.terminal.progress import ProgressTable
    from semfocus.store import RunStore
    from semfocus.training import Runtime, parse_epochs
    from semfocus.training.loading import config_of

    store = RunStore(out)
    found = [store.find(run) for run in runs] if runs else unfinished(store)
    if not found:
        typer.echo(f"nothing to go on with in {store.root}")
        return
    others = apart(found)
    if others:
        typer.echo(f"give {', '.join(others)} too for results to the bit: they trained together", err=True)
    runtime = Runtime(device=device, threads=threads, jobs=jobs, compile=compile, keep_epochs=parse_epochs(keep))
    with ProgressTable(Counter(config_of(run).attention.mechanism for run in found)) as board:
        outcomes = resume(found, runtime, board)
    for outcome in outcomes:
        _tell(outcome)
    fail_if_needed(Trained(outcomes))


def _tell(outcome: RunOutcome) -> None:
    rows = outcome.run.metrics()
    typer.echo(f"{outcome.run.path}: {outcome.state}" + (f", {json.dumps(rows[-1])}" if rows else ""))


def print_outcome(outcome: Outcome) -> None:
    """A comparison: its table, what the data support, and where its curves are."""
    from semfocus.report.terminal.tables import comparison_table
    from semfocus.report.text import baseline_text

    found = outcome.comparison
    typer.echo(f"{found.task}: {found.seeds} seeds, at most {found.horizon:g} epochs\n")
    console().print(comparison_table(found))
    typer.echo(f"\naccuracy without learning: {baseline_text(found)}\n")
    for line in found.sentences():
        typer.echo(line)
    if outcome.figures:
        typer.echo(f"\ncurves: {', '.join(nearby(path) for path in outcome.figures)}")
    if outcome.page:
        typer.echo(f"page: {nearby(outcome.page)}")


def fail_if_needed(outcome: Trained) -> None:
    """The exit code that tells of runs that are held, failed or diverged."""
    sys.stdout.flush()
    if outcome.held:
        holders = "; ".join(f"{run.id} by {run.holder() or 'another process'}" for run in outcome.held)
        raise Locked(f"{len(outcome.held)} runs are held elsewhere and left out: {holders}")
    if outcome.failed:
        names = ", ".join(run.id for run in outcome.failed)
        raise SemfocusError(f"{len(outcome.failed)} runs failed for want of memory and are left out: {names}")
    if outcome.diverged:
        raise Diverged(
            f"{outcome.diverged} runs diverged (loss or gradient not finite) and count as never there; "
            "try a smaller training.lr"
        )
