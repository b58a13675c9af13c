"""Combine parts into a verdict, by one rule for all claims.

A claim is the conjunction of its parts. Each part is shown ("yes"), refuted ("no") or undecided.

    holds              every part is shown, each at 5 %: then the whole is, without further adjustment
    holds in part      some part is shown after Holm over all parts, but not every one
    does not hold      some part is refuted, and none is shown
    not enough data    neither

Parts that are known from another claim (for example ReLU in C6) count for the first outcome only.

A difference that is not significant refutes nothing: an interval has to exclude what the claim says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

from semfocus.analysis.intervals import Interval
from semfocus.analysis.multiple import ALPHA, holm
from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.settings import Setting

Decision = Literal["yes", "no", "undecided"]
Outcome = Literal["holds", "holds in part", "does not hold", "not enough data"]
"""What a verdict can be."""
_SHOWN, _SHOWN_OPEN = 8, 3


@dataclass(frozen=True)
class Part:
    """One statement of a claim, and what the runs show about it."""

    name: str
    decision: Decision
    p: float | None = None  # two-sided, of the decision; of the test if undecided
    effect: str = ""
    interval: Interval | None = None
    runs: frozenset[str] = frozenset()
    why: str = ""  # what is missing, or what refutes the part
    setting: str = ""  # what differs from the paper
    known: bool = False  # from another claim: needed for "holds", but no evidence for this one


@dataclass(frozen=True)
class Verdict:
    """What the runs show about one claim of the paper."""

    claim: str  # "C1"
    statement: str
    rule: str  # how it is decided, in words
    outcome: Outcome
    effect: str | None  # of the decisive part
    interval: tuple[float, float] | None  # of that effect; an end may be infinite
    p: float | None
    runs: int  # number of runs that were used
    because: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an end of the interval that is not finite becomes None."""
        ends = None if self.interval is None else [end if isfinite(end) else None for end in self.interval]
        return asdict(self) | {"interval": ends}


@dataclass(frozen=True)
class Claim:
    """One claim of the paper: its statement, its rule, and the function that returns its parts."""

    id: str
    statement: str
    rule: str
    parts: Callable[[Sequence[Setting], Measurements], Sequence[Part]]


def missing(name: str, why: str) -> Part:
    """An undecided part without runs."""
    return Part(name, "undecided", why=why)


def merged(name: str, parts: Sequence[Part]) -> Part:
    """Several parts as one: shown if all are, refuted if one is."""
    decisions = {part.decision for part in parts}
    decision: Decision = "no" if "no" in decisions else "yes" if decisions == {"yes"} else "undecided"
    weakest = max(parts, key=lambda part: _or_one(part.p))
    reasons = [f"{part.name}: {part.why}" for part in parts if part.decision == decision and part.why]
    return Part(
        name,
        decision,
        weakest.p if decision == "yes" else None,
        ", ".join(f"{part.name} {part.effect}" for part in parts if part.effect),
        weakest.interval if decision == "yes" else None,
        frozenset[str]().union(*(part.runs for part in parts)),
        "; ".join(dict.fromkeys(reasons)),
        parts[0].setting,
    )


def conclude(claim: Claim, parts: Sequence[Part]) -> Verdict:
    """Apply the rule at the top of this file."""
    own = {i: part.p if part.decision == "yes" else None for i, part in enumerate(parts) if not part.known}
    adjusted = holm(own)
    shown = [i for i, p in adjusted.items() if p is not None and p <= ALPHA]
    yes = [i for i, part in enumerate(parts) if part.decision == "yes"]
    refuted = [i for i, part in enumerate(parts) if part.decision == "no" and not part.known]
    outcome: Outcome = "not enough data"
    decisive, p = None, None
    if parts and len(yes) == len(parts):
        outcome, decisive = "holds", max(yes, key=lambda i: (parts[i].p or 0.0, -i))
        p = parts[decisive].p
    elif shown:
        outcome, decisive = "holds in part", min(shown, key=lambda i: (adjusted[i] or 0.0, i))
        p = adjusted[decisive]
    elif refuted:
        outcome, decisive = "does not hold", min(refuted, key=lambda i: (_or_one(parts[i].p), i))
        p = parts[decisive].p
    else:
        tested = [i for i, part in enumerate(parts) if part.interval is not None and not part.known]
        decisive = min(tested, key=lambda i: (_or_one(parts[i].p), i), default=None)
        p = None if decisive is None else adjusted[decisive]
    part = None if decisive is None else parts[decisive]
    return Verdict(
        claim=claim.id,
        statement=claim.statement,
        rule=claim.rule,
        outcome=outcome,
        effect=None if part is None or not part.effect else f"{part.name}: {part.effect}",
        interval=None if part is None or part.interval is None else (part.interval.low, part.interval.high),
        p=p,
        runs=len(frozenset().union(*(part.runs for part in parts))),
        because=_because(parts, shown if outcome != "holds" else yes, refuted),
    )


def _or_one(p: float | None) -> float:
    return 1.0 if p is None else p


def _because(parts: Sequence[Part], shown: Sequence[int], refuted: Sequence[int]) -> str:
    """The number and names of the parts that are shown, refuted and undecided."""
    open_parts = [i for i, part in enumerate(parts) if i not in shown and i not in refuted and not part.known]
    sentences = [
        _listed(f"{len(shown)} of {len(parts)} shown", [_named(parts[i], parts[i].effect) for i in shown]),
        _listed(f"{len(refuted)} refuted", [_named(parts[i], parts[i].why) for i in refuted]) if refuted else "",
        _open([parts[i] for i in open_parts]),
        _listed("settings", sorted({f"{part.name}: {part.setting}" for part in parts if part.setting})),
    ]
    return ". ".join(sentence for sentence in sentences if sentence)


def _open(parts: Sequence[Part]) -> str:
    """Undecided parts, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for part in parts:
        alone = f"p = {_or_one(part.p):.2g} alone, not significant after Holm"
        reasons.setdefault(part.why or alone, []).append(part.name)
    texts = [f"{_some(names, most=_SHOWN_OPEN)} ({why})" for why, names in reasons.items()]
    return _listed(f"{len(parts)} undecided", texts) if parts else ""


def _named(part: Part, text: str) -> str:
    return f"{part.name} ({text})" if text else part.name


def _listed(head: str, items: Sequence[str]) -> str:
    return f"{head}: {_some(items, '; ')}" if items else head if head[0].isdigit() else ""


def _some(items: Sequence[str], between: str = ", ", most: int = _SHOWN) -> str:
    more = f"{between}{len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + more
