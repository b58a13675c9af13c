"""Epochs to several levels of training accuracy as a Markdown file: `markdown(results.groups)`.

A table for each task: median epochs by level and mechanism, with the speed-up over full attention; and where the epochs
to 95 % go, waiting or rising.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from semfocus.analysis.comparison import BASE
from semfocus.analysis.groups import Group
from semfocus.analysis.levels import LevelSpeed, epochs_to, speed_at, wait_and_rise
from semfocus.analysis.records import THRESHOLD
from semfocus.analysis.survival import ConvergenceTimes

LEVELS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.99, 0.995)
_ABOUT = (
    "No rule of the verdicts uses these tables: 95 % was fixed beforehand, the other levels were looked at when the "
    "runs were known, and no interval is adjusted for their number. Epochs are medians over seeds; in brackets the "
    "ratio of mean epochs, cut at the horizon, to full attention's, with its 95 % interval, seeds paired."
)
_RISE = (
    "Mean epochs to {level:.1%}, half of the way from the best shortcut to 95 %, and from there to 95 %, of mechanisms "
    "of which more than half of the runs get there:"
)


def markdown(groups: Iterable[Group]) -> str:
    """The file's text."""
    lines = ["# Epochs to other levels than 95 %", "", _ABOUT]
    for group in groups:
        lines += ["", f"## {group.name}", "", *_levels(group), "", *_waits(group)]
    return "\n".join(lines) + "\n"


def _levels(group: Group) -> Iterator[str]:
    others = [mechanism for mechanism in group.mechanisms if mechanism != BASE]
    yield _row(["training accuracy", BASE, *others])
    yield _row(["---"] * (2 + len(others)))
    for level in LEVELS:
        full = epochs_to(group.runs(BASE), level)
        cells = [_cell(speed_at(group, mechanism, level)) for mechanism in others]
        yield _row([f"{100 * level:g} %", _epochs(full), *cells])


def _waits(group: Group) -> Iterator[str]:
    names = [name for name in group.mechanisms if name != BASE and speed_at(group, name, THRESHOLD).is_known]
    pairs = [(name, wait_and_rise(group, name)) for name in names]
    if pairs:
        yield _RISE.format(level=pairs[0][1].level)
        yield ""
        yield _row(["mechanism", "half of the way: full", "half of the way: it", "the rest: full", "the rest: it"])
        yield _row(["---"] * 5)
    for name, times in pairs:
        yield _row([name, *(f"{epochs:.1f}" for epochs in (*times.wait, *times.rise))])


def _cell(one: LevelSpeed) -> str:
    interval = one.speed.interval
    if interval is None or not one.is_known:
        return _epochs(one.other)
    return f"{_epochs(one.other)} ({one.speed.ratio.text}, {interval.low:.2f} to {interval.high:.2f})"


def _epochs(times: ConvergenceTimes) -> str:
    if not times.reached.any():
        return "never"
    return f"> {times.horizon:g}" if times.median is None else f"{times.median:g}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
