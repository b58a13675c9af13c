"""The progress bar of a Python session counts epochs of runs, and loses those of runs that end early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semfocus.report.terminal.bar import ProgressBar


def _progress(ids: str, epoch: float, *, going_on: int = 1, accuracy: float = 0.5) -> Any:
    config = SimpleNamespace(attention=SimpleNamespace(mechanism="topk:5"))
    members = [
        SimpleNamespace(run=SimpleNamespace(id=i), config=config, last={"heldout_accuracy": accuracy}) for i in ids
    ]
    return SimpleNamespace(members=members, going_on=going_on, step=int(10 * epoch), total_steps=40, steps_per_epoch=10)


def test_the_bar_counts_epochs_of_all_runs_and_those_that_end_early_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar({"a": 4.0, "b": 4.0, "c": 4.0}) as bar:
        shown = bar.bar
        bar(_progress("ab", 1))
        assert shown.n == 2
        bar(_progress("x", 3))  # of a run that is not counted
        assert shown.n == 2
        bar(_progress("a", 2, accuracy=0.75))  # b has stopped
        assert shown.n == 4 + 2
        bar(_progress("a", 3, going_on=0))
        bar(_progress("c", 4, going_on=0))
        assert shown.n == shown.total == 12
    assert "topk:5, held out 75.0%" in capsys.readouterr().err


def test_nothing_is_shown_where_nothing_is_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar({}) as bar:
        bar(_progress("a", 1))
    assert capsys.readouterr().err == ""
