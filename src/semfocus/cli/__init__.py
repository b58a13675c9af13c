"""The command line: parse, call, print. No logic lives here, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from semfocus.cli import compare, diagnose, landscape, report, runs, studies, tasks, theory, verdicts
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
app.command("resume")(compare.resume_command)
app.command("studies")(studies.list_studies)
app.command("run")(studies.run_study)
app.command("runs")(runs.list_runs)
app.command("show")(runs.show_run)
app.command("clean")(runs.clean_runs)
app.command("verdicts")(verdicts.verdicts_command)
app.command("export")(verdicts.export_command)
app.command("report")(report.report_command)
app.command("diagnose")(diagnose.diagnose_command)
app.command("surface")(landscape.surface_command)
app.command("sharpness")(landscape.sharpness_command)
app.add_typer(tasks.app, name="tasks")
app.add_typer(theory.app, name="theory")


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
