"""Statistics of the attention of a model, aggregated by layer and head while it runs.

    aggregate = Aggregate(k=8)
    with watching(model, aggregate.see) as watch: ...
    aggregate.layers()                               one Layer for each attention, in the order of the first pass

A Summary holds quantiles. They run towards the worse end: "100" is the largest dispersion, but the smallest separation
and the smallest share of weight in the k heaviest, so that one column belongs together, as in the paper's Table 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semfocus.analysis.table6 import finite
from semfocus.diagnostics.attention_stats import PER_QUERY, UNSEEN, Measured, Values, examine, heads_of
from semfocus.diagnostics.batching import CallBatch, CallBatcher
from semfocus.diagnostics.capture import CapturedCall
from semfocus.diagnostics.sketch import Sketch, add_to_all
from semfocus.errors import UsageError, check_int

PERCENTS = ("50", "75", "90", "95", "100")
MIRRORED = frozenset({"separation", "top_share"})  # the smaller, the worse
COUNTS = frozenset({"k95", "k99", "in_degree"})
KINDS = {"queries": PER_QUERY, "in_degree": ("in_degree",), "sink_share": ("sink_share",)}  # fields of Measured
SUMMED = ("empty", "not_finite", "uneven")  # counts of Measured, of which heads and layers have the sum
NAMES = tuple(name for names in KINDS.values() for name in names)
Spread = Mapping[str, float | None]  # by percent; None: nothing was seen. Infinite values are infinite


@dataclass(frozen=True, eq=False)
class Summary:
    """Quantiles over the queries (in-degree: the keys; sink share: the rows) of a head, a layer or a model."""

    queries: int
    keys: int  # the most keys that one of them could see
    fewest_keys: int  # the fewest, of those that see more than one: what holds for all queries holds for these
    empty: int  # queries that may see no key: not part of any quantile
    not_finite: int  # queries with a score that is NaN or infinite: likewise
    uneven: int  # rows (of a head) whose queries do not all see the same keys, or are more than these
    spreads: Mapping[str, Spread]
    exact: bool  # or within the error of a sketch

    def at(self, name: str, percent: str = "50") -> float | None:
        """One number: `at("k95", "95")` keys hold 95 % of the weight for 95 % of the queries."""
        return self.spreads[name][percent]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: what is infinite is None, and named under `infinite`."""
        names = ("queries", "keys", "fewest_keys", *SUMMED, "exact")
        facts = {name: getattr(self, name) for name in names}
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


class Aggregate:
    """Sketches of the statistics of all calls so far."""

    def __init__(self, k: int, error: float = 0.01) -> None:
        self.k, self.error = check_int("k", k, at_least=1), error
        self.longest = 0
        self._records: dict[tuple[str, int], _Record] = {}
        self._batcher = CallBatcher()

    def see(self, call: CapturedCall) -> None:
        """Measure one call and add it, at once or together with others of its shape."""
        heads = heads_of(call.inputs, call.grouped)
        record = self._records.get(call.place)
        if record is None:
            record = self._records[call.place] = _Record(heads, self.error)
        if record.heads != heads:
            name = call.name or "the model"
            raise UsageError(f"{name} has {heads} heads in one pass and {record.heads} in another")
        self.longest = max(self.longest, call.inputs.num_keys)
        self._add(self._batcher.put(call))

    def flush(self) -> None:
        """Measure the calls that are held back."""
        self._add(self._batcher.take())

    def _add(self, batches: Iterable[CallBatch]) -> None:
        for batch in batches:
            places = list(dict.fromkeys(batch.places))
            owners = [places.index(place) for place in batch.places] if batch.several else None
            measured = examine(batch.inputs, batch.grouped, self.k, owners)
            _add_up(measured, [self._records[place] for place in places])

    def layers(self) -> tuple[Layer, ...]:
        """A layer for each place at which attention was seen."""
        self.flush()
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
        self.flush()
        records = list(self._records.values())
        pooled = {kind: Sketch.pooled(record.sketches[kind] for record in records) for kind in KINDS}
        counted = {name: sum(sum(record.summed[name]) for record in records) for name in SUMMED}
        most = max((record.most_seen for record in records), default=0)
        fewest = min((record.fewest_seen for record in records), default=UNSEEN)
        return _summary(pooled, None, most, fewest, counted)


class _Record:
    """One place."""

    def __init__(self, heads: int, error: float) -> None:
        self.heads = heads
        self.sketches = {kind: Sketch(heads, error, len(names)) for kind, names in KINDS.items()}
        self.summed = {name: [0] * heads for name in SUMMED}
        self.most_seen, self.fewest_seen = 0, UNSEEN

    def summary(self, head: int | None) -> Summary:
        pick = slice(None) if head is None else slice(head, head + 1)
        counted = {name: sum(counts[pick]) for name, counts in self.summed.items()}
        return _summary(self.sketches, head, self.most_seen, self.fewest_seen, counted)


def _add_up(measured: Measured, records: Sequence[_Record]) -> None:
    """Add what was measured at some places to their records."""
    heads = records[0].heads
    for kind in KINDS:
        values: Values = getattr(measured, kind)
        sizes = values.sizes.view(len(records), heads).sum(-1).tolist()
        add_to_all([record.sketches[kind] for record in records], values.groups, values.rows, sizes)
    names = ("most_seen", "fewest_seen", *SUMMED)
    counts = {name: getattr(measured, name).view(len(records), heads).tolist() for name in names}
    for i, record in enumerate(records):
        record.most_seen = max([record.most_seen, *counts["most_seen"][i]])
        record.fewest_seen = min([record.fewest_seen, *counts["fewest_seen"][i]])
        for name in SUMMED:
            record.summed[name] = [sum(pair) for pair in zip(record.summed[name], counts[name][i], strict=True)]


def _summary(
    sketches: Mapping[str, Sketch], group: int | None, most: int, fewest: int, counted: Mapping[str, int]
) -> Summary:
    return Summary(
        queries=sketches["queries"].count(group),
        keys=most,
        fewest_keys=min(fewest, most),
        empty=counted["empty"],
        not_finite=counted["not_finite"],
        uneven=counted["uneven"],
        spreads={
            name: spread(sketches[kind], group, name in MIRRORED, name in COUNTS, row)
            for kind, names in KINDS.items()
            for row, name in enumerate(names)
        },
        exact=all(sketch.is_exact for sketch in sketches.values()),
    )


def spread(
    sketch: Sketch, group: int | None = None, mirrored: bool = False, whole: bool = False, row: int = 0
) -> dict[str, float | None]:
    """The quantiles at PERCENTS, or, mirrored, at 100 minus each; those of `whole` numbers are whole again."""
    levels = [1 - int(p) / 100 if mirrored else int(p) / 100 for p in PERCENTS]
    values = sketch.quantiles(levels, group, row)
    if whole and not sketch.is_exact:
        values = [value if value is None or math.isinf(value) else float(round(value)) for value in values]
    return dict(zip(PERCENTS, values, strict=True))


def _label(name: str, call: int, calls: int) -> str:
    if calls == 1:
        return name or "attention"
    return f"{name or 'attention'} #{call}"
