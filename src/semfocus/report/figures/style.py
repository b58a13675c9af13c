"""One look a mechanism, everywhere: figures and the page draw `topk:5` alike, in light and in dark.

A family has a colour, a dash and a marker; a size other than 5 changes the shade and the dash, and global tokens do
too. Colours differ to people who confuse red and green or blue and yellow, and stand out from the background by 3 : 1
or more; dashes tell mechanisms apart without any colour.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import Literal, NamedTuple

Theme = Literal["light", "dark"]
Dash = tuple[float, ...]  # lengths of ink and gap in turn; empty: a solid line


class MechanismStyle(NamedTuple):
    """How a mechanism is drawn."""

    colour: str  # on white
    dark: str  # on a dark ground
    dash: Dash
    marker: str

    def on(self, theme: Theme) -> str:
        """The colour for a theme."""
        return self.dark if theme == "dark" else self.colour

    @property
    def linestyle(self) -> str | tuple[float, Dash]:
        """The dash as matplotlib wants it."""
        return (0.0, self.dash) if self.dash else "-"


class Palette(NamedTuple):
    """What is not data: the ground, the ink, and what stands back."""

    ground: str
    ink: str
    quiet: str
    line: str


PALETTES: dict[Theme, Palette] = {
    "light": Palette("#ffffff", "#1b1b1f", "#5d6068", "#d9dbe0"),
    "dark": Palette("#15171c", "#ececea", "#a3a7b0", "#363a43"),
}
USUAL_SIZE = 5  # of the paper: it has the family's own shade
_FAMILIES = {
    "full": MechanismStyle("#1b1b1f", "#f2f2f0", (), "o"),
    "topk": MechanismStyle("#d1500b", "#ff8a3d", (), "D"),
    "bottomk": MechanismStyle("#d04fa8", "#f08fd0", (8, 2, 1.5, 2), "v"),
    "randomk": MechanismStyle("#6b5200", "#f4e27a", (3, 1.5, 1.5, 1.5), "P"),
    "banded": MechanismStyle("#005fa3", "#4a9be8", (6, 3), "s"),
    "block_local": MechanismStyle("#006b45", "#18b57f", (1.2, 1.6), "^"),
}
_WITH_GLOBALS = {
    "banded": MechanismStyle("#3f9bd8", "#9fd4ff", (6, 3, 1.2, 3), "s"),
    "block_local": MechanismStyle("#33a27a", "#8fe9c6", (1.2, 1.6, 1.2, 1.6, 4, 1.6), "^"),
}
_OTHERS = (
    MechanismStyle("#6f6f78", "#a9abb3", (10, 2), "X"),
    MechanismStyle("#7a4fc4", "#b99cf5", (10, 2, 3, 2), "h"),
    MechanismStyle("#8c4a2f", "#d8a184", (10, 2, 1, 2), "p"),
    MechanismStyle("#2f7f86", "#7fd0d6", (5, 2, 5, 4), "*"),
)
_FORM = re.compile(r"([a-z_]+)(?::(\d{1,9}))?(?:\+(\d{1,9})g)?")


def mechanism_style(mechanism: str) -> MechanismStyle:
    """The look of a mechanism given in its text form: `topk:5`, `banded:5+1g`."""
    family, size, tokens = _parts(mechanism)
    if family not in _FAMILIES:
        return _OTHERS[zlib.crc32(mechanism.encode("utf-8", "replace")) % len(_OTHERS)]
    base = _WITH_GLOBALS[family] if tokens and family in _WITH_GLOBALS else _FAMILIES[family]
    if tokens > 1:  # between the shades of none and one
        own = _FAMILIES[family]
        shades = _mixed(base.colour, own.colour, 0.45), _mixed(base.dark, own.dark, 0.45)
        base = MechanismStyle(*shades, base.dash + base.dash[-2:] * min(tokens - 1, 4), base.marker)
    dash = base.dash
    if size is None or size == USUAL_SIZE:
        return base
    away = max(-3.0, min(math.log2(max(size, 1) / USUAL_SIZE), 3.0))  # doublings
    stretched = tuple(round(length * 1.5**away, 2) for length in dash) or (round(9 + 2 * away, 2), 1.5)
    # Towards the ink: it can only gain contrast. Sizes below 5 stay nearer to the family's colour.
    share = 0.16 * abs(away) if away > 0 else 0.08 * abs(away)
    return MechanismStyle(
        _mixed(base.colour, "#000000", share), _mixed(base.dark, "#ffffff", share), stretched, base.marker
    )


def _parts(mechanism: str) -> tuple[str, int | None, int]:
    """`banded:5+1g` is ("banded", 5, 1)."""
    match = _FORM.fullmatch(mechanism)
    if match is None:
        return "", None, 0
    name, size, tokens = match.groups()
    return name, int(size) if size else None, int(tokens or 0)


def _mixed(colour: str, other: str, share: float) -> str:
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round((1 - share) * own + share * far):02x}" for own, far in pairs)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
