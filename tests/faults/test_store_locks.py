"""A run has one writer; the lock of a dead process is free; a run that vanishes is noticed."""

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
from tests.store.helpers import RUN, advance, assert_consistent, filled, new_run, processes, row, state
from tests.store.machine import before_call


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
        assert str(process.pid) in (run.path / "lock").read_text(), "the dead process did not leave its name"
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

    def try_to_lock() -> None:
        try:
            with run.lock():
                pass
        except Locked as error:
            errors.append(error)

    with run.lock():
        thread = threading.Thread(target=try_to_lock)
        thread.start()
        thread.join()
    assert len(errors) == 1


class _WholeProcessLocks:
    """flock on NFS: locks belong to the process, and closing any descriptor of the file releases them."""

    def __init__(self) -> None:
        self.locked: set[tuple[int, int]] = set()
        self._close = os.close

    def flock(self, handle: int, operation: int) -> None:
        self.locked.add(self._key(handle))  # a process does not conflict with itself

    def close(self, handle: int) -> None:
        self.locked.discard(self._key(handle))
        self._close(handle)

    @staticmethod
    def _key(handle: int) -> tuple[int, int]:
        status = os.fstat(handle)
        return status.st_dev, status.st_ino


def test_reading_the_lock_does_not_release_it_where_closing_a_descriptor_releases_it(tmp_path: Path) -> None:
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


def test_a_reader_of_the_lock_does_not_make_a_writer_fail(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        pass
    reader = os.open(run.path / "lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            os.close(reader)

    with mock.patch.object(time, "sleep", pause), run.lock() as writer:
        advance(writer, 1, 2)
    assert len(pauses) == 2
    assert min(pauses) > 0


def test_a_lock_file_with_hostile_content_names_nobody(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with _held_elsewhere(tmp_path):
        (run.path / "lock").write_text('{"pid": 1, "host": "\\u001b[2J", "since": "x", "token": "t"}')
        assert str(run.holder()) == "a process that left no name"


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
    assert "elsewhere" in (run.path / "lock").read_text(), "the new holder's name was erased"


def _fork_and_report(root: Path, answer: Connection) -> None:
    """Fork while holding the lock, then end; the child stays alive."""
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


@pytest.mark.parametrize("name", ["metrics", "status", "checkpoint"])
def test_a_run_that_vanishes_between_the_check_and_the_write_is_named_too(tmp_path: Path, name: str) -> None:
    run = filled(tmp_path / "runs")
    first_change = (
        ("mkdir", ".tmp-") if name == "checkpoint" else ("open", "metrics.jsonl" if name == "metrics" else ".tmp-")
    )

    def lose() -> None:
        run.path.rename(tmp_path / "elsewhere")

    with (
        run.lock() as writer,
        before_call(first_change[0], lose, path=first_change[1]),
        pytest.raises(StorageError, match=f"{run.path} was deleted or moved"),
    ):
        WRITES[name](writer)
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


def test_a_log_that_another_program_changed_is_not_written_to(tmp_path: Path) -> None:
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
