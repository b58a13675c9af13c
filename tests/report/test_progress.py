"""What a person sees while mechanisms or whole studies train, one after the other or side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from semfocus.report.terminal.progress import ProgressTable, StudyProgressTable, Work


@dataclass
class Told:
    """As `semfocus.training.Progress`: two runs, ten epochs of ten steps, half a second a step."""

    mechanism: str
    step: int
    going_on: int = 2
    members: list[Any] = field(init=False)
    total_steps: int = 100
    steps_per_epoch: int = 10
    worker: str = ""

    def __post_init__(self) -> None:
        row = {"train_loss": 0.5, "train_accuracy": 0.75, "heldout_accuracy": 0.7}
        config = SimpleNamespace(attention=SimpleNamespace(mechanism=self.mechanism))
        self.members = [SimpleNamespace(config=config, last=row if self.step else {})] * 2

    @property
    def session_steps(self) -> int:
        return self.step

    @property
    def seconds(self) -> float:
        return self.step / 2


@pytest.fixture
def board() -> ProgressTable:
    return ProgressTable({"full": 2, "topk:5": 2, "banded:5": 2})


def test_mechanisms_that_train_side_by_side_are_all_shown_at_work(board: ProgressTable) -> None:
    board(Told("full", 10))
    board(Told("topk:5", 20))
    board(Told("full", 30))
    assert [line.state for line in board.lines.values()] == ["training", "training", "waiting"]
    assert [line.epoch for line in board.lines.values()] == ["3.0 / 10", "2.0 / 10", ""]


def test_a_mechanism_is_done_when_none_of_its_runs_goes_on_even_before_the_last_epoch(board: ProgressTable) -> None:
    board(Told("full", 30, going_on=0))
    board(Told("topk:5", 20))
    assert [line.state for line in board.lines.values()] == ["done", "training", "waiting"]


def test_the_time_left_counts_what_waits_and_is_shared_by_those_at_work(board: ProgressTable) -> None:
    board(Told("full", 20))
    assert board.left == "at most 2 min 20 s left"  # 80 steps of half a second, and twice 100
    board(Told("topk:5", 20))
    assert board.left == "at most 1 min 05 s left"  # (40 s + 40 s + 50 s) / 2
    board(Told("full", 100, going_on=0))
    board(Told("banded:5", 100, going_on=0))
    assert board.left == "at most 40 s left"


def test_plain_lines_come_for_each_mechanism_now_and_then_and_at_its_end(
    board: ProgressTable, capsys: pytest.CaptureFixture[str]
) -> None:
    for told in (Told("full", 0), Told("topk:5", 10), Told("full", 20), Told("topk:5", 30, going_on=0)):
        board(told)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["full", "topk:5", "topk:5"]
    assert "epoch     3.0 / 10  loss  0.500  train  75.0%  held out  70.0%" in lines[-1]


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Report:
    """As `semfocus.training.Progress`, of runs with ids."""

    ids: list[str]
    step: int
    session_steps: int
    seconds: float
    total_steps: int = 100
    steps_per_epoch: int = 10
    ended: int = 0
    worker: str = ""

    @property
    def going_on(self) -> int:
        return 0 if self.step == self.total_steps else len(self.ids) - self.ended

    @property
    def members(self) -> list[Any]:
        last = {"train_loss": 1.0, "train_accuracy": 0.5, "heldout_accuracy": 0.5}
        return [SimpleNamespace(run=SimpleNamespace(id=run_id), last=last) for run_id in self.ids]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def left(board: StudyProgressTable) -> tuple[int, int]:
    """Runs done, and seconds left."""
    match = re.fullmatch(r"(\d+) of \d+ runs done, at most (?:(\d+) h )?(?:(\d+) min ?)?(?:(\d+) s)? ?left", board.left)
    assert match, board.left
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    return int(match[1]), 3600 * hours + 60 * minutes + seconds


def test_time_left_covers_all_cohorts_by_the_cost_of_their_steps(clock: Clock) -> None:
    work = {"a1": Work("a", 100, 1.0), "a2": Work("a", 100, 1.0), "b1": Work("b", 100, 3.0), "b2": Work("b", 50, 3.0)}
    board = StudyProgressTable(work, finished=5, clock=clock)
    board(Report(["a1", "a2"], 0, 0, 0.0))
    clock.now = 10.0
    board(Report(["a1", "a2"], 50, 50, 10.0))  # 100 units in 10 s; 100 units to go here, 450 in line b
    assert left(board) == (5, 55)
    clock.now = 20.0
    board(Report(["a1", "a2"], 100, 100, 20.0))
    assert left(board) == (7, 45)
    assert board.lines["a"].state == "done"
    assert board.lines["b"].state == "waiting"
    board(Report(["b1"], 0, 0, 0.0))  # the cohorts of one line follow each other
    clock.now = 80.0
    board(Report(["b1"], 50, 50, 60.0))  # dearer than foretold: 0.4 s a unit
    assert left(board) == (7, 120)
    assert board.lines["b"].state == "training"


def test_the_time_left_counts_what_cohorts_that_wait_take_to_start(clock: Clock) -> None:
    """A process, data and a compilation: 30 of 40 seconds were not counted."""
    board = StudyProgressTable({name: Work(name, 100, 1.0) for name in "abc"}, clock=clock)
    assert board.left == "0 of 3 runs done, starting"
    clock.now = 10.0
    board(Report(["a"], 0, 0, 0.0))  # ten seconds until it began
    clock.now = 32.0
    board(Report(["a"], 20, 20, 22.0))  # of which twenty for a compilation
    clock.now = 40.0
    board(Report(["a"], 100, 100, 30.0))
    assert left(board) == (1, 2 * (10 + 20 + 10))
    clock.now = 45.0
    board(Report(["b"], 0, 0, 0.0))  # in the place of the first, after five seconds
    clock.now = 67.0
    board(Report(["b"], 20, 20, 22.0))
    clock.now = 71.0
    board(Report(["b"], 60, 60, 26.0))
    assert left(board) == (1, 4 + 10 + 27)  # c takes the mean of 30 and 25 seconds to start


def test_a_resumed_run_has_only_its_rest_to_go(clock: Clock) -> None:
    board = StudyProgressTable({"a": Work("a", 40, 1.0), "b": Work("b", 100, 1.0)}, finished=1, clock=clock)
    board(Report(["a"], 60, 0, 0.0))
    clock.now = 20.0
    board(Report(["a"], 80, 20, 20.0))
    assert left(board) == (1, 20 + 100)


def test_cohorts_that_train_side_by_side_share_the_time_left(clock: Clock) -> None:
    board = StudyProgressTable({name: Work(name, 100, 1.0) for name in "abcd"}, clock=clock)
    for name in "ab":
        board(Report([name], 0, 0, 0.0))
    clock.now = 10.0
    for name in "ab":
        board(Report([name], 50, 50, 10.0))
    assert left(board) == (0, 30)  # 300 units at 0.2 s, two at a time


def test_runs_that_end_early_are_no_longer_counted(clock: Clock) -> None:
    board = StudyProgressTable({name: Work("line", 100, 1.0) for name in "abc"}, clock=clock)
    board(Report(["a", "b", "c"], 0, 0, 0.0))
    clock.now = 3.0
    board(Report(["a", "b", "c"], 10, 10, 3.0, ended=2))
    board(Report(["b"], 20, 20, 6.0))
    assert left(board)[0] == 2
    assert board.lines["line"].state == "training"
    board(Report(["b"], 30, 30, 9.0, ended=1))
    assert left(board) == (3, 0)
    assert board.lines["line"].state == "done"


def test_halves_of_a_cohort_that_did_not_fit_count_as_cohorts_of_their_own(clock: Clock) -> None:
    board = StudyProgressTable({name: Work("line", 100, 1.0) for name in "ab"}, clock=clock)
    board(Report(["a", "b"], 0, 0, 0.0))
    board(Report(["a"], 0, 0, 0.0))
    clock.now = 10.0
    board(Report(["a"], 100, 100, 10.0))
    assert left(board) == (1, 10)


def test_a_long_study_shows_what_moves_and_what_comes_next(clock: Clock) -> None:
    board = StudyProgressTable({str(i): Work(f"line {i}", 10, 1.0) for i in range(40)}, clock=clock)
    for i in range(30):
        board(Report([str(i)], 0, 0, 0.0, total_steps=10))
        clock.now += 1
        board(Report([str(i)], 10 if i < 29 else 5, 10, 1.0, total_steps=10))
    shown = [line.mechanism for line in board.shown_lines()]
    assert shown[0] == "line 29"
    assert shown[1:] == [f"line {i}" for i in range(30, 40)]
    assert board.table().row_count == 11


def test_a_run_that_is_not_of_the_study_is_passed_over() -> None:
    board = StudyProgressTable({"a": Work("line", 10, 1.0)})
    board(Report(["z"], 0, 0, 0.0))
    board(Report([], 0, 0, 0.0))
    assert board.active is None


def test_the_machines_that_train_a_mechanism_stand_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    work = {run_id: Work("even_pairs full", 100, 1.0) for run_id in "abcd"}
    with StudyProgressTable(work) as table:
        table(Report(["a", "b"], 50, 50, 5.0, worker="node-1"))
        table(Report(["c", "d"], 50, 50, 5.0, worker="node-2"))
        assert table.lines["even_pairs full"].where == "node-1, node-2"
        assert [column.header for column in table.table().columns][-1] == "on"
        table(Report(["a", "b"], 100, 100, 9.0, ended=2, worker="node-1"))
    assert table.lines["even_pairs full"].where == "node-2"
    assert "on node-1" in capsys.readouterr().err
