"""Language models by tokens as text: the same table and words for the terminal, notebooks and pages."""

from __future__ import annotations

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.tokens import COURSE, SHARES, TokenRace, tokens_text
from semfocus.report.text import TextTable, counted, duration

NOTE = (
    "Head start: how many times fewer tokens than full attention's run of its seed a run needs to one held-out loss, "
    "the larger of the two at 25 %, 50 % and 100 % of training; below 1x it needs more. Median over seeds, and how "
    "many of them are ahead. p by exact swaps within seeds, after Holm over all tests of the table's mechanisms."
)


def race_table(race: TokenRace) -> TextTable:
    """A row for each mechanism: its final loss against full attention's, and its head starts."""
    heads = ["mechanism", "held-out loss", "against full", "95 % interval", "p (Holm)"]
    heads += [f"head start at {share:.0%}" for share in SHARES]
    rows = []
    for lane in race.lanes:
        ends = "" if lane.interval is None else f"{lane.interval.low:+.2%} to {lane.interval.high:+.2%}"
        cells = ["" if lane.loss is None else f"{lane.loss:.4f}", "" if lane.change is None else f"{lane.change:+.2%}"]
        starts = [f"{one.text} ({one.ahead} of {one.seeds})" for one in lane.head_starts] or [""] * len(SHARES)
        time = duration(lane.seconds) if lane.losses else ""
        rows.append([lane.mechanism, *cells, ends, "" if lane.p is None else f"{lane.p:.2g}", *starts, time])
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
