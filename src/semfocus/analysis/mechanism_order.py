"""The order in which mechanisms are shown, and the parts of a mechanism that order and drawing style depend on."""

from __future__ import annotations

from typing import NamedTuple

from semfocus.attention.mechanisms import parse_mechanism
from semfocus.errors import UsageError

FAMILIES = ("full", "topk", "bottomk", "randomk", "banded", "block_local")  # the paper's, in the order of its legends


class MechanismParts(NamedTuple):
    """`banded:5+1g` is ("banded", 5, {"globals": 1})."""

    family: str
    size: int | None  # None: it takes none
    extras: dict[str, int]  # every optional field by name, 0 where it is not used


def mechanism_parts(text: str) -> MechanismParts | None:
    """The parts of a mechanism in its text form; None where no registered mechanism has this text."""
    try:
        mechanism = parse_mechanism(text)
    except (UsageError, ValueError):
        return None
    values: dict[str, int] = {name: getattr(mechanism, name) for name in mechanism.__match_args__}
    extras = {name: values.pop(name) for name in mechanism.suffixes.values()}
    return MechanismParts(mechanism.name, next(iter(values.values()), None), extras)


def mechanism_order(text: str) -> tuple[int, tuple[int, ...], int, str]:
    """A sort key: full attention first, then by family, extras (fewest first) and size; unknown mechanisms last."""
    parts = mechanism_parts(text)
    if parts is None:
        return len(FAMILIES) + 1, (), 0, text
    rank = FAMILIES.index(parts.family) if parts.family in FAMILIES else len(FAMILIES)
    return rank, tuple(parts.extras.values()), parts.size or 0, text
