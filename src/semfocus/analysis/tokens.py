"""Language models by tokens: how many of full attention's tokens a mechanism takes to the same held-out loss.

    race = token_race(records)
    race.lane("topk:8").arrivals[-1].ratio      0.82 of full attention's tokens to its final held-out loss
    race.sentences()

The goals are the held-out losses of full attention of the same seed once a quarter, half and all of its training is
done. A run arrives where the straight line between two evaluations first meets the goal; full attention may itself
have been there before. One that does not arrive within its training counts as later than all others.

The last goal is full attention's own end, which a mechanism that is no better meets in half of the seeds, and never
later than at its end: that ratio alone proves nothing. What is tested, by swaps within seeds and after Holm, are the
final losses, and the tokens to the first goal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semfocus.analysis.head_start import first_at, tokens_of
from semfocus.analysis.intervals import Interval, Margin, equivalence, mean_interval
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.paired import exact_swap_p
from semfocus.analysis.pairing import Floats
from semfocus.analysis.records import Record, facts_of

BASE = "full"
GOALS = (0.25, 0.5, 1.0)  # shares of full attention's training
COURSE = (0.1, 0.25, 0.5, 0.75, 1.0)  # shares of the tokens at which losses are told
LOSS_MARGIN = Margin(-0.005, 0.005)
"""Two final losses that differ by no more, relative to full attention's, are called equal."""


def is_language(record: Record) -> bool:
    """Whether a run read a corpus, where no share of right answers means that all is learned."""
    return "corpus" in facts_of(record.config)


@dataclass(frozen=True)
class Arrival:
    """How soon a mechanism is where full attention was after a share of its training."""

    goal: float  # the share
    reached: int  # seeds that got there, of `seeds`
    seeds: int
    ratio: float | None  # tokens against full attention's, the median over seeds; None where half never got there
    p: float | None = None  # that they differ, after Holm; None where it is not tested

    @property
    def text(self) -> str:
        """`0.82x`, or `later`."""
        return "later" if self.ratio is None else f"{self.ratio:.2f}x"


@dataclass(frozen=True)
class Lane:
    """One mechanism's runs."""

    mechanism: str
    losses: Mapping[int, float]  # the final held-out loss of each seed
    arrivals: tuple[Arrival, ...]  # one for each of GOALS; none of full attention, or where no seed is shared
    change: float | None  # of the final loss against full attention's, relative, the mean over shared seeds
    interval: Interval | None  # of that mean
    p: float | None  # that the final losses differ, after Holm
    seconds: float  # of a run, the mean
    course: tuple[float, ...] = ()  # the median held-out loss at each of COURSE; none without an ended run

    @property
    def loss(self) -> float | None:
        """The median final held-out loss."""
        return float(np.median(list(self.losses.values()))) if self.losses else None

    @property
    def is_alike(self) -> bool:
        """Whether the final losses are shown to be equal in practice."""
        return equivalence(self.interval, LOSS_MARGIN) == "equivalent"


@dataclass(frozen=True)
class TokenRace:
    """All mechanisms on one corpus."""

    tokens: float  # of a run
    lanes: tuple[Lane, ...]

    def lane(self, mechanism: str) -> Lane:
        return next(lane for lane in self.lanes if lane.mechanism == mechanism)

    @property
    def others(self) -> list[Lane]:
        """The mechanisms that are compared with full attention."""
        return [lane for lane in self.lanes if lane.arrivals]

    @property
    def doubt(self) -> str:
        """Why the seeds cannot decide; empty if they can, or if nothing is compared."""
        others = self.others
        return not_enough(min(lane.arrivals[0].seeds for lane in others), 2 * len(others)) if others else ""

    @property
    def best(self) -> Lane | None:
        """The mechanism that is soonest at full attention's final loss; None where none gets there in most seeds."""
        there = [lane for lane in self.others if lane.arrivals[-1].ratio is not None]
        return min(there, key=lambda lane: lane.arrivals[-1].ratio or math.inf, default=None)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if not self.others:
            has_ended = any(lane.losses for lane in self.lanes)
            return "No pair of runs to compare yet" if has_ended else "No run has ended yet"
        best, doubt = self.best, self.doubt
        if best is None:
            sure = "; too few seeds to be sure" if doubt else ""
            return f"No mechanism gets to full attention's final loss within the same tokens{sure}"
        line = f"{best.mechanism} reaches full attention's final loss after {best.arrivals[-1].text} the tokens"
        if doubt:
            return f"{line}: a hint, too few seeds for a proof"
        is_proven = best.p is not None and best.p <= ALPHA
        return f"{line}, beyond chance" if is_proven else f"{line}; it may be chance"

    def sentences(self) -> list[tuple[str, str]]:
        """Mechanism and what is said of it; the last sentences are about all, and have no mechanism."""
        said = [(lane.mechanism, self._sentence(lane)) for lane in self.lanes]
        if not self.others:
            return [*said, ("", "Without another mechanism beside full attention there is nothing to compare with.")]
        return [*said, ("", self._judgement())]

    def _sentence(self, lane: Lane) -> str:
        if lane.loss is None:
            return ": no finished run."
        end = f"held-out loss of {lane.loss:.3f} (median of {_seeds(len(lane.losses))})"
        if not lane.arrivals:
            return f" ends at a {end} after {tokens_text(self.tokens)} tokens."
        last, first = lane.arrivals[-1], lane.arrivals[0]
        share = f"{last.reached} of {last.seeds} seeds"
        if last.ratio is None:
            came = f" did not reach full attention's final loss within the same tokens ({share} did)"
        else:
            came = f" reached full attention's final loss after {last.ratio:.2f}x the tokens (median; {share})"
        early = "" if first.ratio is None else (
            f"; to full attention's loss at {first.goal:.0%} of its training it took {first.ratio:.2f}x"
        )  # fmt: skip
        return f"{came}{early}. It ends at a {end}, {self._against(lane)}."

    def _against(self, lane: Lane) -> str:
        change = lane.change or 0.0
        amount = f"{abs(change):.1%} {'lower' if change < 0 else 'higher'} than full attention's"
        if lane.interval is None:
            return amount
        ends = f"{lane.interval.low:+.1%} to {lane.interval.high:+.1%}"
        if lane.is_alike:
            return f"the same for practice ({ends} against full attention's)"
        is_open = lane.interval.low <= 0 <= lane.interval.high
        return f"{amount}{', which may be chance' if is_open else ''} ({ends})"

    def _judgement(self) -> str:
        if self.doubt:
            return f"A hint, not a proof: {self.doubt}."
        tests = 2 * len(self.others)
        decided = [
            f"{lane.mechanism} {where} (p = {p:.2g})"
            for lane in self.others
            for where, p in (("in its final loss", lane.p), ("early in training", lane.arrivals[0].p))
            if p is not None and p <= ALPHA
        ]
        if not decided:
            return f"None of the differences is beyond chance after Holm over {tests} tests."
        return f"Beyond chance, after Holm over {tests} tests: {', '.join(decided)}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "tokens": self.tokens,
            "mechanisms": [
                {
                    "mechanism": lane.mechanism,
                    "final_heldout_loss": {str(seed): loss for seed, loss in lane.losses.items()},
                    "tokens_against_full": {
                        f"{one.goal:g}": {"ratio": one.ratio, "reached": one.reached, "seeds": one.seeds, "p": one.p}
                        for one in lane.arrivals
                    },
                    "final_loss_change": lane.change,
                    "final_loss_change_interval": lane.interval and [lane.interval.low, lane.interval.high],
                    "p": lane.p,
                    "seconds_per_run": lane.seconds,
                }
                for lane in self.lanes
            ],
        }


def token_race(records: Sequence[Record]) -> TokenRace | None:
    """The race of ended runs that read one corpus; None where they are no language models."""
    if not records or not all(map(is_language, records)):
        return None
    ended = [record for record in records if record.ended and len(record.metrics)]
    curves = {(run.mechanism, run.seed): (tokens_of(run), run.column("heldout_loss")) for run in ended}
    names = list(dict.fromkeys(record.mechanism for record in records))
    seconds = {name: float(np.mean([run.seconds for run in ended if run.mechanism == name] or [0.0])) for name in names}
    drafts = {name: _compared(name, curves) for name in names}
    tests = {}
    for name, (differences, ratios) in drafts.items():
        if len(differences):
            tests[name, "end"] = _swap_p(differences)
            tests[name, "start"] = _swap_p(np.log(ratios[0])) if np.isfinite(ratios[0]).all() else None
    adjusted = holm(tests)
    lanes = [
        _lane(name, curves, drafts[name], (adjusted.get((name, "start")), adjusted.get((name, "end"))), seconds[name])
        for name in names
    ]
    return TokenRace(max((tokens[-1] for tokens, _ in curves.values()), default=0.0), tuple(lanes))


Curves = Mapping[tuple[str, int], tuple[Floats, Floats]]  # of mechanism and seed, tokens and held-out losses


def _compared(name: str, curves: Curves) -> tuple[Floats, Floats]:
    """(seeds,) changes of the final loss relative to full attention's, and (goals, seeds) ratios of tokens."""
    bases = {seed for own, seed in curves if own == BASE and np.isfinite(curves[BASE, seed][1]).all()}
    shared = [] if name == BASE else sorted(seed for own, seed in curves if own == name and seed in bases)
    changes, ratios = [], []
    for seed in shared:
        (tokens, losses), (full_tokens, full_losses) = curves[name, seed], curves[BASE, seed]
        changes.append(losses[-1] / full_losses[-1] - 1)
        goals = [float(np.interp(share * full_tokens[-1], full_tokens, full_losses)) for share in GOALS]
        ratios.append([_to(goal, tokens, losses) / _to(goal, full_tokens, full_losses) for goal in goals])
    return np.array(changes), np.array(ratios).reshape(-1, len(GOALS)).T


def _to(goal: float, tokens: Floats, losses: Floats) -> float:
    """The tokens at which a run gets to a loss; infinite where it never does."""
    place = None if np.isnan(losses).any() else first_at(tokens, losses, goal)
    return math.inf if place is None else place


def _lane(
    name: str, curves: Curves, draft: tuple[Floats, Floats], p: tuple[float | None, float | None], seconds: float
) -> Lane:
    changes, ratios = draft
    arrivals = []
    for i, goal in enumerate(GOALS if len(changes) else ()):
        middle = float(np.median(ratios[i]))
        ratio = middle if math.isfinite(middle) else None
        reached = int(np.isfinite(ratios[i]).sum())
        arrivals.append(Arrival(goal, reached, ratios.shape[1], ratio, p[0] if i == 0 else None))
    return Lane(
        name,
        {seed: float(losses[-1]) for (own, seed), (_, losses) in sorted(curves.items()) if own == name},
        tuple(arrivals),
        float(np.mean(changes)) if len(changes) and np.isfinite(changes).all() else None,
        mean_interval(changes) if np.isfinite(changes).all() else None,
        p[1],
        seconds,
        _course([curve for (own, _), curve in curves.items() if own == name]),
    )


def _course(curves: Sequence[tuple[Floats, Floats]]) -> tuple[float, ...]:
    """The median loss over runs at shares of the tokens of the longest."""
    end = max((tokens[-1] for tokens, _ in curves), default=0.0)
    at = [[float(np.interp(share * end, tokens, losses)) for tokens, losses in curves] for share in COURSE]
    return tuple(float(np.median(losses)) for losses in at) if curves else ()


def _swap_p(differences: Floats) -> float | None:
    return exact_swap_p(differences) if len(differences) > 1 and np.isfinite(differences).all() else None


def tokens_text(count: float) -> str:
    """`820 k`, `1.5 M`."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
