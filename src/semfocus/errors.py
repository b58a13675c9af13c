"""The errors that semfocus raises. Each message names the field, its value and the fix."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class SemfocusError(Exception):
    """Base of all errors; `exit_code` is the exit code of the command line."""

    exit_code = 1


class UsageError(SemfocusError, ValueError):
    """A configuration, argument or input is invalid."""

    exit_code = 2


class DataError(UsageError):
    """A data file or array cannot be read as a task."""


class BadRow(DataError):
    """One row of a user's data cannot be used; `number` says which, `problem` why."""

    def __init__(self, place: str, number: int, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.number, self.problem = number, problem


class MissingExtra(SemfocusError, ImportError):
    """A feature needs an optional dependency that is not installed; without an `extra` it is installed by its name."""

    exit_code = 2

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        what = package if extra is None else f"'semfocus[{extra}]'"
        super().__init__(f"{purpose} needs the package {package}: pip install {what}")


class OtherFormat(UsageError):
    """A run has a format that this version of semfocus does not read."""


class Diverged(SemfocusError):
    """A loss or gradient is not finite."""

    exit_code = 3


class Locked(SemfocusError):
    """Another process holds the lock of a run; the message names it."""

    exit_code = 4


class CorruptData(SemfocusError):
    """A saved file is damaged, and no intact one can replace it."""

    exit_code = 5


class StorageError(SemfocusError, OSError):
    """The file system refuses to write: it is full, read-only or gone."""

    exit_code = 6


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> UsageError:
    """Return an error for a name that is not registered, with the nearest and all known names.

    >>> str(unknown("task", "partiy", ["parity", "listops"]))
    "unknown task 'partiy'; did you mean 'parity'? known: listops, parity"
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(str(name), names, n=1)
    guess = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    return UsageError(f"unknown {kind} {name!r}{guess} known: {', '.join(names) or 'none'}{hint}")


def nearby(path: Path) -> str:
    """Return a path relative to the working directory where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def printable(text: str) -> str:
    r"""Return a text in which control characters and halves of surrogate pairs stand as escapes; lines stay.

    Anybody may have written the name of a run's task: a terminal would obey the escape sequence in it.

    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return the path with `~` replaced by a home folder; a UsageError where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{str(path)!r:.100} begins with a user that this machine does not know; write ./~..."
        ) from None


def check_int(name: str, value: Any, at_least: int | None = None, at_most: int | None = None) -> int:
    """Return `value` as an int within the limits; otherwise raise a UsageError that names it. Booleans are refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} = {value!r} must be a whole number") from None
    if at_least is not None and number < at_least:
        raise UsageError(f"{name} = {number} must be at least {at_least}")
    if at_most is not None and number > at_most:
        raise UsageError(f"{name} = {number} must be at most {at_most}")
    return number


def check_float(name: str, value: Any, at_least: float, at_most: float) -> float:
    """Return `value` as a float within the limits; otherwise, NaN included, raise a UsageError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{name} = {value!r} must be a number")
    if not at_least <= value <= at_most:
        raise UsageError(f"{name} = {value!r} must be a number from {at_least:g} to {at_most:g}")
    return float(value)
