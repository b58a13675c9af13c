"""`--help` teaches: every command says what it does, shows how it is called, and every option is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from semfocus.cli import app

COLUMNS = 80


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


ALL = list(commands(get_command(app)))


def command_at(path: tuple[str, ...]) -> Any:
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    return command


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_shows_calls_of_itself_each_on_a_line_of_its_own(path: tuple[str, ...]) -> None:
    """`semfocus run` had its examples run together into one paragraph, others had none."""
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)})
    lines = [line.strip() for line in done.output.splitlines()]
    assert any(line.startswith(" ".join(("semfocus", *path))) for line in lines), done.output
    for line in lines:
        assert line.count("semfocus ") < 2 or "`" in line, line


@pytest.mark.parametrize("path", [(), ("tasks",), ("theory",)], ids=" ".join)
def test_the_list_of_commands_has_whole_sentences(path: tuple[str, ...]) -> None:
    """`semfocus --help` cut nearly every sentence to a line: "Train mechanisms side by side on TASK and show what..."."""
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)})
    listed = " ".join(done.output.partition("Commands:")[2].split())
    assert "..." not in listed
    for name, command in command_at(path).commands.items():
        told = " ".join(command.help.partition("\n\n")[0].split())
        assert f"{name} {told}" in listed
    assert max(map(len, done.output.splitlines())) <= COLUMNS


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_is_explained_by_sentences(path: tuple[str, ...]) -> None:
    command = command_at(path)
    first = command.help.partition("\n\n")[0]
    assert re.match(r"[A-Z].*\.$", first, re.DOTALL), first
    for option in command.params:
        text = getattr(option, "help", None)
        if getattr(option, "hidden", False) or option.name == "help":
            continue
        assert text, f"{option.name} has no help"
        assert re.match(r"[A-Z].*[^.]\.$", text, re.DOTALL), f"{option.name}: {text}"
        assert len(text.split()) > 2, f"{option.name}: {text}"
