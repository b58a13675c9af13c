"""One frozen type for each kind of measurement: `Dispersion`, `MaskStability`, `Sharpness`, `SurfaceMeta`, ...

    dispersion = Dispersion.from_payload(payload)           Malformed, with the reason, where it is not one
    dispersion.checkpoints["last"].delta_full["95"]

A type has the fields that figures, tables and verdicts use: every number is finite or None, every list has the right
length. `document` is the whole JSON object, in which a kind may have more.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from semfocus.measurements.fields import LARGEST, Fields, Malformed

PERCENTS = ("50", "75", "90", "95", "100")  # of the queries
USUAL_PERCENT = "95"  # where one number is wanted: figures, tables and verdicts take the same
SPREADS = ("delta", "delta_full", "delta_heavy", "separation", "in_degree")
PERCENTILES = (50, 75, 95, 99)  # of the slopes of a surface
DIRECTIONS = ("random", "path", "hessian")
LAST = "last"  # the newest checkpoint
FEWEST = 2  # keys of a query in a measurement that does not say it: what holds for two keys holds for more
FINEST = 10_000  # points along a side of a surface


@dataclass(frozen=True, kw_only=True)
class Measurement(ABC):
    """What all kinds have: the stored document, and the settings that tell measurements of one run apart."""

    NAME: ClassVar[str]
    SETTINGS: ClassVar[tuple[str, ...]]
    DERIVED: ClassVar[tuple[str, ...]] = ()  # properties that panels may name as they name fields of the document
    document: dict[str, Any] = field(repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        return {name: self.document.get(name) for name in self.SETTINGS}

    @classmethod
    @abstractmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        """Check a stored document; Malformed where it is not of this kind."""

    def merged(self, before: Self | None) -> Self:
        """With what only the measurement `before`, of the same settings, has."""
        return self


@dataclass(frozen=True)
class Spread:
    """A quantity at PERCENTS of the queries: a finite number, or None where it is infinite or unknown."""

    values: Mapping[str, float | None]
    infinite: frozenset[str] = frozenset()  # percents at which it is infinite: nothing is dropped

    def __getitem__(self, percent: str) -> float | None:
        return self.values[percent]

    def or_infinite(self, percent: str) -> float | None:
        """The value, inf where it is infinite, None where it is unknown."""
        value = self.values[percent]
        return float("inf") if value is None and percent in self.infinite else value


@dataclass(frozen=True)
class Checkpoint:
    """How a model attends at one checkpoint, over all layers."""

    epoch: float
    keys: int  # of the query that sees most
    fewest_keys: int  # of the query that sees fewest, of those that see more than one
    uneven: bool  # whether queries of one sequence may see different keys
    queries: int | None
    not_finite: int  # queries left out: a score is not finite
    empty: int  # queries left out: they see no key
    delta: Spread
    delta_full: Spread
    delta_heavy: Spread
    separation: Spread
    in_degree: Spread

    @staticmethod
    def of(fields: Fields) -> Checkpoint:
        infinite = fields.get("infinite")
        infinite = Fields(infinite if isinstance(infinite, Mapping) else {})
        spreads = {}
        for name in SPREADS:
            values = fields.child(name)
            known = {percent: values.optional(percent, f"{name} {percent}", least=0.0) for percent in PERCENTS}
            spreads[name] = Spread(known, frozenset(infinite.strings(name)) & frozenset(PERCENTS))
        keys = max(1, int(fields.number("keys")))
        queries = fields.optional("queries")
        return Checkpoint(
            epoch=max(0.0, fields.number("epoch")),
            keys=keys,
            fewest_keys=max(1, int(fields.number("fewest_keys", min(FEWEST, keys)))),
            uneven=bool(fields.number("uneven", 1)),
            queries=None if queries is None else int(queries),
            not_finite=int(fields.number("not_finite", 0)),
            empty=int(fields.number("empty", 0)),
            **spreads,
        )

    def at(self, name: str, percent: str) -> float | None:
        """One of SPREADS at one of PERCENTS."""
        return getattr(self, name)[percent]


@dataclass(frozen=True, kw_only=True)
class Dispersion(Measurement):
    """How the models of a run attend, checkpoint by checkpoint."""

    NAME = "dispersion"
    SETTINGS = ("k", "split", "rows", "error")
    CHECKPOINTS: ClassVar[str] = "checkpoints"

    k: int
    split: str | None
    rows: int
    checkpoints: dict[str, Checkpoint]  # by epoch, and LAST

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        checkpoints = {key: Checkpoint.of(own) for key, own in fields.children(cls.CHECKPOINTS, "a checkpoint")}
        if not checkpoints:
            raise Malformed("it has no checkpoint")
        if fields.number("k") < 1:
            raise Malformed("k is below 1")
        return cls(
            document=dict(payload),
            k=int(fields.number("k")),
            split=fields.text("split"),
            rows=int(fields.number("rows")),
            checkpoints=checkpoints,
        )

    def only(self, keys: Iterable[str]) -> Self:
        """The same with these checkpoints alone."""
        stored = self.document[self.CHECKPOINTS]
        return self._with({key: stored[key] for key in keys})

    def merged(self, before: Self | None) -> Self:
        """With the checkpoints that only `before` has. One that was the last then and is older now gets its epoch's
        name."""
        if before is None:
            return self
        earlier, now = before.document[self.CHECKPOINTS], self.document[self.CHECKPOINTS]
        last, newest = before.checkpoints.get(LAST), max(one.epoch for one in self.checkpoints.values())
        if last is not None and last.epoch < newest:
            earlier = {(f"{last.epoch:g}" if key == LAST else key): one for key, one in earlier.items()}
        return self._with(earlier | now)

    def _with(self, checkpoints: dict[str, Any]) -> Self:
        return self.from_payload(self.document | {self.CHECKPOINTS: checkpoints}, float("inf"))


@dataclass(frozen=True)
class BySeparation:
    """The share of keys that stay, for queries grouped by their separation."""

    borders: list[float]  # between the groups
    kept: list[list[float | None]]  # one list for each noise, one number for each group


@dataclass(frozen=True, kw_only=True)
class MaskStability(Measurement):
    """The share of the k heaviest keys that stay when noise is added to the input."""

    NAME = "mask_stability"
    SETTINGS = ("k", "split", "rows", "checkpoint", "noise")

    k: int
    split: str | None
    rows: int
    checkpoint: str
    noise: list[float]  # relative to the standard deviation of the embeddings
    kept: list[float | None]  # one number for each noise
    separation: dict[str, float | None]  # by percent; empty where it was not measured
    by_separation: BySeparation

    @property
    def mean_kept(self) -> float | None:
        """The mean of `kept` over the noise; None where one of them is missing."""
        known = [share for share in self.kept if share is not None]
        return statistics.fmean(known) if known and len(known) == len(self.kept) else None

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        noise, kept, groups = fields.numbers("noise"), fields.optionals("kept"), fields.child("by_separation")
        borders, shares = groups.numbers("borders"), groups.table("kept")
        if not noise or {len(kept), len(shares)} != {len(noise)} or any(len(row) != len(borders) + 1 for row in shares):
            raise Malformed("noise, kept and by_separation do not fit together")
        separation = fields.child("separation") if "separation" in payload else Fields({})
        return cls(
            document=dict(payload),
            k=int(fields.number("k")),
            split=fields.text("split"),
            rows=int(fields.number("rows")),
            checkpoint=fields.text("checkpoint") or LAST,
            noise=noise,
            kept=kept,
            separation={percent: separation.optional(percent) for percent in PERCENTS},
            by_separation=BySeparation(borders, shares),
        )


@dataclass(frozen=True, kw_only=True)
class Sharpness(Measurement):
    """Gradient and curvature of the training loss at the kept checkpoints, one number for each."""

    NAME = "sharpness"
    SETTINGS = ("steps", "rows", "seed", "lanczos_steps")

    rows: int
    epochs: list[float]
    gradient_norm: list[float | None]
    hessian_top: list[float | None]
    certified: list[float | None] | None  # bounds on the gradient; None where the theory gives none

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        epochs = [max(0.0, epoch) for epoch in fields.numbers("epochs")]
        measured = {name: fields.optionals(name) for name in ("gradient_norm", "hessian_top")}
        certified = None if fields.get("certified") is None else fields.optionals("certified")
        lists = [*measured.values(), *([] if certified is None else [certified])]
        if not epochs or any(len(values) != len(epochs) for values in lists):
            raise Malformed("its lists differ in length")
        rows = int(fields.number("rows"))
        return cls(document=dict(payload), rows=rows, epochs=epochs, certified=certified, **measured)


@dataclass(frozen=True, kw_only=True)
class SurfaceMeta(Measurement):
    """Where the grid of a loss surface lies, and how steep the surface is. The losses are stored apart."""

    NAME = "surface"
    SETTINGS = ("key",)

    directions: str  # one of DIRECTIONS
    grid: int  # points along a side
    extent: float  # coordinates reach from -extent to extent
    rows: int
    squares: list[float]  # half sides of the squares inside which slopes are taken
    per_step: dict[str, list[float | None]]  # by percentile, one slope for each square
    per_distance: dict[str, list[float | None]]
    step: int  # of training; 0 in a document that does not say it
    key: str  # digest of the settings

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        squares, directions = fields.numbers("squares"), fields.get("directions")
        if directions not in DIRECTIONS:
            raise Malformed(f"directions is not one of {', '.join(DIRECTIONS)}")
        grid, extent = fields.number("grid"), fields.number("extent")
        if not 2 <= grid <= FINEST or extent <= 0:
            raise Malformed(f"it has no grid of 2 to {FINEST} points a side")
        slopes = {}
        for way in ("per_step", "per_distance"):
            rows = fields.child(way)
            slopes[way] = {str(p): rows.optionals(str(p)) for p in PERCENTILES}
            if any(len(row) != len(squares) for row in slopes[way].values()):
                raise Malformed(f"{way} has not one number a square")
        return cls(
            document=dict(payload),
            directions=directions,
            grid=int(grid),
            extent=extent,
            rows=int(fields.number("rows")),
            squares=squares,
            step=int(fields.number("step", 0)),
            key=fields.text("key") or "",
            **slopes,
        )


@dataclass(frozen=True, kw_only=True)
class KeptKeys(Measurement):
    """How many keys have a weight other than zero, on average over the queries of a trained model."""

    NAME = "kept_keys"
    SETTINGS = ("step", "split", "rows")

    rows: int
    mean: float
    layers: list[float]
    keys: float  # that a query sees, on average

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        mean, layers, keys = fields.number("mean"), fields.numbers("layers"), fields.number("keys")
        if not layers or not 0 <= mean <= keys:
            raise Malformed("its mean is not between none and all of the keys, or it has no layer")
        return cls(document=dict(payload), rows=int(fields.number("rows")), mean=mean, layers=layers, keys=keys)
