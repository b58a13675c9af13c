"""`semfocus runs`, `show` and `clean`: the content of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from semfocus.cli.shared import RunsDirectory, console, say
from semfocus.errors import SemfocusError


def list_runs(
    directory: RunsDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the runs: state, epochs, accuracies, epoch of convergence, time. Nothing is omitted silently."""
    from rich.table import Table

    from semfocus.analysis.results import Results
    from semfocus.store import RunStore

    store = RunStore(directory)
    rows = Results.load(store).overview() if store.root.is_dir() else []
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo(f"no runs in {store.root}; make some: semfocus compare even_pairs --quick")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "task", "mechanism", "seed", "state", "epochs", "train", "held out", "learned at", "time"):
        table.add_column(title, no_wrap=title in ("run", "mechanism"))
    for row in rows:
        if "task" not in row:
            continue
        accuracies = [
            f"{row[name]:.1%}" if row[name] is not None else "" for name in ("train_accuracy", "heldout_accuracy")
        ]
        converged_at = "" if row["converged_at"] is None else f"{row['converged_at']:g}"
        table.add_row(
            row["id"], row["task"], row["mechanism"], str(row["seed"]), row["state"],
            f"{row['epoch']:g} / {row['epochs']}", *accuracies, converged_at, f"{row['seconds']:.0f} s",
        )  # fmt: skip
    console().print(table)
    for row in (row for row in rows if "task" not in row):  # entries that are not readable runs
        say(f"{row['id']}: {row['state']}, {row['why']}")


def show_run(
    run: Annotated[str, typer.Argument(help="A run's directory, or the beginning of its id.")],
    directory: Annotated[Path | None, typer.Option("--out", help="Where runs live.")] = None,
) -> None:
    """Show one run: its configuration, status, last metrics and checkpoints."""
    from semfocus.analysis.records import facts_of
    from semfocus.report.text import facts_text
    from semfocus.store import RunStore
    from semfocus.training.loading import checkpoint_epochs, recorded_fields

    shown = RunStore(directory).find(run)
    fields, status, rows = recorded_fields(shown), shown.status(), shown.metrics()
    shown.timing()
    typer.echo(f"{shown.path}\n")
    typer.echo(json.dumps(fields, indent=2))
    for line in facts_text(facts_of(fields)):
        typer.echo(f"\n{line}" if line.startswith("Data") else line)
    typer.echo(f"\nstatus: {json.dumps(status)}")
    typer.echo(f"metrics: {shown.verification()}")
    for row in rows[-5:]:
        typer.echo(json.dumps(row))
    kept = shown.kept_steps()
    checkpoints = [
        f"epoch {epoch:g} (step {step}{', kept' * (step in kept)})" for epoch, step in checkpoint_epochs(shown).items()
    ]
    typer.echo(f"checkpoints: {', '.join(checkpoints) or 'none'}")
    if shown.damaged_steps():
        typer.echo(f"damaged checkpoints, which are not used: {', '.join(map(str, shown.damaged_steps()))}")


def clean_runs(
    directory: RunsDirectory = None,
    everything: Annotated[bool, typer.Option("--all", help="Also finished and interrupted runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without this, only list what would be removed.")] = False,
) -> None:
    """Remove diverged runs, and failed and corrupt ones without an intact checkpoint; with --all every run.

    Never one that a process is working on.
    """
    from semfocus.store import RunStore

    store = RunStore(directory)
    entries = store.removable(finished=everything)
    for entry in entries:
        try:
            if yes:
                store.remove(entry.name)
            say(f"{'removed' if yes else 'would remove'} {entry.name} ({entry.state})")
        except SemfocusError as error:
            say(f"kept {entry.name}: {error}")
    if not entries:
        typer.echo("nothing to remove")
    elif not yes:
        typer.echo("give --yes to remove them")
