"""A full disk and a read-only directory are errors that name the path; what was saved before stays usable."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from semfocus.errors import StorageError
from semfocus.store import RunStore
from tests.store.helpers import (
    CONFIG,
    RUN,
    assert_consistent,
    copy_run,
    filled,
    new_run,
    processes,
    row,
    state,
    train_on,
)
from tests.store.machine import Machine, directory_for_everybody, give_up_superuser, set_mode


@contextmanager
def _no_file_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_is_an_error_and_the_last_one_loads(tmp_path: Path) -> None:
    run = filled(tmp_path, last=4)
    with run.lock() as writer:
        writer.append_metrics(row(5))
        with _no_file_larger_than(50_000), pytest.raises(StorageError, match="File too large") as caught:
            writer.save_checkpoint(6, state(6, size=100_000), {})
        assert caught.value.exit_code == 6
        assert sorted(os.listdir(run.path / "checkpoints")) == ["2", "4"]
        assert assert_consistent(run) == 4
        writer.append_metrics(row(6))
        writer.save_checkpoint(6, state(6), {"rng": [6, 7]})
    assert assert_consistent(run) == 6


def test_a_row_that_fits_only_in_part_is_removed_completely(tmp_path: Path) -> None:
    run = filled(tmp_path, last=3)
    size = (run.path / "metrics.jsonl").stat().st_size
    with run.lock() as writer:
        with _no_file_larger_than(size + 10), pytest.raises(StorageError, match=r"metrics\.jsonl"):
            writer.append_metrics(row(4))
        assert (run.path / "metrics.jsonl").stat().st_size == size
        writer.append_metrics(row(4))
    assert run.metrics() == [row(step) for step in (1, 2, 3, 4)]


def test_a_disk_that_is_full_at_any_one_call_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    interrupted = filled(tmp_path / "interrupted", last=4)
    undisturbed = copy_run(interrupted, tmp_path / "undisturbed")
    with Machine() as machine:
        train_on(undisturbed, 6)
    calls = machine.calls_taking_space()
    assert len(calls) > 20
    for call in calls:
        run = copy_run(interrupted, tmp_path / str(call))
        with Machine(full_at=call), pytest.raises(StorageError, match="No space left") as caught:
            train_on(run, 6)
        assert caught.value.exit_code == 6
        assert assert_consistent(run, at_least=4) in (4, 6)
        with Machine():
            train_on(run, 8)
        assert assert_consistent(run) == 8


def _use_without_rights(root: Path, what: str, answer: Connection) -> None:
    give_up_superuser()
    try:
        if what == "create":
            RunStore(root).create_or_open("fedcba9876543210", CONFIG)
        else:
            with RunStore(root).open(RUN).lock():
                pass
        answer.send(("no error", None))
    except StorageError as error:
        answer.send((str(error), error.exit_code))


@pytest.mark.parametrize("what", ["create", "lock", "lock again"])
def test_a_read_only_directory_is_refused_before_any_work(what: str) -> None:
    with directory_for_everybody() as root:
        run = new_run(root)
        if what == "lock again":  # the lock file can be opened, but no file can be added
            with run.lock():
                (run.path / "lock").chmod(0o666)
        set_mode(root, 0o555)
        context = processes()
        received, answer = context.Pipe(duplex=False)
        process = context.Process(target=_use_without_rights, args=(root, what, answer))
        process.start()
        message, code = received.recv()
        process.join()
    assert "cannot write" in message
    assert str(root) in message
    assert code == 6
