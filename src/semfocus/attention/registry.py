"""Mechanisms by name and by text form: `parse_mechanism("topk:8+4s") == TopK(8, sinks=4)`.

`semfocus.attention.mechanisms` registers the known ones and passes these functions on: import them from there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from semfocus.errors import UsageError, unknown

if TYPE_CHECKING:
    from semfocus.attention.mechanisms import Mechanism

M = TypeVar("M", bound="type[Mechanism]")
_registered: dict[str, type[Mechanism]] = {}


def register_mechanism(cls: M) -> M:
    """Make a mechanism known under `cls.name` to configs, the command line and the conformance suite."""
    if _registered.setdefault(cls.name, cls) is not cls:
        raise UsageError(f"a mechanism called {cls.name!r} is registered already; choose another name")
    return cls


def mechanism_names() -> list[str]:
    """The names of all registered mechanisms."""
    return list(_registered)


def is_registered(mechanism: Mechanism) -> bool:
    """Whether the text form of this value leads back to it."""
    return _registered.get(mechanism.name) is type(mechanism)


def mechanism_class(name: str) -> type[Mechanism]:
    """The class registered under `name`."""
    if name not in _registered:
        raise unknown("mechanism", name, _registered)
    return _registered[name]


def parse_mechanism(text: str) -> Mechanism:
    """The value that prints as `text`: `parse_mechanism("topk:8+4s") == TopK(8, sinks=4)`."""
    found = re.fullmatch(r"\s*([a-z_0-9]+)(?::([^+]*))?((?:\+[^+]*)*)\s*", text, flags=re.IGNORECASE)
    if not found:
        raise UsageError(f"mechanism {text!r} must look like full, topk:5, banded:9+1g or topk:8+4s+16w")
    cls = mechanism_class(found[1].lower())
    # __match_args__ are the fields in order; torch.compile can read them, unlike `dataclasses.fields`.
    sizes = [name for name in cls.__match_args__ if name not in cls.suffixes.values()]
    values: dict[str, int] = {}
    if found[2] is not None:
        if not sizes:
            raise UsageError(f"mechanism {text!r}: {cls.name} takes no size; write {cls.name!r}")
        values[sizes[0]] = _number(text, found[2])
    elif sizes:
        raise UsageError(f"mechanism {text!r} needs its size {sizes[0]}; write for example '{cls.name}:5'")
    for extra in filter(None, found[3].split("+")):
        letter = extra.strip()[-1:]
        if letter not in cls.suffixes or cls.suffixes[letter] in values:
            allowed = ", ".join(f"{key} ({name})" for key, name in cls.suffixes.items()) or "none"
            raise UsageError(f"mechanism {text!r}: {extra!r} is not one of its extras, each at most once: {allowed}")
        values[cls.suffixes[letter]] = _number(text, extra.strip()[:-1])
    return cls(**values)


def _number(text: str, digits: str) -> int:
    if not re.fullmatch(r"\d+", digits.strip()):
        raise UsageError(f"mechanism {text!r}: {digits!r} must be a whole number")
    return int(digits)
