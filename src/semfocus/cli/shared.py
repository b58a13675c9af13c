"""Helpers of several commands: parsing of option values, the console, progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from semfocus.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 10_000  # columns


def assignments(texts: list[str] | None) -> dict[str, Any]:
    """Return `["length=60", "tokenizer=char"]` as a dictionary; values are JSON, otherwise strings."""
    values: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} must look like name=value")
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

    return Console(width=None if sys.stdout.isatty() else UNLIMITED, soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that updates a progress bar, which is shown on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def nearby(path: Path) -> str:
    """Return a path relative to the working directory where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def name_figures(written: Sequence[Path]) -> None:
    """Print where the figures are; nothing where none was drawn."""
    shown = [path for path in written if path.suffix == ".svg" and not path.stem.endswith("-dark")]
    if shown:
        typer.echo("\nfigures (also as .pdf and .png, and -dark): " + ", ".join(map(str, shown)))
