"""The paper's conditions W and X on measured values, the certified bounds there, and where bounds are vacuous.

    cell = condition(delta_full=8.61, delta_heavy=3.51, separation=0.016, in_degree=1, k=5, length=599)
    cell.w, cell.x                    0.9703, 0.8982: below 1, the paper's bound for heavy hitters is the smaller one
    cell.sharper.x                    heavy / full by the certified bounds: below 1, heavy hitters win by these too
    cell.vacuous                      ("full", "heavy"): e^delta / k bounds a probability by more than 1

Only column 100, where every number is the worst case, is the theorem; the other percentiles follow the paper.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from semfocus.theory import condition_w, condition_x, lipschitz_w, lipschitz_x, stability, weight_bound


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
    softmax = _ratio(
        stability(delta_heavy, kept, separation, form="certified"), stability(delta_full, fewest, form="certified")
    )
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
