"""Measurements by the length of the examples: `LengthCurve` (accuracy) and `Smoothness` (Lipschitz constants).

    curve.area                   the mean accuracy over the logarithm of the length
    smoothness.exponent          the slope of log constant in log length

Each length is stored as soon as it is measured; measurements of the same settings merge.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from semfocus.measurements.fields import LARGEST, Fields, Malformed
from semfocus.measurements.kinds import Measurement


@dataclass(frozen=True)
class LengthPoint:
    """How good a model is at one length."""

    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class LengthCurve(Measurement):
    """Loss and accuracy of a run by the length of its test examples."""

    NAME = "lengths"
    SETTINGS = ("step", "rows")

    DERIVED = ("area",)
    rows: int
    points: dict[int, LengthPoint]  # by length

    @property
    def area(self) -> float | None:
        """The mean accuracy over the logarithm of the length, from the shortest to the longest; None below two."""
        known = {n: point.accuracy for n, point in self.points.items() if point.accuracy is not None}
        return mean_over_log(known) if len(known) == len(self.points) else None

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        points = {n: LengthPoint(own.optional("loss"), own.optional("accuracy")) for n, own in _by_length(fields)}
        return cls(document=dict(payload), rows=int(fields.number("rows")), points=points)

    def merged(self, before: Self | None) -> Self:
        """With the lengths that only `before` has."""
        return self if before is None else self.from_payload(_with_points_of(self.document, before.document))


@dataclass(frozen=True)
class SmoothPoint:
    """Local Lipschitz constants of a model's attention layers at one length: geometric means over layers and rows."""

    constant: float  # exact
    certified: float  # by the norms measured at these inputs, for a fixed choice of keys
    sqrt_n: float  # by the bound of arXiv 2312.14820
    settled: float  # share of the power iterations that came to rest


@dataclass(frozen=True, kw_only=True)
class Smoothness(Measurement):
    """The exact local Lipschitz constant of trained attention layers by the number of tokens."""

    NAME = "smoothness"
    SETTINGS = ("step", "rows")
    DERIVED = ("exponent", "lengths", "constants")

    rows: int
    points: dict[int, SmoothPoint]  # by length

    @property
    def lengths(self) -> list[int]:
        """All lengths, in order."""
        return sorted(self.points)

    @property
    def constants(self) -> list[float]:
        """The constant at each of them."""
        return [self.points[n].constant for n in self.lengths]

    @property
    def exponent(self) -> float | None:
        """The slope of log constant in log length, by least squares; None below three lengths."""
        return log_slope({n: point.constant for n, point in self.points.items()})

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields, points = Fields(payload, largest), {}
        for n, own in _by_length(fields):
            points[n] = SmoothPoint(*(own.number(name) for name in ("constant", "certified", "sqrt_n", "settled")))
            if points[n].constant <= 0:
                raise Malformed(f"its constant at length {n} is not positive")
        return cls(document=dict(payload), rows=int(fields.number("rows")), points=points)

    def merged(self, before: Self | None) -> Self:
        """With the lengths that only `before` has."""
        return self if before is None else self.from_payload(_with_points_of(self.document, before.document))


def mean_over_log(values: Mapping[int, float]) -> float | None:
    """The area below values by length, over the logarithm of the length, divided by its width; None below two."""
    if len(values) < 2:
        return None
    known = sorted(values.items())
    pieces = [(math.log(b / a), (low + high) / 2) for (a, low), (b, high) in pairwise(known)]
    return sum(width * height for width, height in pieces) / sum(width for width, _ in pieces)


def log_slope(values: Mapping[int, float]) -> float | None:
    """The least-squares slope of log value in log length; None below three lengths."""
    if len(values) < 3:
        return None
    x, y = [math.log(n) for n in values], [math.log(value) for value in values.values()]
    return statistics.linear_regression(x, y).slope


def _by_length(fields: Fields) -> list[tuple[int, Fields]]:
    """The points of a measurement by length; at least one."""
    points = []
    for key, own in fields.children("points", "a length"):
        if not (key.isascii() and key.isdigit() and int(key) > 0):
            raise Malformed(f"{key!r} is not a length")
        points.append((int(key), own))
    if not points:
        raise Malformed("it has no length")
    return points


def _with_points_of(document: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return document | {"points": before["points"] | document["points"]}
