"""What the commands that train print in the end, and how they exit."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from semfocus.cli.shared import console, nearby
from semfocus.errors import Diverged, Locked, SemfocusError

if TYPE_CHECKING:
    from semfocus.analysis.comparison import Comparison
    from semfocus.execution import RunOutcome
    from semfocus.experiments.run import Outcome


def print_run(outcome: RunOutcome) -> None:
    """One run: where it is, how it ended, its last evaluation."""
    rows = outcome.run.metrics()
    typer.echo(f"{outcome.run.path}: {outcome.state}" + (f", {json.dumps(rows[-1])}" if rows else ""))


def print_comparison(comparison: Comparison) -> None:
    """The table of mechanisms, and what the data support."""
    from semfocus.report.terminal.tables import comparison_table
    from semfocus.report.text import baseline_text

    typer.echo(f"{comparison.task}: {comparison.seeds} seeds, at most {comparison.horizon:g} epochs\n")
    console().print(comparison_table(comparison))
    typer.echo(f"\naccuracy without learning: {baseline_text(comparison)}\n")
    for line in comparison.sentences():
        typer.echo(line)


def print_files(outcome: Outcome) -> None:
    """Where the figures and the page are."""
    if outcome.figures:
        typer.echo(f"\ncurves: {', '.join(nearby(path) for path in outcome.figures)}")
    if outcome.page:
        typer.echo(f"page: {nearby(outcome.page)}")


def fail_if_needed(outcomes: Sequence[RunOutcome]) -> None:
    """Raise the error whose exit code tells of runs that are held, failed or diverged."""
    sys.stdout.flush()
    held = [outcome.run for outcome in outcomes if outcome.state == "held"]
    failed = [outcome.run for outcome in outcomes if outcome.state == "failed"]
    diverged = sum(outcome.state == "diverged" for outcome in outcomes)
    if held:
        holders = "; ".join(f"{run.id} by {run.holder() or 'another process'}" for run in held)
        raise Locked(f"{len(held)} runs are held elsewhere and left out: {holders}")
    if failed:
        names = ", ".join(run.id for run in failed)
        raise SemfocusError(f"{len(failed)} runs failed for want of memory and are left out: {names}")
    if diverged:
        raise Diverged(
            f"{diverged} runs diverged (loss or gradient not finite) and count as never there; "
            "try a smaller training.lr"
        )
