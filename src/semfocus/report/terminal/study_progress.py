"""Progress of a study on a terminal: the table of `progress`, with the time left for all cohorts.

Cohorts of one line may train one after the other or side by side in several processes, and the cost of a step differs
between them. The time left is therefore computed from the work of each run: remaining steps times cost of a step.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semfocus.report.terminal.progress import Line, Progress, ProgressTable
from semfocus.report.text import duration

MOST_LINES = 16  # on a screen


@dataclass(frozen=True)
class Work:
    """The remaining work of one run."""

    line: str  # of the table; runs of one shape share a line
    steps: int
    cost: float  # of a step, in any unit


class StudyProgressTable(ProgressTable):
    """Shows the progress of a study; `work` has every run that has not ended, by id."""

    def __init__(self, work: Mapping[str, Work], finished: int = 0) -> None:
        super().__init__(Counter(each.line for each in work.values()))
        self.work = work
        self.finished = finished  # runs that had ended before
        self.to_go = {run_id: each.steps for run_id, each in work.items()}
        self.cohorts: dict[str, _Cohort] = {}  # by the id of each of their members

    def __call__(self, progress: Progress) -> None:
        members = [member.run.id for member in progress.members if member.run.id in self.work]
        if not members:
            return
        first = members[0]
        self.active = self.work[first].line
        if progress.session_steps == 0 or first not in self.cohorts:
            cohort = _Cohort(self.active, frozenset(members))
            self.cohorts |= dict.fromkeys(members, cohort)
        self._take_stock(self.cohorts[first], members, progress)
        line = self.lines[self.active]
        self._note(line, progress)
        if progress.session_steps:
            line.speed = f"{progress.seconds / progress.session_steps / len(members) * 1e3:.2f} ms"
        for run_ids, shown in self._by_line():
            if shown.state != "waiting":
                shown.state = "training" if any(self.to_go[run_id] for run_id in run_ids) else "done"
        self._show(progress)

    def _take_stock(self, cohort: _Cohort, members: Sequence[str], progress: Progress) -> None:
        made = progress.session_steps - cohort.steps
        cohort.work += made * sum(self.work[run_id].cost for run_id in members)
        cohort.steps, cohort.seconds = progress.session_steps, progress.seconds
        for run_id in cohort.ids.difference(members):  # no longer a member: it has ended or diverged
            self.to_go[run_id] = 0
        for run_id in members:
            self.to_go[run_id] = progress.total_steps - progress.step if progress.going_on else 0

    def _time_left(self, steps: int, per_member: float) -> str:
        """An upper bound: runs may stop early."""
        spent: dict[str, float] = defaultdict(float)
        made: dict[str, float] = defaultdict(float)
        for cohort in set(self.cohorts.values()):
            spent[cohort.line] += cohort.seconds
            made[cohort.line] += cohort.work
        overall = sum(spent.values()) / sum(made.values()) if sum(made.values()) else 0.0
        seconds = 0.0
        for run_ids, line in self._by_line():
            name = line.mechanism
            rate = spent[name] / made[name] if made[name] else overall
            seconds += rate * sum(self.to_go[run_id] * self.work[run_id].cost for run_id in run_ids)
        at_once = max(1.0, sum(spent.values()) / max(time.monotonic() - self.began, 1e-9))
        done = self.finished + sum(not steps for steps in self.to_go.values())
        whole = self.finished + len(self.work)
        return f"{done} of {whole} runs done, at most {duration(seconds / at_once)} left"

    def _by_line(self) -> list[tuple[list[str], Line]]:
        ids: dict[str, list[str]] = defaultdict(list)
        for run_id, each in self.work.items():
            ids[each.line].append(run_id)
        return [(ids[name], line) for name, line in self.lines.items()]

    def _shown(self) -> list[Line]:
        """All lines; of many the ones in training and the next ones waiting."""
        lines = list(self.lines.values())
        if len(lines) <= MOST_LINES:
            return lines
        moving = [line for line in lines if line.state == "training"]
        return (moving + [line for line in lines if line.state == "waiting"])[:MOST_LINES]


@dataclass(eq=False)
class _Cohort:
    """Runs that train together, and what they have done since this process began."""

    line: str
    ids: frozenset[str]
    steps: int = 0
    work: float = 0.0
    seconds: float = 0.0
