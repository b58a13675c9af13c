"""Files are replaced completely or not at all, and synced in the order that survives a power cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semfocus.errors import StorageError
from semfocus.store import atomic
from tests.store.machine import Machine


def _fail_half_way(target: Path) -> None:
    with atomic.replacing(target) as draft:
        draft.write_text("half of the n")
        raise RuntimeError


def test_an_error_while_writing_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    atomic.write_text(target, "old")
    with pytest.raises(RuntimeError):
        _fail_half_way(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_is_synced_then_renamed_then_the_directory_is_synced(tmp_path: Path) -> None:
    with Machine() as machine:
        atomic.write_json(tmp_path / "new" / "x.json", {"a": 1})
    names = [
        (name, Path(path).name.endswith("x.json")) for name, path in machine.events if name in ("fsync", "replace")
    ]
    assert names == [("fsync", True), ("replace", True), ("fsync", False)]


def test_a_file_system_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*x\.txt"):
        atomic.write_text(tmp_path / "file" / "x.txt", "text")


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "table.csv"
    link.symlink_to(pipe)
    for target in (pipe, link):
        with pytest.raises(StorageError, match="is a device or a pipe, which cannot be replaced"):
            atomic.write_text(target, "text")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert {*tmp_path.iterdir()} == {pipe, link}
