"""A process killed at any moment leaves the previous checkpoint or the new one, and complete rows."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from semfocus.store import RunStore
from tests.store.helpers import RUN, advance, assert_consistent, copy_run, filled, new_run, processes, row, train_on
from tests.store.machine import Killed, Machine


def _train_for_ever(root: Path, saved: Connection) -> None:
    with RunStore(root).open(RUN).lock() as writer:
        checkpoint = writer.load_checkpoint()
        writer.rewind(checkpoint)
        step = checkpoint.step if checkpoint else 0
        while True:
            advance(writer, step + 1, step + 2)
            step += 2
            saved.send(step)


def _last(received: Connection) -> int:
    """Return the last step that the killed process reported as saved."""
    step = 0
    while received.poll():
        try:
            step = received.recv()
        except EOFError:
            break
    return step


def test_kill_9_at_random_moments_never_leaves_half_a_checkpoint_or_loses_a_saved_one(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    context = processes()
    dice = random.Random(3)
    reported = 0
    for _ in range(30):
        received, saved = context.Pipe(duplex=False)
        process = context.Process(target=_train_for_ever, args=(tmp_path, saved))
        process.start()
        saved.close()
        received.poll(20)  # until the first step is saved
        time.sleep(dice.uniform(0, 0.06))
        process.kill()
        process.join()
        assert process.exitcode == -9
        reported = max(reported, _last(received))
        received.close()
        reported = max(reported, assert_consistent(run, at_least=reported))
    assert reported > 30


def test_death_at_every_change_of_the_file_system_leaves_the_old_state_or_the_new(tmp_path: Path) -> None:
    interrupted = filled(tmp_path / "interrupted", last=5)
    undisturbed = copy_run(interrupted, tmp_path / "undisturbed")
    with Machine() as machine:
        train_on(undisturbed, 8)
    assert len(machine.events) > 50
    steps = set()
    for call in range(1, len(machine.events) + 1):
        run = copy_run(interrupted, tmp_path / str(call))
        with pytest.raises(Killed), Machine(die_at=call):
            train_on(run, 8)
        steps.add(assert_consistent(run, at_least=4))
        with Machine():  # for its speed
            train_on(run, 10)
        assert assert_consistent(run) == 10
        assert sorted(os.listdir(run.path / "checkpoints")) == ["10", "8"]
        names = [name for _, folders, files in os.walk(run.path) for name in folders + files]
        assert [name for name in names if name.startswith(".")] == [], "a leftover was not removed"
    assert steps == {4, 6, 8}


@pytest.mark.parametrize("incomplete", [b'{"epoch": 1, "st', b"\0\0\0\0", b'{"step": 9}', b"\xff\xfe"])
def test_an_incomplete_last_line_is_not_read_and_is_replaced_by_the_next(tmp_path: Path, incomplete: bytes) -> None:
    run = filled(tmp_path, last=3)
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + incomplete)
    assert run.metrics() == [row(1), row(2), row(3)]
    with run.lock() as writer:
        writer.append_metrics(row(4))
    assert run.metrics() == [row(1), row(2), row(3), row(4)]
    assert path.read_bytes().count(b"\n") == 4


def test_resuming_leaves_no_row_twice_and_none_of_the_lost_steps(tmp_path: Path) -> None:
    run = filled(tmp_path, last=5)
    with run.lock() as writer:
        writer.rewind(writer.load_checkpoint())
        assert [r["step"] for r in writer.metrics()] == [1, 2, 3, 4]
        assert [r["step"] for r in writer.timing()] == [1, 2, 3, 4]
        advance(writer, 5, 6)
    assert [r["step"] for r in run.metrics()] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in run.timing()] == [1, 2, 3, 4, 5, 6]


def test_a_kill_before_the_first_checkpoint_starts_from_an_empty_log(tmp_path: Path) -> None:
    run = filled(tmp_path, last=1)
    with run.lock() as writer:
        checkpoint = writer.load_checkpoint()
        assert checkpoint is None
        writer.rewind(checkpoint)
        assert writer.metrics() == []
