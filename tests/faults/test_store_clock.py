"""The wall clock decides nothing; order is by step."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from semfocus.store import RunStore
from tests.store.helpers import RUN, advance, assert_consistent, filled, new_run


def test_the_newest_checkpoint_is_the_highest_step_whatever_the_file_times_say(tmp_path: Path) -> None:
    run = filled(tmp_path, last=12, every=2, keep=(2, 10))
    for age, step in enumerate(run.checkpoint_steps()):
        for place in (run.path / "checkpoints" / str(step)).iterdir():
            os.utime(place, (1e9 + age * 1e6,) * 2)
        os.utime(run.path / "checkpoints" / str(step), (1e9 + age * 1e6,) * 2)
    assert run.checkpoint_steps() == [12, 10, 2], "as numbers, not as texts"
    assert assert_consistent(run) == 12


def test_a_clock_that_runs_backwards_changes_neither_order_nor_pruning_nor_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(2_000_000_000, 0, -100_000_000))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    run = new_run(tmp_path)
    for first in (1, 5, 9):
        with run.lock() as writer:
            writer.rewind(writer.load_checkpoint())
            advance(writer, first, first + 3)
            writer.write_status("interrupted")
    assert assert_consistent(run) == 12
    assert run.checkpoint_steps() == [12, 10]
    assert RunStore(tmp_path).find(RUN[:4]).id == RUN


def test_what_a_run_keeps_says_nothing_about_the_time_it_was_made(tmp_path: Path) -> None:
    """Two runs of one configuration must be equal to the bit, so that no clock may get into them."""
    runs = [filled(tmp_path / name) for name in ("a", "b")]
    names = ["config.json", "metrics.jsonl", "checkpoints/4/state.safetensors", "checkpoints/4/manifest.json"]
    for name in names:
        first, second = ((run.path / name).read_bytes() for run in runs)
        assert first == second, name
