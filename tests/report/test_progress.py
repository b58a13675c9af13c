"""What a person sees while mechanisms train, one after the other or side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from semfocus.report.terminal import progress
from semfocus.report.terminal.progress import ProgressTable


@dataclass
class Told:
    """As `semfocus.training.Progress`: two runs, ten epochs of ten steps, half a second a step."""

    mechanism: str
    step: int
    going_on: int = 2
    members: list[Any] = field(init=False)
    total_steps: int = 100
    steps_per_epoch: int = 10

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
def board(monkeypatch: pytest.MonkeyPatch) -> ProgressTable:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False, raising=False)
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
