"""The command line: parse, call, print. No logic lives here, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from semfocus.cli import (
    archive,
    attention,
    beside,
    cluster,
    compare,
    diagnose,
    landscape,
    lengths,
    report,
    runs,
    sample,
    studies,
    tasks,
    theory,
    verdicts,
)
from semfocus.errors import SemfocusError, StorageError, UsageError, printable


class _Group(typer.core.TyperGroup):
    """Commands whose list has whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_paragraph(command)) for name, command in commands if command])


class _Root(_Group):
    """The command line; `--plugin MODULE` may stand anywhere on it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from semfocus.plugins import load_plugins

        names, rest = _taken_out("--plugin", args)
        if rest and not rest[0].startswith("-") and not {"--help", "-h"} & {*rest}:  # a command: help stays light
            load_plugins(names)
        return super().parse_args(ctx, rest)


def _first_paragraph(command: Any) -> str:
    """Of a command's help, the paragraph that says what it does; click would cut it to one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _taken_out(flag: str, args: list[str]) -> tuple[list[str], list[str]]:
    """The values of an option wherever it stands before `--`, and the other arguments."""
    values, rest, waiting = [], [], list(args)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            return values, [*rest, word, *waiting]
        if word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
        elif word == flag:
            if not waiting:
                raise UsageError(f"{flag} needs the name of a module, or the path of a .py file")
            values.append(waiting.pop(0))
        else:
            rest.append(word)
    return values, rest


app = typer.Typer(
    name="semfocus",
    cls=_Root,
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
app.command("status")(cluster.status_command)
app.command("runs")(runs.list_runs)
app.command("show")(runs.show_run)
app.command("clean")(runs.clean_runs)
app.command("pack")(archive.pack_command)
app.command("unpack")(archive.unpack_command)
app.command("publish")(archive.publish_command)
app.command("rebuild")(archive.rebuild_command)
app.command("verdicts")(verdicts.verdicts_command)
app.command("export")(verdicts.export_command)
app.command("report")(report.report_command)
app.command("diagnose")(diagnose.diagnose_command)
app.command("show-attention")(attention.show_attention_command)
app.command("lengths")(lengths.lengths_command)
app.command("sample")(sample.sample_command)
app.command("surface")(landscape.surface_command)
app.command("sharpness")(landscape.sharpness_command)
app.add_typer(tasks.app, name="tasks", cls=_Group)
theory.app.command("smoothness")(beside.smoothness_command)
theory.app.command("positional-semantic")(beside.positional_semantic_command)
app.add_typer(theory.app, name="theory", cls=_Group)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="Import a module of your own that registers tasks, mechanisms, normalisers, objectives or executors. "
            "May stand anywhere on the line, and more than once.",
        ),
    ] = None,
) -> None:
    if version:
        from semfocus import __version__

        typer.echo(f"semfocus {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; errors made on purpose become one line and their own exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    warnings.showwarning = _plainly(warnings.showwarning)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SemfocusError as error:
        _end(f"semfocus: {printable(str(error))}", error.exit_code)
    except BrokenPipeError:
        _end("", 1)
    except OSError as error:
        _end(f"semfocus: cannot read or write: {printable(str(error))}", StorageError.exit_code)


def _plainly(show: Callable[..., None]) -> Callable[..., None]:
    """Show each warning to the user once, as a line like that of an error; others as Python shows them."""
    seen: set[str] = set()

    def show_plainly(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        text = f"semfocus: warning: {printable(str(message))}"
        if not issubclass(category, UserWarning):
            show(message, category, *place, **more)
        elif text not in seen:
            seen.add(text)
            typer.echo(text, err=True)

    return show_plainly


def _terminate(number: int, frame: object) -> None:
    """End a command that has nothing to save; training listens for itself."""
    _end("semfocus: interrupted by SIGTERM", 128 + number)


def _end(message: str, exit_code: int) -> NoReturn:
    with suppress(OSError):
        if message:
            typer.echo(message, err=True)
    if sys.__stdout__ is not None:  # what could not be written would raise again when Python ends
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
    sys.exit(exit_code)
