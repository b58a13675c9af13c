"""Language models by tokens as text: the same table and words for the terminal, notebooks and pages."""

from __future__ import annotations

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.tokens import COURSE, GOALS, TokenRace, tokens_text
from semfocus.report.text import TextTable, counted, duration

NOTE = (
    "Tokens to full attention's held-out losses once 25 %, 50 % and all of its training was done, against what it took "
    "itself: median over seeds, and how many of them got there. Later: half of the seeds did not within the training. "
    "p by exact swaps within seeds, after Holm over all tests of the table's mechanisms."
)


def race_table(race: TokenRace) -> TextTable:
    """A row for each mechanism: its final loss against full attention's, and the tokens to full attention's losses."""
    heads = ["mechanism", "held-out loss", "against full", "95 % interval", "p (Holm)"]
    heads += [f"tokens to full's loss at {goal:.0%}" for goal in GOALS]
    rows = []
    for lane in race.lanes:
        ends = "" if lane.interval is None else f"{lane.interval.low:+.2%} to {lane.interval.high:+.2%}"
        cells = ["" if lane.loss is None else f"{lane.loss:.4f}", "" if lane.change is None else f"{lane.change:+.2%}"]
        came = [f"{one.text} ({one.reached} of {one.seeds})" for one in lane.arrivals] or [""] * len(GOALS)
        time = duration(lane.seconds) if lane.losses else ""
        rows.append([lane.mechanism, *cells, ends, "" if lane.p is None else f"{lane.p:.2g}", *came, time])
    return TextTable("", [*heads, "time a run"], rows, NOTE)


def course_table(race: TokenRace) -> TextTable:
    """The picture in numbers: a row for each mechanism, its held-out loss after so many tokens."""
    heads = ["held-out loss after", *(tokens_text(share * race.tokens) for share in COURSE)]
    rows = [[lane.mechanism, *(f"{loss:.3f}" for loss in lane.course)] for lane in race.lanes if lane.course]
    return TextTable("", heads, rows)


def comparison_title(comparison: Comparison) -> str:
    """`parity: 3 seeds, at most 20 epochs`, or `text: 3 seeds, 819 k tokens each`."""
    many = counted(comparison.seeds, "seed")
    if comparison.race is not None:
        return f"{comparison.task}: {many}, {tokens_text(comparison.race.tokens)} tokens each"
    return f"{comparison.task}: {many}, at most {counted(comparison.horizon, 'epoch')}"
