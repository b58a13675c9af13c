"""One colour and one dash a mechanism, everywhere: colour-blind safe (Okabe and Ito), told apart in grey too."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """How a mechanism is drawn."""

    colour: str
    dash: str | tuple[float, tuple[float, ...]]
    marker: str


_LOOKS = {
    "full": Look("#000000", "-", "o"),
    "topk": Look("#D55E00", "-", "D"),
    "banded": Look("#0072B2", "--", "s"),
    "block_local": Look("#009E73", ":", "^"),
    "bottomk": Look("#CC79A7", "-.", "v"),
    "randomk": Look("#E69F00", (0, (3, 1, 1, 1, 1, 1)), "P"),
}
_WITH_GLOBALS = {"banded": Look("#56B4E9", (0, (5, 1)), "s"), "block_local": Look("#8FCB6B", (0, (1, 1)), "^")}
_OTHER = Look("#7F7F7F", "-", "X")


def look(mechanism: str) -> Look:
    """The look of a mechanism given in its text form: `topk:5`, `banded:5+1g`."""
    name, _, rest = mechanism.partition(":")
    if "g" in rest and name in _WITH_GLOBALS:
        return _WITH_GLOBALS[name]
    return _LOOKS.get(name, _OTHER)
