"""Language models by tokens: the head start of each mechanism over full attention, and where both end.

    race = token_race(records)
    race.lane("topk:8").head_starts[0].ratio      1.08 times fewer tokens at a quarter of training
    race.sentences()

What a head start is says `semfocus.analysis.head_start`, for comparisons, studies and verdicts alike; here it is the
median over the seeds of which full attention's run did not diverge. What is tested, by swaps within seeds and after
Holm, are the final losses, and the head start at the first share: that at the end says what the final losses say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semfocus.analysis.head_start import LOSS, log_ratio, tokens_of
from semfocus.analysis.intervals import Interval, Margin, equivalence, mean_interval
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.paired import exact_swap_p
from semfocus.analysis.pairing import Floats
from semfocus.analysis.records import Record, facts_of

BASE = "full"
SHARES = (0.25, 0.5, 1.0)  # of training, at which head starts are told
COURSE = (0.1, 0.25, 0.5, 0.75, 1.0)  # shares of the tokens at which losses are told
LOSS_MARGIN = Margin(-0.005, 0.005)
"""Two final losses that differ by no more, relative to full attention's, are called equal."""


def is_language(record: Record) -> bool:
    """Whether a run read a corpus, where no share of right answers means that all is learned."""
    return "corpus" in facts_of(record.config)


@dataclass(frozen=True)
class HeadStart:
    """How many times fewer tokens than full attention a mechanism needs to one loss, at a share of training."""

    share: float
    ahead: int  # seeds that need fewer, of `seeds`
    seeds: int
    ratio: float  # the median over seeds; below 1 it needs more
    p: float | None = None  # that it is not 1, after Holm; None where it is not tested

    @property
    def text(self) -> str:
        """`1.08x`."""
        return f"{self.ratio:.2f}x"

    @property
    def words(self) -> str:
        """`1.08x fewer`, `1.05x more`, `as many`."""
        factor = f"{max(self.ratio, 1 / self.ratio):.2f}"
        return "as many" if factor == "1.00" else f"{factor}x {'fewer' if self.ratio > 1 else 'more'}"

    @property
    def against_full(self) -> str:
        """`1.08x fewer tokens than full attention`."""
        return f"{self.words} tokens {'as' if self.words == 'as many' else 'than'} full attention"


@dataclass(frozen=True)
class Lane:
    """One mechanism's runs."""

    mechanism: str
    losses: Mapping[int, float]  # the final held-out loss of each seed
    head_starts: tuple[HeadStart, ...]  # one for each of SHARES; none of full attention, or where no seed is shared
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
        return [lane for lane in self.lanes if lane.head_starts]

    @property
    def doubt(self) -> str:
        """Why the seeds cannot decide; empty if they can, or if nothing is compared."""
        others = self.others
        return not_enough(min(lane.head_starts[0].seeds for lane in others), 2 * len(others)) if others else ""

    @property
    def best(self) -> Lane | None:
        """The mechanism of the largest head start at the end of training; None where none has one."""
        ahead = [lane for lane in self.others if lane.head_starts[-1].words.endswith("fewer")]
        return max(ahead, key=lambda lane: lane.head_starts[-1].ratio, default=None)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if not self.others:
            has_ended = any(lane.losses for lane in self.lanes)
            return "No pair of runs to compare yet" if has_ended else "No run has ended yet"
        best, doubt = self.best, self.doubt
        if best is None:
            sure = "; too few seeds to be sure" if doubt else ""
            return f"No mechanism is ahead of full attention at the end of training{sure}"
        line = f"{best.mechanism} needs {best.head_starts[-1].against_full} to the same final loss"
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
        if not lane.head_starts:
            return f" ends at a {end} after {tokens_text(self.tokens)} tokens."
        first, last = lane.head_starts[0], lane.head_starts[-1]
        early = f" needed {first.against_full} to the same held-out loss at {first.share:.0%} of training"
        late = f"{last.words} at its end ({last.ahead} of {last.seeds})"
        ahead = f"{first.ahead} of {_seeds(first.seeds)} ahead"
        return f"{early} ({ahead}), and {late}. It ends at a {end}, {self._against(lane)}."

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
            for where, p in (("in its final loss", lane.p), ("early in training", lane.head_starts[0].p))
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
                    "head_start": {
                        f"{one.share:g}": {"ratio": one.ratio, "ahead": one.ahead, "seeds": one.seeds, "p": one.p}
                        for one in lane.head_starts
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
    runs = {(run.mechanism, run.seed): run for run in ended}
    curves = {key: (tokens_of(run), run.column(LOSS)) for key, run in runs.items()}
    names = list(dict.fromkeys(record.mechanism for record in records))
    seconds = {name: float(np.mean([run.seconds for run in ended if run.mechanism == name] or [0.0])) for name in names}
    drafts = {name: _compared(name, runs) for name in names}
    tests = {}
    for name, (differences, ratios) in drafts.items():
        if len(differences):
            tests[name, "end"] = _swap_p(differences)
            tests[name, "start"] = _swap_p(ratios[0])
    adjusted = holm(tests)
    lanes = [
        _lane(name, curves, drafts[name], (adjusted.get((name, "start")), adjusted.get((name, "end"))), seconds[name])
        for name in names
    ]
    return TokenRace(max((tokens[-1] for tokens, _ in curves.values()), default=0.0), tuple(lanes))


Curves = Mapping[tuple[str, int], tuple[Floats, Floats]]  # of mechanism and seed, tokens and held-out losses


def _compared(name: str, runs: Mapping[tuple[str, int], Record]) -> tuple[Floats, Floats]:
    """(seeds,) changes of the final loss relative to full attention's, and (shares, seeds) logarithms of head starts.

    A change is NaN where the run diverged.
    """
    bases = {seed for (own, seed), run in runs.items() if own == BASE and math.isfinite(_last(run))}
    changes, ratios = [], []
    for seed in sorted(seed for own, seed in runs if own == name != BASE and seed in bases):
        own, full = runs[name, seed], runs[BASE, seed]
        logs = [log_ratio(full, own, share) for share in SHARES]
        if None not in logs:
            changes.append(_last(own) / _last(full) - 1)
            ratios.append(logs)
    return np.array(changes), np.array(ratios, dtype=np.float64).reshape(-1, len(SHARES)).T


def _last(run: Record) -> float:
    """The final held-out loss; NaN of a run that diverged."""
    losses = run.column(LOSS)
    return math.nan if run.state == "diverged" or not np.isfinite(losses).all() else float(losses[-1])


def _lane(
    name: str, curves: Curves, draft: tuple[Floats, Floats], p: tuple[float | None, float | None], seconds: float
) -> Lane:
    changes, ratios = draft
    head_starts = []
    for i, share in enumerate(SHARES if len(changes) else ()):
        ratio, ahead = math.exp(np.median(ratios[i])), int((ratios[i] > 0).sum())
        head_starts.append(HeadStart(share, ahead, ratios.shape[1], ratio, p[0] if i == 0 else None))
    return Lane(
        name,
        {seed: float(losses[-1]) for (own, seed), (_, losses) in sorted(curves.items()) if own == name},
        tuple(head_starts),
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
