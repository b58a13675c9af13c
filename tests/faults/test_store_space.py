"""A full disk and a read-only directory are named, and what was saved before stays usable."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semfocus.errors import StorageError
from semfocus.store import RunDirectory, RunStore
from tests.store.helpers import CONFIG, RUN, advance, assert_consistent, filled, new_run, processes, row, state
from tests.store.machine import Machine


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


def test_a_row_that_fits_in_part_is_taken_back_whole(tmp_path: Path) -> None:
    run = filled(tmp_path, last=3)
    size = (run.path / "metrics.jsonl").stat().st_size
    with run.lock() as writer:
        with _no_file_larger_than(size + 10), pytest.raises(StorageError, match=r"metrics\.jsonl"):
            writer.append_metrics(row(4))
        assert (run.path / "metrics.jsonl").stat().st_size == size
        writer.append_metrics(row(4))
    assert run.metrics() == [row(step) for step in (1, 2, 3, 4)]


def _train(run: RunDirectory) -> None:
    with run.lock() as writer:
        writer.rewind(writer.load_checkpoint())
        advance(writer, 5, 6)
        writer.write_status("done")


def test_a_disk_that_is_full_at_any_one_call_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    pristine = filled(tmp_path / "pristine", last=4).path.parent

    def copy(name: object) -> RunDirectory:
        shutil.copytree(pristine, tmp_path / str(name))
        return RunStore(tmp_path / str(name)).open(RUN)

    undisturbed = copy("undisturbed")
    with Machine() as machine:
        _train(undisturbed)
    takes_space = [
        i for i, name in enumerate(machine.names(), 1) if name in ("write", "pwrite", "fsync", "mkdir", "open")
    ]
    assert len(takes_space) > 20
    for call in takes_space:
        run = copy(call)
        with Machine(full_at=call), pytest.raises(StorageError, match="No space left") as caught:
            _train(run)
        assert caught.value.exit_code == 6
        assert assert_consistent(run, at_least=4) in (4, 6)
        with Machine():
            _train_on(run)
        assert assert_consistent(run) == 8


def _train_on(run: RunDirectory) -> None:
    with run.lock() as writer:
        checkpoint = writer.load_checkpoint()
        writer.rewind(checkpoint)
        advance(writer, checkpoint.step + 1, 8)


@pytest.fixture
def world_readable() -> Iterator[Path]:
    """pytest's own folders are closed to other users, and a superuser may write anywhere: so a place of our own."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    yield place
    for folder in (place, *place.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o777)
    shutil.rmtree(place)


def _as_a_user_without_rights(root: Path, what: str, answer: object) -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
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
def test_a_read_only_directory_is_refused_before_any_work(world_readable: Path, what: str) -> None:
    run = new_run(world_readable)
    if what == "lock again":  # the lock file can be opened, but nothing can be added
        with run.lock():
            (run.path / "lock").chmod(0o666)
    for folder in (world_readable, run.path, run.path / "checkpoints"):
        folder.chmod(0o555)
    context = processes()
    received, answer = context.Pipe(duplex=False)
    process = context.Process(target=_as_a_user_without_rights, args=(world_readable, what, answer))
    process.start()
    message, code = received.recv()
    process.join()
    assert "cannot write" in message
    assert str(world_readable) in message
    assert code == 6
