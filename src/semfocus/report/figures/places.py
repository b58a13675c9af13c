"""The x axis of a sweep: a place for each value, and the sizes of one mechanism as a sequence.

sizes_of(["full", "topk:1", "topk:5", "topk:9"])      {"topk:1": 1, "topk:5": 5, "topk:9": 9}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from semfocus.analysis.comparison import BASE
from semfocus.analysis.groups import mechanism_parts
from semfocus.report.figures.panel_values import MECHANISM, metric_text
from semfocus.report.figures.style import MechanismStyle, mechanism_style

FEWEST_SIZES = 3  # of one mechanism, that make a sweep
SIZE_TITLES = {"topk": "keys kept, k", "bottomk": "keys kept, k", "randomk": "keys kept, k", "banded": "window"}


def sizes_of(mechanisms: Iterable[str]) -> dict[str, int]:
    """The mechanisms by size, smallest first, if apart from full attention all are sizes of one; else nothing."""
    parts = {name: mechanism_parts(name) for name in mechanisms if name != BASE}
    plain = [one for one in parts.values() if one and one.size and not any(one.extras.values()) and not one.marked]
    if len(plain) < max(FEWEST_SIZES, len(parts)) or len({one.family for one in plain}) > 1:
        return {}
    return dict(sorted(((name, one.size) for name, one in parts.items() if one and one.size), key=lambda pair: pair[1]))


@dataclass(frozen=True)
class Places:
    """The x axis of a sweep whose values are not numbers: a place for each, and where they have one, their styles."""

    names: tuple[str, ...] = ()
    styles: tuple[MechanismStyle, ...] = ()
    title: str = ""

    @staticmethod
    def of(field: str, values: Sequence[Any]) -> Places:
        """Places for these values; none if all are numbers. Sizes of one mechanism are named by the size alone."""
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            return Places(title=metric_text(field))
        if field != MECHANISM:
            return Places(tuple(map(str, values)), title=metric_text(field))
        sizes = sizes_of(map(str, values))
        names = tuple(sizes or map(str, values))
        styles = tuple(mechanism_style(name) for name in names)
        if not sizes:
            return Places(names, styles, metric_text(field))
        family = mechanism_parts(names[0])
        return Places(tuple(map(str, sizes.values())), styles, SIZE_TITLES.get(family.family if family else "", "size"))
