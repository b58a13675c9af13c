"""One writer a run; a dead one's lock is free; a run that vanishes is noticed."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from semfocus.errors import Locked, StorageError
from semfocus.store import RunDirectory, RunStore, RunWriter
from semfocus.store.locks import HeldLock
from tests.store.helpers import RUN, advance, assert_consistent, filled, new_run, processes, row, state


def _hold(root: Path, answer: Connection) -> None:
    with RunStore(root).open(RUN).lock():
        answer.send(os.getpid())
        answer.poll(60)  # until it is killed


@contextmanager
def _held_elsewhere(root: Path) -> Iterator[Any]:
    context = processes()
    here, there = context.Pipe()
    process = context.Process(target=_hold, args=(root, there))
    process.start()
    assert here.recv() == process.pid
    yield process
    process.kill()
    process.join()
    here.close()
    there.close()


def test_a_second_process_is_refused_with_the_name_of_the_holder(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with _held_elsewhere(tmp_path) as process:
        with (
            pytest.raises(Locked, match=f"process {process.pid} on {os.uname().nodename} since ") as caught,
            run.lock(),
        ):
            pass
        assert caught.value.exit_code == 4
        assert run.holder().pid == process.pid
        with pytest.raises(Locked):
            RunStore(tmp_path).remove(RUN)
    assert run.path.is_dir()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with _held_elsewhere(tmp_path) as process:
        process.kill()
        process.join()
        assert str(process.pid) in (run.path / "lock").read_text(), "the dead process left its name"
        assert run.holder() is None
        with run.lock() as writer:
            advance(writer, 1, 2)
    assert assert_consistent(run) == 2


def test_the_same_process_cannot_lock_twice_and_can_lock_again_later(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        with pytest.raises(Locked, match=f"process {os.getpid()} "), run.lock():
            pass
        assert run.holder().pid == os.getpid()
    assert run.holder() is None
    with run.lock():
        pass


def test_two_threads_cannot_hold_one_run(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    errors: list[BaseException] = []

    def try_it() -> None:
        try:
            with run.lock():
                pass
        except Locked as error:
            errors.append(error)

    with run.lock():
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert len(errors) == 1


class _WholeProcessLocks:
    """flock as NFS has it: locks belong to the process, and closing any descriptor of the file drops them."""

    def __init__(self) -> None:
        self.locked: set[tuple[int, int]] = set()
        self._close = os.close

    def flock(self, handle: int, operation: int) -> None:
        self.locked.add(self._key(handle))  # never refused: a process does not conflict with itself

    def close(self, handle: int) -> None:
        self.locked.discard(self._key(handle))
        self._close(handle)

    @staticmethod
    def _key(handle: int) -> tuple[int, int]:
        status = os.fstat(handle)
        return status.st_dev, status.st_ino


def test_looking_does_not_drop_the_lock_where_closing_a_descriptor_drops_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    system = _WholeProcessLocks()
    with mock.patch.object(fcntl, "flock", system.flock), mock.patch.object(os, "close", system.close), run.lock():
        assert len(system.locked) == 1
        assert run.holder().pid == os.getpid()
        assert RunStore(tmp_path).entries()[0].state == "running"
        with pytest.raises(Locked), run.lock():
            pass
        assert len(system.locked) == 1
    assert system.locked == set()


def test_somebody_who_only_looks_does_not_make_a_lock_fail(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        pass
    looking = os.open(run.path / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            os.close(looking)

    with mock.patch.object(time, "sleep", pause), run.lock() as writer:
        advance(writer, 1, 2)
    assert len(pauses) == 2
    assert min(pauses) > 0


def test_a_file_system_without_locks_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with (
        mock.patch.object(fcntl, "flock", side_effect=OSError(38, "Function not implemented")),
        pytest.raises(StorageError, match="no locks"),
        run.lock(),
    ):
        pass


def test_a_writer_whose_lock_was_taken_over_writes_nothing_more(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock() as writer:
        writer.append_metrics(row(1))
        (run.path / "lock").write_text('{"pid": 77, "host": "elsewhere", "since": "later", "token": "another"}')
        with pytest.raises(Locked, match="process 77 on elsewhere"):
            writer.append_metrics(row(2))
        with pytest.raises(Locked):
            writer.save_checkpoint(2, state(2), {})
    assert run.metrics() == [row(1)]
    assert run.checkpoint_steps() == []
    assert "elsewhere" in (run.path / "lock").read_text(), "the new holder's name was wiped"


def _fork_and_report(root: Path, answer: Connection) -> None:
    """Fork while holding the lock, then end; the child lives on."""
    with RunStore(root).open(RUN).lock() as writer:
        if os.fork() == 0:
            try:
                writer.append_metrics(row(1))
                answer.send("the child wrote")
            except StorageError as error:
                answer.send(str(error))
            answer.poll(60)
            os._exit(0)
        os._exit(0)


def test_a_child_that_outlives_its_parent_neither_keeps_the_lock_nor_writes(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    context = processes()
    here, there = context.Pipe()
    process = context.Process(target=_fork_and_report, args=(tmp_path, there))
    process.start()
    assert "forked" in here.recv()
    process.join()
    with run.lock():
        pass
    here.send("end")


WRITES: dict[str, Callable[[RunWriter], None]] = {
    "metrics": lambda writer: writer.append_metrics(row(5)),
    "timing": lambda writer: writer.append_timing({"seconds": 1.0}),
    "status": lambda writer: writer.write_status("done"),
    "checkpoint": lambda writer: writer.save_checkpoint(6, state(6), {}),
    "rewind": lambda writer: writer.rewind(None),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_run_deleted_while_it_trains_is_named_and_not_made_again(
    tmp_path: Path, write: Callable[[RunWriter], None]
) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        shutil.rmtree(run.path)
        with pytest.raises(StorageError, match=f"{run.path} was deleted or moved") as caught:
            write(writer)
        assert caught.value.exit_code == 6
    assert not run.path.exists()


@pytest.mark.parametrize("write", [WRITES["metrics"], WRITES["status"], WRITES["checkpoint"]])
def test_a_run_that_vanishes_between_the_look_and_the_write_is_named_too(
    tmp_path: Path, write: Callable[[RunWriter], None]
) -> None:
    run, look = filled(tmp_path / "runs"), HeldLock.check

    def look_and_lose(held: HeldLock) -> None:
        look(held)
        if run.path.exists():
            run.path.rename(tmp_path / "elsewhere")

    with (
        run.lock() as writer,
        mock.patch.object(HeldLock, "check", look_and_lose),
        pytest.raises(StorageError, match=f"{run.path} was deleted or moved"),
    ):
        write(writer)
    assert not run.path.exists()


def test_a_run_deleted_and_made_anew_is_not_written_to_by_the_old_writer(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with run.lock() as old:
        run.path.rename(tmp_path / "elsewhere")
        new = new_run(tmp_path)
        with new.lock():
            pass
        with pytest.raises(StorageError, match="replaced"):
            old.append_metrics(row(5))
    assert new.metrics() == []


@pytest.mark.parametrize("missing", ["metrics.jsonl", "checkpoints"])
def test_a_part_of_a_run_deleted_while_it_trains_is_named(tmp_path: Path, missing: str) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        writer.append_metrics(row(5))
        if missing == "checkpoints":
            shutil.rmtree(run.path / missing)
        else:
            (run.path / missing).unlink()
        with pytest.raises(StorageError, match=missing):
            advance(writer, 6, 6)
    assert not (run.path / missing).exists()


def test_a_log_changed_behind_the_writers_back_is_not_written_to(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock() as writer:
        writer.append_metrics(row(1))
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2}\n')
        with pytest.raises(StorageError, match="another program changed it"):
            writer.append_metrics(row(3))


def test_removing_a_run_wins_cleanly_over_a_process_that_opens_it(tmp_path: Path) -> None:
    run: RunDirectory = filled(tmp_path)
    RunStore(tmp_path).remove(RUN)
    with pytest.raises(StorageError), run.lock():
        pass
    assert os.listdir(tmp_path) == []
