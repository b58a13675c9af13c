"""What was seen of a model, added up by layer and head as it runs.

    tally = Tally(k=8)
    with watching(model, tally.see) as watch: ...
    tally.layers()                                   one Layer for each attention, in the order of the first pass

A Summary holds quantiles. They run towards the worse end: "100" is the largest dispersion, but the smallest separation
and the smallest share of weight in the k heaviest, so that one column belongs together, as in the paper's Table 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from semfocus.analysis.conditions import finite
from semfocus.diagnostics.scores import PER_QUERY, Measured, examine
from semfocus.diagnostics.sketch import Sketch, add_rows
from semfocus.diagnostics.watching import Sighting
from semfocus.errors import UsageError, whole_number

PERCENTS = ("50", "75", "90", "95", "100")
MIRRORED = frozenset({"separation", "top_share"})  # the smaller, the worse
COUNTS = frozenset({"k95", "k99", "in_degree"})
NAMES = (*PER_QUERY, "in_degree", "sink_share")
Spread = Mapping[str, float | None]  # by percent; None: nothing was seen. Infinite values are infinite


@dataclass(frozen=True, eq=False)
class Summary:
    """Quantiles over the queries (in-degree: the keys; sink share: the rows) of a head, a layer or a model."""

    queries: int
    keys: int  # the most keys that one of them could see
    empty: int  # queries that may see no key: not part of any quantile
    not_finite: int  # queries with a score that is NaN or infinite: likewise
    spreads: Mapping[str, Spread]
    exact: bool  # or within the error of a sketch

    def at(self, name: str, percent: str = "50") -> float | None:
        """One number: `at("k95", "95")` keys hold 95 % of the weight for 95 % of the queries."""
        return self.spreads[name][percent]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: what is infinite is None, and named under `infinite`."""
        facts = {name: getattr(self, name) for name in ("queries", "keys", "empty", "not_finite", "exact")}
        plain = {name: {p: finite(v) for p, v in spread.items()} for name, spread in self.spreads.items()}
        infinite = {
            name: [p for p, v in spread.items() if v is not None and math.isinf(v)]
            for name, spread in self.spreads.items()
        }
        return facts | plain | {"infinite": {name: percents for name, percents in infinite.items() if percents}}


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention of a model: its module, all heads together, and each."""

    name: str
    whole: Summary
    heads: tuple[Summary, ...]


class Tally:
    """Sketches of everything seen so far."""

    def __init__(self, k: int, error: float = 0.01) -> None:
        self.k, self.error = whole_number("k", k, at_least=1), error
        self.longest = 0
        self._records: dict[tuple[str, int], _Record] = {}

    def see(self, sighting: Sighting) -> None:
        """Examine one attention and add it up."""
        measured = examine(sighting.problem, sighting.grouped, self.k)
        record = self._records.setdefault(sighting.place, _Record(measured.heads, self.error))
        if record.heads != measured.heads:
            name = sighting.name or "the model"
            raise UsageError(f"{name} has {measured.heads} heads in one pass and {record.heads} in another")
        record.add(measured)
        self.longest = max(self.longest, measured.longest)

    def layers(self) -> tuple[Layer, ...]:
        """A layer for each place at which attention was seen."""
        calls: dict[str, int] = {}
        for name, _ in self._records:
            calls[name] = calls.get(name, 0) + 1
        return tuple(
            Layer(
                _label(name, call, calls[name]),
                record.summary(None),
                tuple(record.summary(head) for head in range(record.heads)),
            )
            for (name, call), record in self._records.items()
        )

    def whole(self) -> Summary:
        """All layers together."""
        records = list(self._records.values())
        pooled = {name: Sketch.pooled(record.sketches[name] for record in records) for name in NAMES}
        counted = [sum(int(getattr(record, name).sum()) for record in records) for name in ("empty", "not_finite")]
        return _summary(pooled, None, max((record.most_seen for record in records), default=0), *counted)


class _Record:
    """One place."""

    def __init__(self, heads: int, error: float) -> None:
        self.heads = heads
        self.sketches = {name: Sketch(heads, error) for name in NAMES}
        self.empty, self.not_finite = (torch.zeros(heads, dtype=torch.int64) for _ in range(2))
        self.most_seen = 0

    def add(self, measured: Measured) -> None:
        if measured.queries:
            sketches = [self.sketches[name] for name in measured.queries]
            add_rows(sketches, measured.query_heads, torch.stack(list(measured.queries.values())))
        self.sketches["in_degree"].add(measured.key_heads, measured.in_degree)
        self.sketches["sink_share"].add(measured.sink_heads, measured.sink_share)
        self.empty = self.empty.to(measured.empty.device) + measured.empty
        self.not_finite = self.not_finite.to(measured.not_finite.device) + measured.not_finite
        self.most_seen = max(self.most_seen, measured.most_seen)

    def summary(self, head: int | None) -> Summary:
        pick = slice(None) if head is None else head
        lost = int(self.empty[pick].sum()), int(self.not_finite[pick].sum())
        return _summary(self.sketches, head, self.most_seen, *lost)


def _summary(sketches: Mapping[str, Sketch], group: int | None, keys: int, empty: int, not_finite: int) -> Summary:
    return Summary(
        sketches["delta_full"].count(group),
        keys,
        empty,
        not_finite,
        {name: spread(sketch, group, name in MIRRORED, name in COUNTS) for name, sketch in sketches.items()},
        all(sketch.is_exact for sketch in sketches.values()),
    )


def spread(
    sketch: Sketch, group: int | None = None, mirrored: bool = False, whole: bool = False
) -> dict[str, float | None]:
    """The quantiles at PERCENTS, or, mirrored, at 100 minus each; those of `whole` numbers are whole again."""
    levels = [1 - int(p) / 100 if mirrored else int(p) / 100 for p in PERCENTS]
    values = sketch.quantiles(levels, group)
    if whole and not sketch.is_exact:
        values = [value if value is None or math.isinf(value) else float(round(value)) for value in values]
    return dict(zip(PERCENTS, values, strict=True))


def _label(name: str, call: int, calls: int) -> str:
    if calls == 1:
        return name or "attention"
    return f"{name or 'attention'} #{call}"
