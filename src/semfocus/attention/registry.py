"""Mechanisms and normalisers by name and by text form.

    parse_mechanism("topk:8+4s") == TopK(8, sinks=4)
    parse_mechanism("topk:5~0.1") == NoisyTopK(5, sigma=0.1)
    parse_normaliser("sigmoid:-2.5") == Sigmoid(bias=-2.5)

Import these functions from `semfocus.attention.mechanisms` and `semfocus.attention.normalisers`, which register the
known ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from semfocus.attention.base import size_fields
from semfocus.errors import UsageError
from semfocus.registry import Registry

if TYPE_CHECKING:
    from semfocus.attention.base import Mechanism
    from semfocus.attention.normalisers import Normaliser

M = TypeVar("M", bound="type[Mechanism]")
N = TypeVar("N", bound="type[Normaliser]")
MECHANISMS: Registry[type[Mechanism]] = Registry("mechanism")
NORMALISERS: Registry[type[Normaliser]] = Registry("normaliser")


def register_mechanism(cls: M) -> M:
    """Make a mechanism known under `cls.name` to configs, the command line and the conformance suite."""
    _check_name(cls, "mechanism")
    sizes = size_fields(cls)
    if len(sizes) > 1:
        raise UsageError(
            f"{cls.__name__} has the fields {', '.join(sizes)}; a text form has room for one size: give the "
            "others letters in `suffixes`"
        )
    for mark in cls.marks:
        known = None if cls.variant_of is None else _variant(cls.variant_of, mark)
        if known is not None and known is not cls:
            raise UsageError(
                f"{cls.__name__}: '{cls.variant_of}:5{mark}...' is the text form of {known.__name__} already; choose "
                "another mark, or leave out variant_of"
            )
    return MECHANISMS.register(cls)


def register_normaliser(cls: N) -> N:
    """Make a normaliser known under `cls.name` to configs, the command line and the conformance suite."""
    _check_name(cls, "normaliser")
    if len(cls.__match_args__) > 1:
        raise UsageError(
            f"{cls.__name__} has {len(cls.__match_args__)} fields; a normaliser's text form has room for one"
        )
    return NORMALISERS.register(cls)


def mechanism_names() -> list[str]:
    """The names of all registered mechanisms."""
    return MECHANISMS.names()


def normaliser_names() -> list[str]:
    """The names of all registered normalisers."""
    return NORMALISERS.names()


def is_registered(mechanism: Mechanism) -> bool:
    """Whether the text form of this value leads back to its very class."""
    return mechanism.name in MECHANISMS and MECHANISMS.get(mechanism.name) is type(mechanism)


def is_registered_normaliser(normaliser: Normaliser) -> bool:
    """Whether the text form of this value leads back to its very class."""
    return normaliser.name in NORMALISERS and NORMALISERS.get(normaliser.name) is type(normaliser)


def mechanism_class(name: str) -> type[Mechanism]:
    """The class registered under `name`."""
    return MECHANISMS.get(name)


def parse_mechanism(text: str) -> Mechanism:
    """The value that prints as `text`: `parse_mechanism("topk:8+4s") == TopK(8, sinks=4)`."""
    match = re.fullmatch(r"\s*([a-z_0-9]+)(?::([^+~]*))?(?:(~)([^+]*))?((?:\+[^+]*)*)\s*", text, flags=re.IGNORECASE)
    if re.search(r"[>@/*]", text):
        raise UsageError(
            f"mechanism {text!r} is a plan of several, which whole models in training take as attention.mechanism; "
            "give one mechanism, for example topk:8"
        )
    if not match:
        raise UsageError(f"mechanism {text!r} must look like full, topk:5, banded:9+1g, topk:8+4s+16w or topk:5~0.1")
    cls = _class_of(text, match[1].lower(), match[3])
    sizes = size_fields(cls)
    values: dict[str, float] = {}
    if match[2] is not None:
        if not sizes:
            raise UsageError(f"mechanism {text!r}: {cls.name} takes no size; write {cls.name!r}")
        values[sizes[0]] = _whole_number(text, match[2])
    elif sizes:
        raise UsageError(f"mechanism {text!r} needs its size {sizes[0]}; write for example '{cls.name}:5'")
    if match[3] is not None:
        values[cls.marks[match[3]]] = _number(text, match[4], cls.marks[match[3]])
    for extra in filter(None, match[5].split("+")):
        letter = extra.strip()[-1:]
        if letter not in cls.suffixes or cls.suffixes[letter] in values:
            allowed = ", ".join(f"{key} ({name})" for key, name in cls.suffixes.items()) or "none"
            raise UsageError(f"mechanism {text!r}: {extra!r} is not one of its extras, each at most once: {allowed}")
        values[cls.suffixes[letter]] = _whole_number(text, extra.strip()[:-1])
    return cls(**values)


def parse_normaliser(text: str) -> Normaliser:
    """The value that prints as `text`: `parse_normaliser("sigmoid:-2.5") == Sigmoid(bias=-2.5)`."""
    name, colon, number = text.strip().partition(":")
    cls = NORMALISERS.get(name.strip().lower())
    if not colon:
        return cls()
    if not cls.__match_args__:
        raise UsageError(f"normaliser {text!r}: {cls.name} takes no number; write {cls.name!r}")
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"normaliser {text!r}: {number!r} must be a number ({cls.__match_args__[0]})") from None
    return cls(**{cls.__match_args__[0]: value})


def _class_of(text: str, name: str, mark: str | None) -> type[Mechanism]:
    """The mechanism of this name; with a mark, the one that has it, or the variant that does."""
    cls = mechanism_class(name)
    if mark is None or mark in cls.marks:
        return cls
    variant = _variant(name, mark)
    if variant is None:
        takers = ", ".join(
            sorted(known.variant_of or known.name for known in MECHANISMS.entries() if mark in known.marks)
        )
        raise UsageError(f"mechanism {text!r}: {name} takes no {mark!r}; it follows the size of {takers}")
    return variant


def _variant(name: str, mark: str) -> type[Mechanism] | None:
    known = [cls for cls in MECHANISMS.entries() if cls.variant_of == name and mark in cls.marks]
    return known[0] if known else None


def _number(text: str, digits: str, field: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise UsageError(f"mechanism {text!r}: {digits!r} must be a number ({field})") from None


def _whole_number(text: str, digits: str) -> int:
    if not re.fullmatch(r"\d+", digits.strip()):
        raise UsageError(f"mechanism {text!r}: {digits!r} must be a whole number")
    return int(digits)


def _check_name(cls: type, kind: str) -> None:
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z_0-9]+", name):
        raise UsageError(f"{cls.__name__}.name = {name!r} must be small letters, digits and _, to name the {kind}")
