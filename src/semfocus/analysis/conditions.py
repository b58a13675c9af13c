"""The paper's conditions W and X on measured numbers, what the sharper bounds say there, and where all are empty.

    cell = condition(delta_full=8.61, delta_heavy=3.51, separation=0.016, in_degree=1, k=5, length=599)
    cell.w, cell.x                    0.9703, 0.8982: below 1, the paper's bound for heavy hitters is the smaller one
    cell.sharper.x                    heavy / full by the certified bounds: below 1, they win there too
    cell.vacuous                      ("full", "heavy"): e^delta / k bounds a probability by more than 1

Only the column 100, where every number is the worst one, is the theorem; the others are the paper's custom.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from semfocus.theory import condition_w, condition_x, lipschitz_w, lipschitz_x, stability, weight_bound


@dataclass(frozen=True)
class Sharper:
    """Certified constant of heavy hitters over that of full attention: of the softmax (2-norm), in W and in X."""

    softmax: float | None
    w: float | None
    x: float | None


@dataclass(frozen=True)
class Conditions:
    """One column: the numbers that go in, W and X, and how much they are worth."""

    delta_full: float
    delta_heavy: float
    separation: float
    in_degree: float
    w: float
    x: float
    sharper: Sharper
    vacuous: tuple[str, ...]  # of "full" and "heavy": whose weight bound exceeds 1
    sinks_outside: bool  # in-degree below k: outside the theory, where its mean is k

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; an infinite number is None and named under `infinite`."""
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
            "infinite": [name for name, value in numbers.items() if math.isinf(value)],
        }


def condition(
    delta_full: float, delta_heavy: float, separation: float, in_degree: float, k: int, length: int
) -> Conditions:
    """W and X from the numbers of one column; `length` keys for full attention, k for heavy hitters."""
    beta = in_degree / k
    spreads = {"full": weight_bound(delta_full, max(length, 1)), "heavy": weight_bound(delta_heavy, k)}
    return Conditions(
        delta_full=delta_full,
        delta_heavy=delta_heavy,
        separation=separation,
        in_degree=in_degree,
        w=float(condition_w(delta_full, delta_heavy, separation)),
        x=float(condition_x(delta_full, delta_heavy, separation, beta)),
        sharper=_sharper(delta_full, delta_heavy, separation, max(beta, 1.0), k, max(length, 1)),
        vacuous=tuple(name for name, bound in spreads.items() if float(bound) > 1),
        sinks_outside=beta < 1,
    )


def finite(value: float | None) -> float | None:
    """A number as JSON has it: None for what is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _sharper(full: float, heavy: float, separation: float, beta: float, k: int, length: int) -> Sharper:
    paper = {"gamma": full / 2, "xi": 1.0, "upsilon": 1.0}  # the paper's assumption: 2 gamma xi^2 = delta_full
    unit = {"xi": 1.0, "upsilon": 1.0}
    return Sharper(
        softmax=_ratio(
            stability(heavy, k, separation, form="certified"),
            stability(full, length, form="certified"),
        ),
        w=_ratio(lipschitz_w(heavy, separation=separation, **unit), lipschitz_w(full, **unit)),
        x=_ratio(
            lipschitz_x(heavy, sink_ratio=beta, separation=separation, k=k, **paper),
            lipschitz_x(full, k=length, **paper),
        ),
    )


def _ratio(heavy: Any, full: Any) -> float | None:
    return float(heavy) / float(full) if float(full) else None
