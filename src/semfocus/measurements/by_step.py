"""Measurements along the checkpoints of a run: `Induction`, the heads that copy.

    measured.steps, measured.best_heads          [0, 23, 47, ...], [0.01, 0.02, 0.4, ...]

Each checkpoint is stored as soon as it is measured; measurements of the same settings merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semfocus.measurements.fields import LARGEST, Fields, Malformed
from semfocus.measurements.kinds import Measurement


@dataclass(frozen=True)
class InductionPoint:
    """How a model treats tokens that come again, at one checkpoint."""

    tokens: float  # seen in training
    heads: list[list[float | None]]  # by layer and head: the mean weight on the token after the first occurrence
    loss: float  # on the repeated half
    accuracy: float

    @property
    def best(self) -> float:
        """The score of the head that copies most."""
        return max((score for layer in self.heads for score in layer if score is not None), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Induction(Measurement):
    """The induction score of every head on repeated random tokens, along training."""

    NAME = "induction"
    SETTINGS = ("rows", "half")
    DERIVED = ("steps", "tokens", "best_heads", "accuracies", "losses")

    rows: int
    half: int  # tokens that are repeated
    points: dict[int, InductionPoint]  # by step

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        return sorted(self.points)

    @property
    def tokens(self) -> list[float]:
        """The tokens seen up to each of them."""
        return [self.points[step].tokens for step in self.steps]

    @property
    def best_heads(self) -> list[float]:
        """The score of the best head at each of them."""
        return [self.points[step].best for step in self.steps]

    @property
    def accuracies(self) -> list[float]:
        """The accuracy on the repeated half at each of them."""
        return [self.points[step].accuracy for step in self.steps]

    @property
    def losses(self) -> list[float]:
        """The loss on the repeated half at each of them."""
        return [self.points[step].loss for step in self.steps]

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields, points = Fields(payload, largest), {}
        for key, own in fields.children("points", "a step"):
            if not (key.isascii() and key.isdigit()):
                raise Malformed(f"{key!r} is not a step")
            point = InductionPoint(own.number("tokens"), own.table("heads"), own.number("loss"), own.number("accuracy"))
            if not 0 <= point.best <= 1 or not 0 <= point.accuracy <= 1:
                raise Malformed(f"a score or the accuracy at step {key} is no share")
            points[int(key)] = point
        if not points:
            raise Malformed("it has no step")
        rows, half = int(fields.number("rows")), int(fields.number("half"))
        return cls(document=dict(payload), rows=rows, half=half, points=points)

    def merged(self, before: Self | None) -> Self:
        """With the steps that only `before` has."""
        if before is None:
            return self
        return self.from_payload(self.document | {"points": before.document["points"] | self.document["points"]})
