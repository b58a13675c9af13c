"""The command line: parse, call, print. No logic lives here, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from semfocus.cli import compare, runs, tasks
from semfocus.errors import SemfocusError

app = typer.Typer(
    name="semfocus",
    help="Does attention that focuses on the top-k keys make transformers learn faster? Find out, use it, understand.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("compare")(compare.compare_command)
app.command("train")(compare.train_command)
app.command("runs")(runs.list_runs)
app.command("show")(runs.show_run)
app.command("clean")(runs.clean_runs)
app.add_typer(tasks.app, name="tasks")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from semfocus import __version__

        typer.echo(f"semfocus {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; errors made on purpose become one line and their own exit code."""
    try:
        app()
    except SemfocusError as error:
        typer.echo(f"semfocus: {error}", err=True)
        sys.exit(error.exit_code)
