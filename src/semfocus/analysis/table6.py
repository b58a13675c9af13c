"""The paper's Table 6: conditions W and X on measured values, percentile by percentile, and the certified bounds there.

    cell = condition(delta_full=8.61, delta_heavy=3.51, separation=0.016, in_degree=1, k=5, length=599)
    cell.w, cell.x                    0.9703, 0.8982: below 1, the paper's bound for heavy hitters is the smaller one
    cell.sharper.x                    heavy / full by the certified bounds: below 1, heavy hitters win by these too
    cell.vacuous                      ("full", "heavy"): e^delta / k bounds a probability by more than 1
    two_models(full, heavy)           a row of the table for stored runs

The paper takes delta_s from a model trained with full attention and the rest from a model trained with top-k
(`two_models`). Both can also come from one model (`one_model`), where delta_heavy + separation <= delta_full for every
query. `PUBLISHED` are the paper's numbers (arXiv 2506.14095, k = 5, one seed), with W and X computed here. Only column
100, where every number is the worst case, is the theorem; the other percentiles follow the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from semfocus.errors import UsageError
from semfocus.measurements import Dispersion
from semfocus.measurements.kinds import Checkpoint
from semfocus.theory import condition_w, condition_x, lipschitz_w, lipschitz_x, stability, weight_bound

COLUMNS = ("75", "90", "95", "100")
FLOOR = 1e-9  # the paper's, under separations: a tie would make every bound infinite
PAPER_K = 5
Way = Literal["two models", "one model", "published"]
# The sequence length; delta_s, delta_h, Delta_h and the in-degree at COLUMNS.
PUBLISHED: dict[str, tuple[int, tuple[tuple[float, ...], ...]]] = {
    "listops": (
        599, ((8.61, 18.5, 29.4, 87.8), (3.51, 6.74, 9.67, 28.2), (0.016, 0.005, 0.002, 1e-9), (1, 3, 15, 598)),
    ),
    "parity": (40, ((8.30, 10.1, 11.2, 19.4), (2.31, 3.13, 3.78, 9.16), (0.062, 0.022, 0.011, 1e-6), (8, 13, 16, 33))),
    "even_pairs": (
        40, ((2.03, 4.73, 9.44, 14.6), (1.03, 2.84, 5.50, 8.25), (0.009, 0.003, 0.002, 3e-8), (6, 17, 26, 40)),
    ),
    "missing_duplicate": (
        40, ((4.63, 9.25, 17.1, 23.9), (2.36, 4.25, 4.88, 10.5), (0.018, 0.006, 0.003, 1e-7), (7, 15, 21, 40)),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sharper:
    """Certified constant of heavy hitters over that of full attention: of the softmax (2-norm), in W and in X.

    None if it does not exist: infinite scores, a full-attention constant of 0, or (X) uneven sequences.
    """

    softmax: float | None
    w: float | None
    x: float | None


@dataclass(frozen=True)
class Conditions:
    """One column: the inputs, W and X, and whether the bounds are informative."""

    delta_full: float
    delta_heavy: float
    separation: float
    in_degree: float
    w: float
    x: float
    sharper: Sharper
    vacuous: tuple[str, ...]  # those of "full" and "heavy" whose weight bound exceeds 1
    sinks_outside: bool  # in-degree below k: outside the theory, which assumes a mean of k
    uneven: bool = False  # queries of a sequence see different keys: no constant in X is certified

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; an infinite number becomes None and is listed under `infinite`."""
        numbers = {name: getattr(self, name) for name in ("delta_full", "delta_heavy", "separation", "in_degree")}
        numbers |= {"w": self.w, "x": self.x}
        return {
            **{name: finite(value) for name, value in numbers.items()},
            "w_holds": self.w < 1,
            "x_holds": self.x < 1,
            "sharper": {
                name: value if value is None else finite(value) for name, value in asdict(self.sharper).items()
            },
            "vacuous": list(self.vacuous),
            "sinks_outside": self.sinks_outside,
            "uneven": self.uneven,
            "infinite": [name for name, value in numbers.items() if math.isinf(value)],
        }


def condition(
    delta_full: float,
    delta_heavy: float,
    separation: float,
    in_degree: float,
    k: int,
    length: int,
    fewest: int | None = None,
    uneven: bool = False,
) -> Conditions:
    """W and X from the numbers of one column; `length` keys for full attention, k for heavy hitters.

    If sequences differ in length, `length` is the largest number of keys that a query sees and `fewest` the smallest
    (of queries that see more than one). The bounds on a weight and on the softmax shrink with the number of keys, and
    are computed for `fewest`. The constant in the tokens grows with the number of keys, and is computed for `length`.
    It holds only if all queries of a sequence see the same keys and are no more than these: the weights that one key
    receives then sum to at most the number of keys times the weight bound. In `uneven` sequences they can sum to more
    (under a causal mask with equal scores the first key receives 1 + 1/2 + 1/3 + ...), and `sharper.x` is None.
    """
    beta, length = in_degree / k, max(length, 1)
    fewest = length if fewest is None else max(fewest, 1)
    kept = min(k, fewest)
    spreads = {"full": weight_bound(delta_full, fewest), "heavy": weight_bound(delta_heavy, kept)}
    vacuous = tuple(name for name, bound in spreads.items() if float(bound) > 1)
    if math.isinf(delta_full) or math.isinf(delta_heavy):  # no condition can be shown to hold
        numbers = delta_full, delta_heavy, separation, in_degree
        return Conditions(*numbers, math.inf, math.inf, Sharper(None, None, None), vacuous, beta < 1, uneven)
    softmax = _ratio(stability(delta_heavy, kept, separation), stability(delta_full, fewest))
    return Conditions(
        delta_full=delta_full,
        delta_heavy=delta_heavy,
        separation=separation,
        in_degree=in_degree,
        w=float(condition_w(delta_full, delta_heavy, separation)),
        x=float(condition_x(delta_full, delta_heavy, separation, beta)),
        sharper=_sharper(softmax, delta_full, delta_heavy, separation, max(beta, 1.0), k, length, uneven),
        vacuous=vacuous,
        sinks_outside=beta < 1,
        uneven=uneven,
    )


def finite(value: float | None) -> float | None:
    """A number for JSON: None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _sharper(
    softmax: float | None, full: float, heavy: float, separation: float, beta: float, k: int, length: int, uneven: bool
) -> Sharper:
    paper = {"gamma": full / 2, "xi": 1.0, "upsilon": 1.0}  # the paper's assumption: 2 gamma xi^2 = delta_full
    unit = {"xi": 1.0, "upsilon": 1.0}
    w = _ratio(lipschitz_w(heavy, separation=separation, **unit), lipschitz_w(full, **unit))
    if uneven:
        return Sharper(softmax, w, None)
    focused = lipschitz_x(heavy, sink_ratio=beta, separation=separation, k=k, **paper)
    return Sharper(softmax, w, _ratio(focused, lipschitz_x(full, k=length, **paper)))


def _ratio(heavy: Any, full: Any) -> float | None:
    return float(heavy) / float(full) if float(full) else None


def published(task: str) -> dict[str, Any] | None:
    """The paper's row for this task; None if it has none."""
    if task not in PUBLISHED:
        return None
    length, lines = PUBLISHED[task]
    cells = {
        percent: condition(full, heavy, gap, degree, k=PAPER_K, length=length).to_dict()
        for percent, full, heavy, gap, degree in zip(COLUMNS, *lines, strict=True)
    }
    return {"way": "published", "task": task, "k": PAPER_K, "length": length, "cells": cells}


def two_models(full: Dispersion, heavy: Dispersion, checkpoint: str = "last") -> dict[str, Any]:
    """The paper's way, from the "dispersion" measurements of a full and of a top-k run."""
    whole, focused = _at(full, checkpoint), _at(heavy, checkpoint)
    sources = {"delta_full": whole, "delta_heavy": focused, "separation": focused, "in_degree": focused}
    names = {"delta_heavy": "delta"}  # what the top-k model itself keeps
    return _row("two models", heavy.k, checkpoint, sources, names, whole.keys)


def one_model(measured: Dispersion, checkpoint: str = "last") -> dict[str, Any]:
    """Both dispersions from the same scores of one run."""
    whole = _at(measured, checkpoint)
    sources = dict.fromkeys(("delta_full", "delta_heavy", "separation", "in_degree"), whole)
    return _row("one model", measured.k, checkpoint, sources, {}, whole.keys)


def _row(
    way: Way,
    k: int,
    checkpoint: str,
    sources: Mapping[str, Checkpoint],
    names: Mapping[str, str],
    length: int,
) -> dict[str, Any]:
    fewest = min(source.fewest_keys for source in sources.values())
    keys = {"length": length, "fewest": fewest, "uneven": any(source.uneven for source in sources.values())}
    cells = {}
    for percent in COLUMNS:
        numbers = [getattr(source, names.get(name, name)).or_infinite(percent) for name, source in sources.items()]
        known = [number for number in numbers if number is not None]
        if len(known) == len(sources):
            spread, heavy, gap, degree = known
            cell = condition(spread, heavy, max(gap, FLOOR), degree, k=k, **keys)
            cells[percent] = cell.to_dict()
    diverged = all(source.queries == 0 for source in sources.values())
    epochs = sorted({source.epoch for source in sources.values()})
    about = {"way": way, "k": k, "checkpoint": checkpoint, "epochs": epochs, **keys}
    return about | {"diverged": diverged, "cells": cells}


def _at(measured: Dispersion, checkpoint: str) -> Checkpoint:
    known = measured.checkpoints
    if checkpoint not in known:
        raise UsageError(f"checkpoint {checkpoint!r} was not measured; there are: {', '.join(known)}")
    return known[checkpoint]
