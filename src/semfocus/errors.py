"""The few errors a user can meet. Each message names the field, the value and what would be right."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any


class SemfocusError(Exception):
    """Base of every error raised on purpose; `exit_code` is what the command line returns for it."""

    exit_code = 1


class UsageError(SemfocusError, ValueError):
    """A configuration, argument or input that cannot be meant."""

    exit_code = 2


class DataError(UsageError):
    """A user's data file or array that cannot be read as a task."""


class MissingExtra(SemfocusError, ImportError):
    """A feature whose optional dependency is not installed."""

    exit_code = 2

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'semfocus[{extra}]'")


class OtherFormat(UsageError):
    """A run written in a format that this version of semfocus does not read."""


class Diverged(SemfocusError):
    """A loss or gradient that is not finite."""

    exit_code = 3


class Locked(SemfocusError):
    """Another process works on this; the message names it."""

    exit_code = 4


class CorruptData(SemfocusError):
    """Something saved earlier is damaged and nothing intact is left to fall back on."""

    exit_code = 5


class StorageError(SemfocusError, OSError):
    """The file system refused: full, read-only, gone."""

    exit_code = 6


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> UsageError:
    """An error for a name that is not in a registry, with the nearest one and all the known ones.

    >>> str(unknown("task", "partiy", ["parity", "listops"]))
    "unknown task 'partiy'; did you mean 'parity'? known: listops, parity"
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return UsageError(f"unknown {kind} {name!r}{guess} known: {', '.join(names) or 'none'}{hint}")


def check_int(name: str, value: Any, at_least: int | None = None, at_most: int | None = None) -> int:
    """`value` as an int, or an error that names it: booleans, floats and texts are not whole numbers here."""
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
