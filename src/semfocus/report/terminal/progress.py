"""Progress of training runs on a terminal: a line for each mechanism, and the time left.

`ProgressTable` is for the cohorts of one comparison, `StudyProgressTable` for a study. Cohorts of one line of a study
may train one after the other or side by side in several processes, and the cost of a step differs between them. The
time left is therefore computed from the work of each run: remaining steps times cost of a step. Each cohort also has to
start: a process, data, a compilation. That time is measured on those that have started and counted for those that wait.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semfocus.report.text import duration

PLAIN_EVERY = 10.0  # seconds between plain lines
MAX_LINES = 16  # on a screen
MAX_NODES = 3  # in a line


class Progress(Protocol):
    """The part of `semfocus.training.Progress` that is shown."""

    @property
    def members(self) -> Sequence[Any]: ...
    @property
    def going_on(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def session_steps(self) -> int: ...
    @property
    def worker(self) -> str: ...


@dataclass
class Line:
    """The line of one mechanism."""

    mechanism: str
    runs: int
    state: str = "waiting"
    epoch: str = ""
    loss: str = ""
    train: str = ""
    heldout: str = ""
    speed: str = ""
    where: str = ""  # the machines that train it, where they are others


class ProgressTable:
    """Shows progress as a table that is redrawn on a terminal, elsewhere as plain lines. A context manager."""

    def __init__(self, runs: dict[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lines = {name: Line(name, count) for name, count in runs.items()}
        self.active: str | None = None
        self.left = ""
        self.cost: dict[str, tuple[float, float]] = {}  # mechanism -> member-steps to go, seconds a member-step
        self.workers: dict[str, dict[str, str]] = {}  # mechanism -> first member of a cohort -> its machine
        self.printed_at: dict[str, float] = {}  # mechanism -> time of its last plain line
        self.began = clock()
        self.live: Any = None

    def __enter__(self) -> ProgressTable:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, progress: Progress) -> None:
        """Record the progress of a cohort and show it."""
        mechanism = progress.members[0].config.attention.mechanism if progress.members else self.active
        if mechanism is None or mechanism not in self.lines:
            return
        self.active = mechanism
        self._update_line(self.lines[mechanism], progress)
        self._show(progress)

    def _update_line(self, line: Line, progress: Progress) -> None:
        line.state = "training" if progress.going_on else "done"
        total = progress.total_steps // progress.steps_per_epoch
        line.epoch = f"{progress.step / progress.steps_per_epoch:.1f} / {total}"
        self._update_where(line, progress)
        rows = [member.last for member in progress.members if member.last]
        if rows:
            line.loss = f"{statistics.median(row['train_loss'] for row in rows):.3f}"
            if "train_accuracy" in rows[0]:  # some objectives have none
                line.train = f"{statistics.median(row['train_accuracy'] for row in rows):.1%}"
                line.heldout = f"{statistics.median(row['heldout_accuracy'] for row in rows):.1%}"
        if progress.session_steps:
            per_member = progress.seconds / progress.session_steps / line.runs
            line.speed = f"{per_member * 1e3:.2f} ms"
            to_go = progress.total_steps - progress.step if progress.going_on else 0
            self.cost[line.mechanism] = (to_go * line.runs, per_member)
            self.left = self._time_left(progress.total_steps, per_member)

    def _update_where(self, line: Line, progress: Progress) -> None:
        workers = self.workers.setdefault(line.mechanism, {})
        if progress.members and progress.worker:
            workers[progress.members[0].run.id] = progress.worker
            if not progress.going_on:
                del workers[progress.members[0].run.id]
        nodes = Counter(workers.values())
        shown = [f"{node} x {count}" if count > 1 else node for node, count in nodes.most_common(MAX_NODES)]
        line.where = ", ".join(shown) + (f" and {len(nodes) - MAX_NODES} more" if len(nodes) > MAX_NODES else "")

    def _time_left(self, steps: int, per_member: float) -> str:
        """An upper bound: runs may stop early. Mechanisms that train side by side share the work."""
        waiting = sum(line.runs for line in self.lines.values() if line.state == "waiting")
        at_work = [to_go * cost for to_go, cost in self.cost.values() if to_go]
        shared = (sum(at_work) + waiting * steps * per_member) / max(1, len(at_work))
        return f"at most {duration(max([shared, *at_work]))} left"

    def _show(self, progress: Progress) -> None:
        if self.live is not None:
            self.live.update(self.table())
            return
        now = self.clock()
        line = self.lines[self.active or ""]
        since = now - self.printed_at.get(line.mechanism, -math.inf)
        if since < PLAIN_EVERY and progress.going_on:
            return
        self.printed_at[line.mechanism] = now
        print(
            f"{line.mechanism:18} epoch {line.epoch:>12}  loss {line.loss:>6}  train {line.train:>6}"
            f"  held out {line.heldout:>6}  {self.left}{f'  on {line.where}' if line.where else ''}",
            file=sys.stderr,
            flush=True,
        )

    def shown_lines(self) -> list[Line]:
        """The lines that the table has room for."""
        return list(self.lines.values())

    def table(self) -> Any:
        """The table for the terminal."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", caption=self.left, caption_justify="left")
        elsewhere = any(self.workers.values())
        titles = ("mechanism", "runs", "", "epoch", "loss", "train", "held out", "a member-step", *["on"] * elsewhere)
        for title in titles:
            table.add_column(title, justify="left" if title in ("mechanism", "", "on") else "right")
        for line in self.shown_lines():
            cells = (
                line.mechanism,
                str(line.runs),
                line.state,
                line.epoch,
                line.loss,
                line.train,
                line.heldout,
                line.speed,
                *[line.where] * elsewhere,
            )
            table.add_row(*cells, style="dim" if line.state == "waiting" else "")
        return table


@dataclass(frozen=True)
class Work:
    """The remaining work of one run."""

    line: str  # of the table; runs of one shape share a line
    steps: int
    cost: float  # of a step, in any unit


class StudyProgressTable(ProgressTable):
    """Shows the progress of a study; `work` has every run that has not ended, by id."""

    def __init__(
        self, work: Mapping[str, Work], finished: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(Counter(each.line for each in work.values()), clock)
        self.work = work
        self.finished = finished  # runs that had ended before
        self.to_go = {run_id: each.steps for run_id, each in work.items()}
        self.cohorts: dict[str, _Cohort] = {}  # by the id of each of their members
        self.freed: list[float] = []  # when a cohort ended, and nothing has begun in its place yet
        self.left = f"{finished} of {finished + len(work)} runs done, starting"

    def __call__(self, progress: Progress) -> None:
        members = [member.run.id for member in progress.members if member.run.id in self.work]
        if not members:
            return
        first = members[0]
        self.active = self.work[first].line
        if progress.session_steps == 0 or first not in self.cohorts:
            since = self.freed.pop(0) if self.freed else self.began
            delay = max(0.0, self.clock() - progress.seconds - since)
            self.cohorts |= dict.fromkeys(members, _Cohort(self.active, frozenset(members), delay))
        self._update_work(self.cohorts[first], members, progress)
        if not progress.going_on:
            self.freed.append(self.clock())
        line = self.lines[self.active]
        self._update_line(line, progress)
        if progress.session_steps:
            line.speed = f"{progress.seconds / progress.session_steps / len(members) * 1e3:.2f} ms"
        for run_ids, shown in self._by_line():
            if shown.state != "waiting":
                shown.state = "training" if any(self.to_go[run_id] for run_id in run_ids) else "done"
        self._show(progress)

    def _update_work(self, cohort: _Cohort, members: Sequence[str], progress: Progress) -> None:
        made = progress.session_steps - cohort.steps
        cohort.work += made * sum(self.work[run_id].cost for run_id in members)
        cohort.steps, cohort.seconds = progress.session_steps, progress.seconds
        if made and cohort.first is None:
            cohort.first = cohort.work, cohort.seconds
        for run_id in cohort.ids.difference(members):  # no longer a member: it has ended or diverged
            self.to_go[run_id] = 0
        for run_id in members:
            self.to_go[run_id] = progress.total_steps - progress.step if progress.going_on else 0

    def _time_left(self, steps: int, per_member: float) -> str:
        """An upper bound: runs may stop early. Cohorts that wait take as long to start as the others did."""
        cohorts = set(self.cohorts.values())
        overall = _rate(cohorts)
        seconds, waiting = 0.0, 0
        for run_ids, line in self._by_line():
            rate = _rate(cohort for cohort in cohorts if cohort.line == line.mechanism) or overall
            seconds += rate * sum(self.to_go[run_id] * self.work[run_id].cost for run_id in run_ids)
            waiting += not any(run_id in self.cohorts for run_id in run_ids)
        starts = [cohort.delay + cohort.warm_up(overall) for cohort in cohorts if cohort.first is not None]
        seconds += waiting * (statistics.mean(starts) if starts else 0.0)
        spent = sum(cohort.delay + cohort.seconds for cohort in cohorts)
        at_once = max(1.0, spent / max(self.clock() - self.began, 1e-9))
        done = self.finished + sum(not steps for steps in self.to_go.values())
        whole = self.finished + len(self.work)
        return f"{done} of {whole} runs done, at most {duration(seconds / at_once)} left"

    def _by_line(self) -> list[tuple[list[str], Line]]:
        ids: dict[str, list[str]] = defaultdict(list)
        for run_id, each in self.work.items():
            ids[each.line].append(run_id)
        return [(ids[name], line) for name, line in self.lines.items()]

    def shown_lines(self) -> list[Line]:
        """All lines; of many the ones in training and the next ones waiting."""
        lines = list(self.lines.values())
        if len(lines) <= MAX_LINES:
            return lines
        moving = [line for line in lines if line.state == "training"]
        return (moving + [line for line in lines if line.state == "waiting"])[:MAX_LINES]


@dataclass(eq=False)
class _Cohort:
    """Runs that train together, and what they have done since this process began."""

    line: str
    ids: frozenset[str]
    delay: float  # seconds from when it could begin to the begin of its own clock
    steps: int = 0
    work: float = 0.0
    seconds: float = 0.0
    first: tuple[float, float] | None = None  # work and seconds when its first steps were made

    def steady(self) -> tuple[float, float]:
        """Work and seconds after the first steps, which a compilation may be part of; without any, all there are."""
        work, seconds = self.first or (0.0, 0.0)
        return (self.work - work, self.seconds - seconds) if self.work > work else (self.work, self.seconds)

    def warm_up(self, overall: float) -> float:
        """Seconds that the first steps took beyond those that steps take."""
        work, seconds = self.first or (0.0, 0.0)
        return max(0.0, seconds - work * (_rate([self]) or overall))


def _rate(cohorts: Iterable[_Cohort]) -> float:
    """Seconds for one unit of work; 0 while no step is made."""
    pairs = [cohort.steady() for cohort in cohorts]
    work = sum(done for done, _ in pairs)
    return sum(seconds for _, seconds in pairs) / work if work else 0.0
