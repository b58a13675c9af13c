"""`semfocus runs`, `show` and `clean`: what is in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from semfocus.cli.shared import console
from semfocus.errors import SemfocusError

Place = Annotated[Path | None, typer.Argument(help="The directory of runs. Default: SEMFOCUS_RUNS, else ./runs.")]


def list_runs(
    directory: Place = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the runs: state, epochs, accuracies, epoch of convergence, time. Nothing is left out silently."""
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
    for title in ("run", "task", "mechanism", "seed", "state", "epochs", "train", "held out", "95 % at", "time"):
        table.add_column(title, no_wrap=title in ("run", "mechanism"))
    strange = [row for row in rows if "task" not in row]
    for row in rows:
        if row in strange:
            continue
        shares = [
            f"{row[name]:.1%}" if row[name] is not None else "" for name in ("train_accuracy", "heldout_accuracy")
        ]
        there = "" if row["converged_at"] is None else f"{row['converged_at']:g}"
        table.add_row(
            row["id"], row["task"], row["mechanism"], str(row["seed"]), row["state"],
            f"{row['epoch']:g} / {row['epochs']}", *shares, there, f"{row['seconds']:.0f} s",
        )  # fmt: skip
    console().print(table)
    for row in strange:
        typer.echo(f"{row['id']}: {row['state']}, {row['why']}")


def show_run(
    run: Annotated[str, typer.Argument(help="A run's directory, or the beginning of its id.")],
    directory: Annotated[Path | None, typer.Option("--out", help="Where runs live.")] = None,
) -> None:
    """Show one run: its configuration, how it stands, its last measurements and its checkpoints."""
    from semfocus.store import RunStore
    from semfocus.training.loading import checkpoint_epochs

    found = RunStore(directory).find(run)
    status = found.status()
    typer.echo(f"{found.path}\n")
    typer.echo(json.dumps(found.config(), indent=2))
    typer.echo(f"\nstatus: {json.dumps(status)}")
    for row in found.metrics()[-5:]:
        typer.echo(json.dumps(row))
    kept = found.kept_steps()
    there = [
        f"epoch {epoch:g} (step {step}{', kept' * (step in kept)})" for epoch, step in checkpoint_epochs(found).items()
    ]
    typer.echo(f"checkpoints: {', '.join(there) or 'none'}")


def clean_runs(
    directory: Place = None,
    everything: Annotated[bool, typer.Option("--all", help="Also finished and interrupted runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only say what would go.")] = False,
) -> None:
    """Remove failed, diverged and torn runs (with --all every run). Never one that a process is working on."""
    from semfocus.store import RunStore

    store = RunStore(directory)
    states = ("corrupt", "failed", "diverged", *(("done", "interrupted", "empty") if everything else ()))
    doomed = [entry for entry in store.entries() if entry.state in states]
    for entry in doomed:
        if entry.holder is not None:
            typer.echo(f"kept {entry.name}: {entry.holder} is working on it")
            continue
        try:
            if yes:
                store.remove(entry.name)
            typer.echo(f"{'removed' if yes else 'would remove'} {entry.name} ({entry.state})")
        except SemfocusError as error:
            typer.echo(f"kept {entry.name}: {error}")
    if not doomed:
        typer.echo("nothing to remove")
    elif not yes:
        typer.echo("give --yes to remove them")
