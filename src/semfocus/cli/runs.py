"""`semfocus runs`, `show` and `clean`: the content of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from semfocus.cli.shared import RunsDirectory, console, names_of, say
from semfocus.errors import SemfocusError


def list_runs(
    directory: RunsDirectory = None,
    task: Annotated[str | None, typer.Option(help="Only runs of these tasks, separated by commas.")] = None,
    attention: Annotated[str | None, typer.Option(help="Only these mechanisms, separated by commas.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only runs in these states, separated by commas: interrupted,failed."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only runs with this setting, as the column of settings has it: 'blocks 6'. Repeatable."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort by run, task, settings, mechanism, seed, state, epochs, train, heldout, learned or "
            "time. A minus turns the order round: --sort=-heldout."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """List the runs: what they are, how far they came, and in which settings runs of one task differ.

    Nothing is omitted silently: entries that cannot be read as a run are listed below with the reason.

    \b
    semfocus runs
    semfocus runs --task parity --where 'blocks 6' --sort=-heldout
    semfocus runs other/runs --state interrupted,failed
    """
    from semfocus.analysis.listing import chosen, in_order
    from semfocus.analysis.results import Results
    from semfocus.store import RunStore

    store = RunStore(directory)
    every = Results.load(store).overview() if store.root.is_dir() else []
    wanted = {
        "task": names_of("task", task),
        "mechanism": names_of("attention", attention),
        "state": names_of("state", state),
        "settings": where,
    }
    rows = chosen(every, **{name: values for name, values in wanted.items() if values}) if every else []
    rows = rows if sort is None else in_order(rows, sort)
    if as_json:
        say(json.dumps(rows, indent=2))
    elif not every:
        say(f"no runs in {store.root}; make some: semfocus compare even_pairs --quick")
    else:
        _print_rows(rows)
        if len(rows) < len(every):
            say(f"\n{len(rows)} of {len(every)} entries")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """The table of runs, and below it the entries that are no readable runs."""
    from rich.table import Table

    runs = [row for row in rows if "task" in row]
    table = Table(box=None, pad_edge=False, header_style="bold")
    differ = ["settings"] * any(row["settings"] for row in runs)
    titles = ("run", "task", *differ, "mechanism", "seed", "state", "epochs", "train", "held out", "learned at", "time")
    for title in titles:
        table.add_column(title, no_wrap=title in ("run", "mechanism"))
    for row in runs:
        accuracies = [
            f"{row[name]:.1%}" if row[name] is not None else "" for name in ("train_accuracy", "heldout_accuracy")
        ]
        converged_at = "" if row["converged_at"] is None else f"{row['converged_at']:g}"
        table.add_row(
            row["id"], row["task"], *(row[name] for name in differ), row["mechanism"], str(row["seed"]), row["state"],
            f"{row['epoch']:g} / {row['epochs']}", *accuracies, converged_at, f"{row['seconds']:.0f} s",
        )  # fmt: skip
    if runs:
        console().print(table)
    for row in (row for row in rows if "task" not in row):
        say(f"{row['id']}: {row['state']}, {row['why']}")


def show_run(
    run: Annotated[str, typer.Argument(help="A run's directory, or the beginning of its id.")],
    directory: Annotated[Path | None, typer.Option("--out", help="The directory in which runs are kept.")] = None,
) -> None:
    """Show one run: its configuration, status, last metrics and checkpoints.

    \b
    semfocus show 1f0c
    """
    from semfocus.analysis.records import facts_of
    from semfocus.report.text import facts_text
    from semfocus.store import RunStore
    from semfocus.training.loading import checkpoint_epochs, recorded_fields

    shown = RunStore(directory).find(run)
    fields, status, rows = recorded_fields(shown), shown.status(), shown.metrics()
    shown.timing()
    say(f"{shown.path}\n")
    say(json.dumps(fields, indent=2))
    for line in facts_text(facts_of(fields)):
        say(f"\n{line}" if line.startswith("Data") else line)
    say(f"\nstatus: {json.dumps(status)}")
    say(f"metrics: {shown.verification()}")
    for row in rows[-5:]:
        say(json.dumps(row))
    kept = shown.kept_steps()
    checkpoints = [
        f"epoch {epoch:g} (step {step}{', kept' * (step in kept)})" for epoch, step in checkpoint_epochs(shown).items()
    ]
    say(f"checkpoints: {', '.join(checkpoints) or 'none'}")
    if shown.damaged_steps():
        say(f"damaged checkpoints, which are not used: {', '.join(map(str, shown.damaged_steps()))}")


def clean_runs(
    directory: RunsDirectory = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove finished and interrupted runs as well.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without this, only list what would be removed.")
    ] = False,
) -> None:
    """Remove diverged runs, and failed and corrupt ones without an intact checkpoint; with --all every run.

    Never one that a process is working on.

    \b
    semfocus clean
    semfocus clean --yes
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
        say("nothing to remove")
    elif not yes:
        say("give --yes to remove them")
