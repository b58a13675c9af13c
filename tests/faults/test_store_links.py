"""A symbolic link inside a run directory, or in its place, is neither followed nor deleted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.store import RunDirectory, RunStore
from tests.store.helpers import CONFIG, RUN, advance, filled, new_run, row


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that must not be read, written or deleted."""
    place = tmp_path / "outside"
    (place / "4").mkdir(parents=True)
    (place / "precious.json").write_text('{"format": 1, "state": "done"}')
    return place


def _untouched(outside: Path) -> bool:
    return (outside / "precious.json").read_text() == '{"format": 1, "state": "done"}' and os.listdir(
        outside / "4"
    ) == []


READS: dict[str, Callable[[RunDirectory], object]] = {
    "config.json": lambda run: run.config(),
    "status.json": lambda run: run.status(),
    "metrics.jsonl": lambda run: run.metrics(),
    "timing.jsonl": lambda run: run.timing(),
    "lock": lambda run: run.holder(),
}


@pytest.mark.parametrize("name", READS)
def test_a_linked_file_is_neither_read_nor_written_nor_deleted(tmp_path: Path, outside: Path, name: str) -> None:
    run = filled(tmp_path / "runs")
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(outside / "precious.json")
    with pytest.raises(CorruptData, match="symbolic link"):
        READS[name](run)
    assert RunStore(tmp_path / "runs").entries()[0].state in ("corrupt", "interrupted")
    with pytest.raises((StorageError, CorruptData)):
        _write_everything(run)
    with pytest.raises(StorageError, match=r"symbolic link|Too many levels"):
        RunStore(tmp_path / "runs").remove(RUN)
    assert (run.path / name).is_symlink()
    assert _untouched(outside)


def _write_everything(run: RunDirectory) -> None:
    with run.lock() as writer:
        writer.check_config(CONFIG)
        writer.write_status("done")
        advance(writer, 5, 6)


def test_a_linked_folder_of_checkpoints_is_not_followed(tmp_path: Path, outside: Path) -> None:
    run = new_run(tmp_path / "runs")
    (run.path / "checkpoints").rmdir()
    (run.path / "checkpoints").symlink_to(outside)
    with pytest.raises(CorruptData, match="links are not followed"):
        run.load_checkpoint()
    (outside / ".tmp-mine").write_text("not a leftover of ours")
    with pytest.raises(StorageError, match="nothing is written through it"), run.lock():
        pass
    assert (outside / ".tmp-mine").exists()
    assert _untouched(outside)


def test_a_linked_checkpoint_is_not_followed_and_not_pruned(tmp_path: Path, outside: Path) -> None:
    run = filled(tmp_path / "runs")
    link = run.path / "checkpoints" / "1"
    link.symlink_to(outside / "4")
    (run.path / "checkpoints" / "2" / "extra").symlink_to(outside / "precious.json")
    with run.lock() as writer:
        advance(writer, 5, 10)
    assert link.is_symlink()
    assert (run.path / "checkpoints" / "2" / "extra").is_symlink()
    assert run.checkpoint_steps() == [10, 8, 2]
    with pytest.raises(StorageError, match="is a symbolic link and is not deleted"):
        RunStore(tmp_path / "runs").remove(RUN)
    assert run.metrics()[0] == row(1), "a file was deleted before the refusal"
    assert _untouched(outside)


def test_a_linked_leftover_is_not_removed(tmp_path: Path, outside: Path) -> None:
    run = filled(tmp_path / "runs")
    (run.path / ".tmp-link").symlink_to(outside)
    (run.path / ".tmp-folder").mkdir()
    (run.path / ".tmp-folder" / "link").symlink_to(outside)
    (run.path / ".tmp-file").write_text("left over")
    with run.lock():
        pass
    assert (run.path / ".tmp-link").is_symlink()
    assert (run.path / ".tmp-folder" / "link").is_symlink()
    assert not (run.path / ".tmp-file").exists()
    assert _untouched(outside)


def test_a_linked_run_is_listed_as_unrecognised_and_neither_opened_nor_removed(tmp_path: Path) -> None:
    real = filled(tmp_path / "elsewhere")
    root = tmp_path / "runs"
    root.mkdir()
    (root / RUN).symlink_to(real.path)
    store = RunStore(root)
    assert [(entry.name, entry.state) for entry in store.entries()] == [(RUN, "unrecognised")]
    for use in (lambda: store.open(RUN), lambda: store.create_or_open(RUN, CONFIG), lambda: store.remove(RUN)):
        with pytest.raises(UsageError, match="symbolic link"):
            use()
    assert real.metrics()[0] == row(1)
