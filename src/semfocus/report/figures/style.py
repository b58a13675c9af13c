"""One style for each mechanism: figures and the page draw `topk:5` alike, in light and in dark.

A family has a colour, a dash and a marker. A size other than 5 changes the shade and the dash, and so do global tokens.
The sizes of top-k are a scale of their own, in light from amber (one key) over orange to plum: the larger k, the
further from the background.
A value without a shade of its own (a large size, sinks, a window, a seed) is encoded in the dash digit by digit, so
that any two mechanisms differ. Colours differ in every kind of colour vision and have a contrast of at least 3 : 1 to
the background. Dashes differ without any colour.
"""

from __future__ import annotations

import math
import zlib
from typing import Literal, NamedTuple

from semfocus.analysis.groups import mechanism_parts

Theme = Literal["light", "dark"]
Dash = tuple[float, ...]  # lengths of ink and gap in turn; empty: a solid line


class MechanismStyle(NamedTuple):
    """How a mechanism is drawn."""

    colour: str  # on a light background
    dark: str  # on a dark background
    dash: Dash
    marker: str

    def on(self, theme: Theme) -> str:
        """The colour for a theme."""
        return self.dark if theme == "dark" else self.colour

    @property
    def linestyle(self) -> str | tuple[float, Dash]:
        """The dash in matplotlib's form."""
        return (0.0, self.dash) if self.dash else "-"


class Palette(NamedTuple):
    """The colours of everything that is not data."""

    ground: str
    ink: str
    quiet: str
    line: str


PALETTES: dict[Theme, Palette] = {
    "light": Palette("#ffffff", "#1b1b1f", "#5d6068", "#d9dbe0"),
    "dark": Palette("#15171c", "#ececea", "#a3a7b0", "#363a43"),
}
USUAL_SIZE = 5  # the paper's: it has the family's own shade
MOST_DOUBLINGS = 3  # of the size, that have a shade of their own
MOST_GLOBALS = 5  # that are counted by repeating the end of a dash
LEVELS = 12  # ink lengths in the dash of a mechanism that is not registered
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
# log2(k / 5) -> colour on light and on dark, of top-k; between them it is interpolated. 9 keys are as they always were.
_TOPK_SCALE = (
    (-2.33, "#bd8600", "#a9552f"),
    (-0.74, "#cf6d00", "#e06c2a"),
    (0.0, "#d1500b", "#ff8a3d"),
    (0.85, "#b5450a", "#ff9a57"),
    (1.58, "#932a22", "#ffb580"),
    (2.0, "#741d33", "#ffc8a0"),
    (3.0, "#4a0d3d", "#ffe0cb"),
)
STYLES = (*_FAMILIES.values(), *_OTHERS)  # for lines that do not stand for mechanisms
_STEP_DASHES: tuple[Dash, ...] = ((6, 2), (2.5, 1.5), (8, 2, 2, 2), (1, 1.2), (12, 3), (4, 1, 1, 1, 1, 1))
_MARKERS_WITH_EXTRAS = ("d", "<", ">", "H", "8")  # of no family


def mechanism_style(mechanism: str) -> MechanismStyle:
    """The style of a mechanism given in its text form: `topk:5`, `banded:5+1g`.

    A text that names no registered mechanism has a style too, computed from its letters.
    """
    parts = mechanism_parts(mechanism)
    if parts is None:
        return _hashed_style(mechanism)
    extras = dict(parts.extras)
    count = extras.pop("globals", 0) if parts.family in _WITH_GLOBALS else 0
    style = _with_globals(parts.family, count) if count else _FAMILIES.get(parts.family) or _hashed_style(parts.family)
    if parts.size is not None and parts.size != USUAL_SIZE:
        style = _with_size(style, parts.size)
    if parts.family == "topk" and parts.size is not None:
        style = _on_scale(style, parts.size)
    style = _with_extras(style, extras) if any(extras.values()) else style
    for value in parts.marked.values():
        style = _with_mark(style, value)
    return style


def step_style(style: MechanismStyle, step: int) -> MechanismStyle:
    """The style of the same mechanism under another setting, the `step`-th: a lighter shade and another dash."""
    if step == 0:
        return style
    share = min(0.09 * step, 0.36)
    return MechanismStyle(
        _mix(style.colour, PALETTES["light"].ground, share),
        _mix(style.dark, PALETTES["dark"].ground, share),
        _STEP_DASHES[(step - 1) % len(_STEP_DASHES)],
        style.marker,
    )


def _hashed_style(text: str) -> MechanismStyle:
    """One of a few colours and markers, and a dash of three random lengths, all from a hash of the text."""
    number, place = divmod(zlib.crc32(text.encode("utf-8", "replace")), len(_OTHERS))
    base = _OTHERS[place]
    lengths = [1 + number // LEVELS**i % LEVELS / 2 for i in range(3)]
    return base._replace(dash=base.dash + tuple(part for length in lengths for part in (length, 1.5)))


def _with_globals(family: str, count: int) -> MechanismStyle:
    base, plain = _WITH_GLOBALS[family], _FAMILIES[family]
    if count == 1:
        return base
    colour, dark = _mix(base.colour, plain.colour, 0.45), _mix(base.dark, plain.dark, 0.45)
    dash = base.dash + base.dash[-2:] * min(count - 1, MOST_GLOBALS - 1)
    return MechanismStyle(colour, dark, dash + (_digits(count) if count > MOST_GLOBALS else ()), base.marker)


def _with_size(base: MechanismStyle, size: int) -> MechanismStyle:
    doublings = math.log2(size / USUAL_SIZE)
    away = max(-MOST_DOUBLINGS, min(doublings, MOST_DOUBLINGS))
    dash = tuple(round(length * 1.5**away, 2) for length in base.dash) or (round(9 + 2 * away, 2), 1.5)
    # Towards the ink, where contrast can only grow. Sizes below 5 stay nearer to the family's colour.
    share = 0.16 * abs(away) if away > 0 else 0.08 * abs(away)
    dash += _digits(size) if doublings > MOST_DOUBLINGS else ()
    return _darker(base, share)._replace(dash=dash)


def _on_scale(base: MechanismStyle, size: int) -> MechanismStyle:
    """The colour of top-k at this k."""
    doublings = math.log2(size / USUAL_SIZE)
    place = max(_TOPK_SCALE[0][0], min(doublings, _TOPK_SCALE[-1][0]))
    upper = next(i for i, (at, _, _) in enumerate(_TOPK_SCALE) if place <= at)
    (low, *before), (high, *after) = _TOPK_SCALE[max(upper - 1, 0)], _TOPK_SCALE[upper]
    share = (place - low) / (high - low) if high > low else 0.0
    colour, dark = (_mix(one, other, share) for one, other in zip(before, after, strict=True))
    return base._replace(colour=colour, dark=dark)


def _with_extras(base: MechanismStyle, extras: dict[str, int]) -> MechanismStyle:
    """Each extra's digits follow the dash, with a gap that tells which extra it is."""
    dash, code = base.dash or (9, 1.5), 0
    for place, value in enumerate(extras.values()):
        if value:
            dash += _digits(value, gap=1.2 + 0.6 * place)
            code += 2**place
    marker = _MARKERS_WITH_EXTRAS[(code - 1) % len(_MARKERS_WITH_EXTRAS)]
    return _darker(base, 0.2)._replace(dash=dash, marker=marker)


def _with_mark(base: MechanismStyle, value: float) -> MechanismStyle:
    """The larger the marked number, the nearer to the ink; its digits follow the dash with the widest of gaps."""
    share = min(max(0.5 + 0.15 * math.log10(value), 0.1), 0.65) if value else 0.1
    return _darker(base, share)._replace(dash=(base.dash or (9, 1.5)) + _digits(value, gap=3.0), marker="h")


def _digits(value: float, gap: float = 0.9) -> Dash:
    """A stroke for each decimal digit, the longer the larger; 0.1 is 01."""
    digits = [int(digit) for digit in f"{value:.15g}" if digit.isdigit()]
    return tuple(length for digit in digits for length in (1 + digit / 2, gap))


def _darker(style: MechanismStyle, share: float) -> MechanismStyle:
    """Nearer to the ink of either theme."""
    return style._replace(colour=_mix(style.colour, "#000000", share), dark=_mix(style.dark, "#ffffff", share))


def _mix(colour: str, other: str, share: float) -> str:
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round((1 - share) * own + share * far):02x}" for own, far in pairs)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
