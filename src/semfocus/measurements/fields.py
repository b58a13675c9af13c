"""Typed access to a stored measurement. Anybody may have written it, so every value is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from semfocus.errors import CorruptData

LARGEST = 1e30  # beyond it no axis can be labelled
LONGEST = 10_000  # entries of a list


class Malformed(CorruptData):
    """A measurement that is not what its name says. The message gives the reason."""


@dataclass(frozen=True)
class Fields:
    """The entries of one JSON object. A method raises Malformed where an entry is missing or of the wrong kind."""

    values: Mapping[str, Any]
    largest: float = LARGEST  # of a number's magnitude

    def get(self, name: str, default: Any = None) -> Any:
        """The entry as it is, unchecked."""
        return self.values.get(name, default)

    def child(self, name: str) -> Fields:
        """The object under this name."""
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise Malformed(f"{name} is not an object")
        return Fields(value, self.largest)

    def children(self, name: str, each: str) -> Iterator[tuple[str, Fields]]:
        """The objects in the object under this name; `each` names one of them in an error."""
        for key, value in self.child(name).values.items():
            if not isinstance(value, Mapping):
                raise Malformed(f"{each} is not an object")
            yield str(key), Fields(value, self.largest)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number; `default` where there is no such entry."""
        value = self._checked(self.values.get(name, default), name)
        if value is None:
            raise Malformed(f"{name} is missing")
        return value

    def optional(self, name: str, called: str = "", least: float | None = None) -> float | None:
        """A finite number, of at least `least`, or None; `called` is its name in an error."""
        value = self._checked(self.values.get(name), called or name)
        if value is not None and least is not None and value < least:
            raise Malformed(f"{called or name} is below {least:g}")
        return value

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers."""
        values = self.optionals(name)
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            raise Malformed(f"{name} has gaps")
        return known

    def optionals(self, name: str) -> list[float | None]:
        """A list of finite numbers, None where one is missing."""
        return [self._checked(item, name) for item in self._list(name)]

    def table(self, name: str) -> list[list[float | None]]:
        """A list of lists of finite numbers or None."""
        return [Fields({name: row}, self.largest).optionals(name) for row in self._list(name)]

    def strings(self, name: str) -> set[str]:
        """The strings in the list under this name; none where there is no list."""
        value = self.values.get(name)
        return {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()

    def text(self, name: str) -> str | None:
        """The entry as text; None where there is none."""
        value = self.values.get(name)
        return None if value is None else str(value)

    def _list(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) > LONGEST:
            raise Malformed(f"{name} is not a list")
        return value

    def _checked(self, value: Any, name: str) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= self.largest:
            raise Malformed(f"{name} is not a number of at most {self.largest:g}")
        try:
            return float(value)
        except OverflowError:  # an integer beyond the range of a float
            raise Malformed(f"{name} is not a number of at most {self.largest:g}") from None
