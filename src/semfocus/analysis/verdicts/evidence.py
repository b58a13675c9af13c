"""Combine parts into a verdict, by one rule for all claims.

A claim has one aspect or several (faster; generalises as well), and each is claimed of every case (task, mask, or
setting). A part is one aspect in one case. It is shown ("yes"), refuted ("no"), undecided, or not applicable; a part
that can be shown cannot be refuted, since both compare with the same bound.

An aspect is refuted if one of its parts is, after Holm over the refutations of the whole claim. It is shown if every
part that was run is shown, and at most half of its parts were never run. A claim

    holds            if every aspect is shown; all of them being true at once needs no further adjustment
    is mixed         if some aspect is refuted, and another one shown after Holm over the aspects
    does not hold    if some aspect is refuted, and none is shown in this way
    is not decided   otherwise

Parts that are known from another claim (for example ReLU in C6) are needed for "holds", and refute nothing here. A
difference that is not significant refutes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, Literal

from semfocus.analysis.intervals import Equivalence, Interval
from semfocus.analysis.multiple import ALPHA, holm
from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.reasons import because
from semfocus.analysis.verdicts.settings import Setting

Decision = Literal["yes", "no", "undecided", "not applicable"]
# Of a part that claims two quantities to be the same.
SAMENESS: dict[Equivalence, Decision] = {"equivalent": "yes", "different": "no", "undecided": "undecided"}
Outcome = Literal["holds", "mixed", "does not hold", "not decided"]
"""What a verdict can be."""
Source = Literal["paper", "open"]
"""Whose claim it is: the paper's, or a question of this project that the paper leaves open."""
OUTCOMES: tuple[Outcome, ...] = ("holds", "mixed", "does not hold", "not decided")
"""All of them, in the order in which tables show them."""


@dataclass(frozen=True)
class Part:
    """One aspect of a claim in one case, and what the runs show about it."""

    name: str
    decision: Decision
    p: float | None = None  # two-sided, of the decision; of the test if undecided
    effect: str = ""
    interval: Interval | None = None
    runs: frozenset[str] = frozenset()
    why: str = ""  # what is missing, or what refutes the part
    setting: str = ""  # what differs from the paper
    known: bool = False  # from another claim: needed for "holds", but no evidence for this one
    aspect: str = ""  # of the claim; empty where it has one alone
    seeds: int | None = None  # would decide an undecided part; None if no estimate, or too many
    precision: str = ""  # of its runs

    @property
    def was_run(self) -> bool:
        return bool(self.runs)


@dataclass(frozen=True)
class Verdict:
    """What the runs show about one claim of the paper, or about one open question."""

    claim: str  # "C1"
    statement: str
    rule: str  # how it is decided, in words
    outcome: Outcome
    effect: str | None  # of the decisive part
    interval: tuple[float, float] | None  # of that effect; an end may be infinite
    p: float | None
    runs: int  # number of runs that were used
    because: str
    judged: tuple[int, int] = (0, 0)  # parts that were run, of how many that apply
    seeds: int | None = None  # not decided: with so many, what was run would probably be; None if no number is known
    source: Source = "paper"

    @property
    def is_open_question(self) -> bool:
        """Whether this is a question of this project, and no claim of the paper."""
        return self.source == "open"

    @property
    def scope(self) -> str:
        """`7 of 8 parts run`; empty if all were."""
        run, every = self.judged
        return "" if run == every else f"{run} of {every} parts run"

    @property
    def outcome_text(self) -> str:
        """The outcome with its scope, or with what would decide: `holds, 7 of 8 parts run`."""
        more = f"about {self.seeds} seeds would decide" if self.seeds else ""
        return ", ".join(filter(None, (self.outcome, self.scope, more)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an end of the interval that is not finite becomes None."""
        ends = None if self.interval is None else [end if isfinite(end) else None for end in self.interval]
        return asdict(self) | {"interval": ends, "judged": list(self.judged)}


@dataclass(frozen=True)
class Claim:
    """One claim of the paper or open question: its statement, its rule, and the function that returns its parts."""

    id: str
    statement: str
    rule: str
    parts: Callable[[Sequence[Setting], Measurements], Sequence[Part]]
    source: Source = "paper"


@dataclass(frozen=True)
class _Aspect:
    """What the parts of one aspect come to."""

    decision: Decision
    p: float | None = None  # of all parts being true, where it is shown
    decisive: int = 0  # place of the part that decides


def missing(name: str, why: str, aspect: str = "") -> Part:
    """An undecided part without runs."""
    return Part(name, "undecided", why=why, aspect=aspect)


def merged(name: str, parts: Sequence[Part]) -> Part:
    """Several parts as one: refuted if one is, after Bonferroni; shown if all that were run are."""
    run = [part for part in parts if part.was_run]
    if not run:
        return missing(name, parts[0].why, parts[0].aspect)
    decisions = {part.decision for part in run}
    decision: Decision = "no" if "no" in decisions else "yes" if decisions == {"yes"} else "undecided"
    deciding = [part for part in run if part.decision == decision]
    chosen = (min if decision == "no" else max)(deciding, key=lambda part: _or_one(part.p))
    never = ", ".join(part.name for part in parts if not part.was_run)
    reasons = [f"{part.name}: {part.why}" for part in deciding if part.why]
    seeds = [part.seeds for part in deciding]
    return replace(
        chosen,
        name=name,
        decision=decision,
        p=min(1.0, len(run) * _or_one(chosen.p)) if decision == "no" else chosen.p,
        effect=", ".join(f"{part.name} {part.effect}" for part in run if part.effect),
        runs=frozenset[str]().union(*(part.runs for part in run)),
        why="; ".join(dict.fromkeys(reasons)),
        setting="; ".join(
            dict.fromkeys(filter(None, (*(part.setting for part in run), never and f"{never} never run")))
        ),
        seeds=max((n for n in seeds if n is not None), default=None) if None not in seeds else None,
    )


def conclude(claim: Claim, parts: Sequence[Part]) -> Verdict:
    """Apply the rule at the top of this file."""
    refuted = refutations(parts)
    places = [[i for i, part in enumerate(parts) if part.aspect == name] for name in {p.aspect: 0 for p in parts}]
    aspects = [_aspect(parts, own, refuted) for own in places]
    counted = [aspect for aspect in aspects if aspect.decision != "not applicable"]
    outcome, decisive, p = _outcome(parts, counted, refuted)
    part = None if decisive is None else parts[decisive]
    applying = [part for part in parts if part.decision != "not applicable"]
    waiting = [part for i, part in enumerate(parts) if part.was_run and not part.known and _is_open(part, i, refuted)]
    estimates = [part.seeds for part in waiting if part.seeds is not None]
    can_tell = outcome == "not decided" and len(estimates) == len(waiting) > 0
    return Verdict(
        claim=claim.id,
        statement=claim.statement,
        rule=claim.rule,
        outcome=outcome,
        effect=None if part is None or not part.effect else f"{part.name}: {part.effect}",
        interval=None if part is None or part.interval is None else (part.interval.low, part.interval.high),
        p=p,
        runs=len(frozenset().union(*(part.runs for part in parts))),
        because=because(parts, refuted),
        judged=(sum(part.was_run for part in applying), len(applying)),
        seeds=max(estimates) if can_tell else None,
        source=claim.source,
    )


def refutations(parts: Sequence[Part]) -> dict[int, float]:
    """The parts that are refuted after Holm over all that were run, and their p-values.

    Only one direction refutes, so that p is one-sided: half of the two-sided one.
    """
    tried = [i for i, part in enumerate(parts) if part.was_run and not part.known and part.decision != "not applicable"]
    halves = {i: _or_one(parts[i].p) / 2 if parts[i].decision == "no" else None for i in tried}
    return {i: p for i, p in holm(halves).items() if p is not None and p <= ALPHA}


def _aspect(parts: Sequence[Part], places: Sequence[int], refuted: dict[int, float]) -> _Aspect:
    applying = [i for i in places if parts[i].decision != "not applicable"]
    if not applying:
        return _Aspect("not applicable")
    run = [i for i in applying if parts[i].was_run]
    if all(parts[i].known for i in run):
        return _Aspect("undecided")
    against = [i for i in run if i in refuted]
    if against:
        return _Aspect("no", None, min(against, key=lambda i: (refuted[i], i)))
    if all(parts[i].decision == "yes" for i in run) and 2 * len(run) >= len(applying):
        weakest = max(run, key=lambda i: (parts[i].p or 0.0, -i))
        return _Aspect("yes", parts[weakest].p, weakest)
    return _Aspect("undecided")


def _outcome(
    parts: Sequence[Part], aspects: Sequence[_Aspect], refuted: dict[int, float]
) -> tuple[Outcome, int | None, float | None]:
    """The outcome, the place of the decisive part, and p."""
    shown = [aspect for aspect in aspects if aspect.decision == "yes"]
    denied = [aspect.decisive for aspect in aspects if aspect.decision == "no"]
    if aspects and len(shown) == len(aspects):
        weakest = max(shown, key=lambda aspect: aspect.p or 0.0)
        return "holds", weakest.decisive, weakest.p
    if denied:
        strongest = min(denied, key=lambda i: (refuted[i], i))
        after_holm = holm({i: aspect.p if aspect.decision == "yes" else None for i, aspect in enumerate(aspects)})
        is_mixed = any(p is not None and p <= ALPHA for p in after_holm.values())
        return "mixed" if is_mixed else "does not hold", strongest, refuted[strongest]
    tested = [i for i, part in enumerate(parts) if part.interval is not None and not part.known]
    waiting = [i for i in tested if _is_open(parts[i], i, refuted)]
    nearest = min(waiting or tested, key=lambda i: (_or_one(parts[i].p), i), default=None)
    return "not decided", nearest, None if nearest is None else parts[nearest].p


def _is_open(part: Part, place: int, refuted: dict[int, float]) -> bool:
    """Whether a part is neither shown nor refuted after Holm."""
    return part.decision == "undecided" or (part.decision == "no" and place not in refuted)


def _or_one(p: float | None) -> float:
    return 1.0 if p is None else p
