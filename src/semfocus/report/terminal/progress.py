"""Progress of training runs on a terminal: a line for each mechanism, and the time left."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semfocus.report.text import duration

PLAIN_EVERY = 10.0  # seconds between plain lines


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


class ProgressTable:
    """Shows progress as a table that is redrawn on a terminal, elsewhere as plain lines. A context manager."""

    def __init__(self, runs: dict[str, int]) -> None:
        self.lines = {name: Line(name, count) for name, count in runs.items()}
        self.active: str | None = None
        self.left = ""
        self.cost: dict[str, tuple[float, float]] = {}  # mechanism -> member-steps to go, seconds a member-step
        self.told: dict[str, float] = {}  # mechanism -> when its last plain line was written
        self.began = time.monotonic()
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
        self._note(self.lines[mechanism], progress)
        self._show(progress)

    def _note(self, line: Line, progress: Progress) -> None:
        line.state = "training" if progress.going_on else "done"
        total = progress.total_steps // progress.steps_per_epoch
        line.epoch = f"{progress.step / progress.steps_per_epoch:.1f} / {total}"
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

    def _time_left(self, steps: int, per_member: float) -> str:
        """An upper bound: runs may stop early. Mechanisms that train side by side share the work."""
        waiting = sum(line.runs for line in self.lines.values() if line.state == "waiting")
        at_work = [to_go * cost for to_go, cost in self.cost.values() if to_go]
        shared = (sum(at_work) + waiting * steps * per_member) / max(1, len(at_work))
        return f"at most {duration(max([shared, *at_work]))} left"

    def _show(self, progress: Progress) -> None:
        if self.live is not None:
            self.live.update(self._table())
            return
        now = time.monotonic()
        line = self.lines[self.active or ""]
        if line.mechanism in self.told and now - self.told[line.mechanism] < PLAIN_EVERY and progress.going_on:
            return
        self.told[line.mechanism] = now
        print(
            f"{line.mechanism:18} epoch {line.epoch:>12}  loss {line.loss:>6}  train {line.train:>6}"
            f"  held out {line.heldout:>6}  {self.left}",
            file=sys.stderr,
            flush=True,
        )

    def _shown(self) -> list[Line]:
        return list(self.lines.values())

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", caption=self.left, caption_justify="left")
        for title in ("mechanism", "runs", "", "epoch", "loss", "train", "held out", "a member-step"):
            table.add_column(title, justify="left" if title in ("mechanism", "") else "right")
        for line in self._shown():
            cells = (
                line.mechanism,
                str(line.runs),
                line.state,
                line.epoch,
                line.loss,
                line.train,
                line.heldout,
                line.speed,
            )
            table.add_row(*cells, style="dim" if line.state == "waiting" else "")
        return table
