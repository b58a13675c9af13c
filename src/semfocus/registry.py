"""A table of values or classes by name; the same rules and messages for everything that can be registered.

mechanisms = Registry("mechanism")

@mechanisms.register
class TopK(Mechanism):
    name = "topk"

mechanisms.get("topk")       TopK
mechanisms.get("topkk")      UsageError: unknown mechanism 'topkk'; did you mean 'topk'? known: ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from semfocus.errors import UsageError, unknown

T = TypeVar("T")
V = TypeVar("V")


class Registry(Generic[T]):
    """Entries by name, in the order of registration.

    `modules` maps names to modules that register them when imported: `get` imports such a module on demand, so that a
    name can be validated without importing what it stands for.
    """

    every: ClassVar[list[Registry[Any]]] = []

    def __init__(self, kind: str, modules: Mapping[str, str] | None = None, hint: str = "") -> None:
        self.kind = kind
        self.hint = hint  # ends the message about an unknown name
        self._modules = dict(modules or {})
        self._entries: dict[str, Any] = {}
        self._origins: dict[str, set[str]] = {}  # name -> the modules that define and that register the entry
        Registry.every.append(self)

    def register(self, entry: V, name: str | None = None) -> V:
        """Add `entry` under `name` (default: its own `name`); returns it, so that this serves as a decorator.

        To register the very same entry again is harmless.
        """
        key = _name_of(entry, self.kind) if name is None else name
        home = self._modules.get(key)
        taken = home is not None and home != getattr(entry, "__module__", None)
        if taken or self._entries.get(key, entry) is not entry:
            raise UsageError(
                f"{_article(self.kind)} {self.kind} called {key!r} is registered already; choose another name"
            )
        self._entries[key] = entry
        self._origins[key] = {getattr(entry, "__module__", ""), _registering_module()}
        return entry

    @contextmanager
    def temporarily(self, entry: V, name: str | None = None) -> Iterator[V]:
        """Registered inside a `with` block, forgotten after it: for tests and notebooks."""
        before = set(self._entries)
        self.register(entry, name)
        added = set(self._entries) - before  # nothing where it was registered before, and stays so
        try:
            yield entry
        finally:
            for key in added:
                del self._entries[key]

    def get(self, name: str) -> T:
        """The entry called `name`."""
        if name not in self:
            raise unknown(self.kind, name, self.names(), f"{self.hint}; one of a plugin's needs --plugin MODULE")
        if name not in self._entries:
            import_module(self._modules[name])
        return self._entries[name]

    def names(self) -> list[str]:
        """All names: those of `modules` first, then in the order of registration."""
        return list(dict.fromkeys([*self._modules, *self._entries]))

    def entries(self) -> list[T]:
        """What has been registered so far; modules that nobody has asked for are not imported."""
        return list(self._entries.values())

    def origins(self) -> set[str]:
        """The modules that define, or have registered, what is registered now."""
        return {module for name in self._entries for module in self._origins.get(name, ())}

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


def _name_of(entry: object, kind: str) -> str:
    name = getattr(entry, "name", None)
    if not isinstance(name, str) or not name:
        raise UsageError(
            f"{entry!r} cannot be registered as {_article(kind)} {kind}: it needs a class attribute `name`, a text"
        )
    return name


def _registering_module() -> str:
    """The module whose code registers something: a plugin may register a class that another module defines."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "semfocus":
        frame = frame.f_back
    name = "" if frame is None else frame.f_globals.get("__name__", "")
    return "" if name.split(".")[0] in ("importlib", "_frozen_importlib", "_frozen_importlib_external") else name


def _article(kind: str) -> str:
    return "an" if kind[0] in "aeiou" else "a"
