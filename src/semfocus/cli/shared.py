"""Helpers of several commands: parsing of option values, the console, progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.errors import CorruptData, Diverged, Locked, SemfocusError, UsageError, nearby, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from semfocus.analysis.comparison import Comparison
    from semfocus.analysis.records import Fault
    from semfocus.execution import RunOutcome
    from semfocus.experiments.run import Outcome

UNLIMITED = 10_000  # columns

RunsDirectory = Annotated[
    Path | None, typer.Argument(help="The directory of the runs. Default: SEMFOCUS_RUNS, else ./runs.")
]
Out = Annotated[
    Path | None, typer.Option(help="The directory in which runs are kept. Default: SEMFOCUS_RUNS, else ./runs.")
]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or mps.")]
Threads = Annotated[
    int | None, typer.Option(help="The number of CPU threads; with the same number results repeat to the bit.")
]
Compile = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(help="Whether to compile the model; auto does where it pays, and always on a GPU."),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(help="How many examples of a batch are in memory at a time; their gradients add up. Default: all."),
]
FitMemory = Annotated[
    bool, typer.Option("--fit-memory", help="Where a run does not fit into memory, halve --micro-batch until it does.")
]
Jobs = Annotated[
    int | None,
    typer.Option(help="How many cohorts train at a time. Default: a process a core, or four side by side on a GPU."),
]
EvaluateEvery = Annotated[
    float | None,
    typer.Option(
        help="How many epochs lie between evaluations; may be a fraction. Default: 1, and 1 more after each hundred."
    ),
]
Mix = Annotated[
    bool | None,
    typer.Option("--mix/--no-mix", help="Whether mechanisms of one shape train in one cohort. Default: on a GPU."),
]
Keep = Annotated[
    str,
    typer.Option(
        help="The epochs whose checkpoints stay: 0,0.5,5 (0 is before training), or ladder for 0,1,2,5 to 500."
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change any field of the configuration, e.g. training.lr=0.3.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be trained, and what that takes in time and disk space.")
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        help="Who trains: auto, serial, processes, streams (one GPU), ray, slurm, slurm-local, or one that a plugin "
        "registers. Options follow a colon: ray:10.0.0.1:6379, slurm:partition=gpu,gpus=1,time=240.",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Go on in the background, and return at once; see `semfocus status`.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Send metrics to a tracker as well: tensorboard:DIR, wandb:PROJECT or trackio:PROJECT."),
]


def assignments(texts: list[str] | None) -> dict[str, Any]:
    """Return `["length=60", "tokenizer=char"]` as a dictionary; values are JSON, otherwise strings."""
    values: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--option {text} must look like --option name=value")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def names_of(flag: str, text: str | None) -> list[str] | None:
    """Return `full,topk:5` as a list; None when the option was not given."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--{flag} names nothing; write names separated by commas")
    return names


def console() -> Console:
    """Return the console for tables; their width is limited only by a terminal, and lines wrap instead of being cut."""
    from rich.console import Console

    class Plain(Console):
        """Takes no text for markup, and shows control characters as text: anybody may have written a run."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    return Plain(width=None if sys.stdout.isatty() else UNLIMITED, soft_wrap=True, markup=False, emoji=False)


def say(text: str, err: bool = False) -> None:
    """Print a text that may hold what somebody wrote into a run, with control characters shown as text."""
    typer.echo(printable(text), err=err)


def print_faults(faults: Iterable[Fault]) -> None:
    """Print what could not be read, and why, to stderr."""
    for fault in faults:
        say(f"{fault.name}: {fault.text}", err=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that updates a progress bar, which is shown on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def name_figures(written: Sequence[Path]) -> None:
    """Print where the figures are; nothing where none was drawn."""
    shown = [path for path in written if path.suffix == ".svg" and not path.stem.endswith("-dark")]
    if shown:
        say("\nfigures (also as .pdf and .png, and -dark): " + ", ".join(map(str, shown)))


def print_run(outcome: RunOutcome) -> None:
    """One run: where it is, how it ended, its last evaluation."""
    rows = [] if outcome.state == "corrupt" else outcome.run.metrics()
    say(f"{outcome.run.path}: {outcome.state}" + (f", {json.dumps(rows[-1])}" if rows else ""))


def print_comparison(comparison: Comparison) -> None:
    """The table of mechanisms, and what the data support."""
    from semfocus.report.race import comparison_title, course_table
    from semfocus.report.terminal.tables import comparison_table, rich_table
    from semfocus.report.text import baseline_text, facts_text

    say(f"{comparison_title(comparison)}\n")
    console().print(comparison_table(comparison))
    if comparison.race is not None and comparison.race.tokens:
        say("")
        console().print(rich_table(course_table(comparison.race)))
    say(f"\naccuracy without learning: {baseline_text(comparison)}")
    say("".join(f"{line}\n" for line in facts_text(comparison.facts)))
    for line in comparison.sentences():
        say(line)


def print_files(outcome: Outcome) -> None:
    """Where the figures and the page are, and what was left out."""
    for fault in outcome.faults:
        say(f"{fault.name} is left out: {fault.text}", err=True)
    if outcome.figures:
        say(f"\ncurves: {', '.join(nearby(path) for path in outcome.figures)}")
    if outcome.page:
        say(f"page: {nearby(outcome.page)}")


def fail_if_needed(outcomes: Sequence[RunOutcome], faults: Sequence[Fault] = ()) -> None:
    """Raise the error whose exit code tells of runs that are damaged, held, failed or diverged."""
    sys.stdout.flush()
    corrupt = {fault.name: fault.what for fault in faults if fault.kind == "corrupt"}
    corrupt |= {outcome.run.id: outcome.reason for outcome in outcomes if outcome.state == "corrupt"}
    held = [outcome.run for outcome in outcomes if outcome.state == "held"]
    failed = {outcome.run.id: outcome.reason for outcome in outcomes if outcome.state == "failed"}
    diverged = sum(outcome.state == "diverged" for outcome in outcomes)
    if corrupt:
        from semfocus.report.text import counted

        reasons = "; ".join(f"{run_id}: {reason}" for run_id, reason in corrupt.items())
        raise CorruptData(f"{counted(len(corrupt), 'run')} damaged and left out: {reasons}")
    if held:
        ended = "a process that has ended since (the same command goes on)"
        holders = "; ".join(f"{run.id} by {run.holder() or ended}" for run in held)
        raise Locked(f"{len(held)} runs are held elsewhere and left out: {holders}")
    if failed:
        reasons = "; ".join(f"{run_id}: {reason or 'no reason was recorded'}" for run_id, reason in failed.items())
        raise SemfocusError(f"{len(failed)} runs failed and are left out: {reasons}")
    if diverged:
        raise Diverged(
            f"{diverged} runs diverged (loss or gradient not finite) and count as never there; "
            "try a smaller training.lr"
        )
