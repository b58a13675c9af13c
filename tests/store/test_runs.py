"""Runs are created once, found by id or path, listed by state, and removed only when no process writes to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.store import RunDirectory, RunStore
from tests.store.helpers import CONFIG, RUN, advance, filled, new_run, row
from tests.store.machine import before_call


def test_the_place_is_the_argument_then_the_environment_then_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEMFOCUS_RUNS", raising=False)
    assert RunStore().root == tmp_path / "runs"
    monkeypatch.setenv("SEMFOCUS_RUNS", str(tmp_path / "there"))
    assert RunStore().root == tmp_path / "there"
    assert RunStore("here").root == tmp_path / "here"
    assert os.listdir(tmp_path) == [], "looking made a directory"


def test_creating_twice_opens_the_same_run_and_keeps_what_it_has(tmp_path: Path) -> None:
    filled(tmp_path, last=2)
    assert new_run(tmp_path).metrics() == [row(1), row(2)]
    assert new_run(tmp_path).config() == CONFIG


def test_a_configuration_with_tuples_is_the_same_when_it_comes_back(tmp_path: Path) -> None:
    config = {"task": {"lengths": (1, 40), "options": [{"sizes": (2, 3)}]}}
    for _ in range(2):
        run = RunStore(tmp_path).create_or_open(RUN, config)
    assert run.config() == {"task": {"lengths": [1, 40], "options": [{"sizes": [2, 3]}]}}


def test_an_empty_directory_of_that_name_is_taken_and_a_full_one_is_not(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir()
    assert new_run(tmp_path).config() == CONFIG
    other = tmp_path / "fedcba98"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(CorruptData, match=r"config\.json is missing"):
        new_run(tmp_path, other.name)
    assert os.listdir(other) == ["thesis.tex"]


def test_another_process_that_creates_the_same_runs_at_the_same_moment_is_no_error(tmp_path: Path) -> None:
    ids = ["aaaaaaaa", "bbbbbbbb", "cccccccc"]
    with before_call("rename", lambda: new_run(tmp_path, "bbbbbbbb")):
        runs = RunStore(tmp_path).create_or_open_all(dict.fromkeys(ids, CONFIG))
    assert [run.config() for run in runs] == [CONFIG] * 3
    assert sorted(os.listdir(tmp_path)) == ids


def test_a_run_is_found_by_a_prefix_that_no_other_has(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for name in ("abcd0000", "abcd1111", "abcd111100", "ffff0000"):
        new_run(tmp_path, name)
    assert store.find("f").id == "ffff0000"
    assert store.find("abcd1111").id == "abcd1111", "a whole id wins over a longer one"
    with pytest.raises(UsageError, match="beginning of 3 run ids: abcd0000, abcd1111, abcd111100"):
        store.find("abc")
    with pytest.raises(UsageError, match=r"no run in .* begins with '9'; there are: abcd0000"):
        store.find("9")
    with pytest.raises(UsageError, match="there are: none"):
        RunStore(tmp_path / "nothing").find("9")


def test_a_run_is_found_by_its_path_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path / "elsewhere")
    (tmp_path / "latest").symlink_to(run.path)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for text in (str(run.path), f"./{RUN}", RUN, f"{run.path}/", f"../elsewhere/{RUN}", str(tmp_path / "latest")):
        assert RunStore(tmp_path / "runs").find(text).path == run.path, text
    with pytest.raises(UsageError, match="not a run id"):
        RunStore().find(str(tmp_path / "elsewhere"))


def test_every_entry_of_the_store_is_listed_with_its_state(tmp_path: Path) -> None:
    def made(name: str, state: str | None = None) -> RunDirectory:
        run = new_run(tmp_path, name)
        with run.lock() as writer:
            if state is not None:
                writer.write_status(state, epochs=2)
        return run

    for number, state in enumerate(["done", "diverged", "interrupted", "failed", "running"]):
        made(f"0000000{number}", state)
    made("00000005")
    with made("00000006").lock() as writer:
        advance(writer, 1, 1)
    (tmp_path / "00000007").mkdir()
    made("00000008", "done").path.joinpath("config.json").unlink()
    made("00000009", "done").path.joinpath("status.json").write_text("{}")
    made("0000000a", "done").path.rename(tmp_path / "0000000b")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / f".tmp-{'0' * 32}").mkdir()
    (tmp_path / "0000000c").write_text("a file")
    held = made("0000000d", "done")
    with held.lock():
        entries = {entry.name: entry for entry in RunStore(tmp_path).entries()}
    assert {name: entry.state for name, entry in entries.items()} == {
        "00000000": "done",
        "00000001": "diverged",
        "00000002": "interrupted",
        "00000003": "failed",
        "00000004": "interrupted",  # its status says running, and no process holds it
        "00000005": "empty",
        "00000006": "interrupted",  # rows, and no status
        "00000007": "empty",
        "00000008": "corrupt",
        "00000009": "corrupt",
        "0000000b": "corrupt",
        "0000000c": "unrecognised",
        "0000000d": "running",
        "notes.txt": "unrecognised",
        "other": "unrecognised",
        f".tmp-{'0' * 32}": "corrupt",
    }
    assert entries["00000000"].config == CONFIG
    assert entries["00000000"].status == {"state": "done", "epochs": 2}
    assert entries["0000000d"].holder.pid == os.getpid()
    assert "config.json is missing" in entries["00000008"].why
    assert "was the directory renamed" in entries["0000000b"].why
    assert all(
        entry.why for entry in entries.values() if entry.state in ("corrupt", "unrecognised", "empty", "running")
    )


def test_a_place_that_is_not_there_has_no_runs_and_a_file_is_an_error(tmp_path: Path) -> None:
    assert RunStore(tmp_path / "nothing").entries() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot read .*file"):
        RunStore(tmp_path / "file").entries()
    with pytest.raises(StorageError, match=r"cannot write .*file"):
        new_run(tmp_path / "file")


def test_a_run_that_is_being_written_is_not_removed_and_any_other_is(tmp_path: Path) -> None:
    store, run = RunStore(tmp_path), filled(tmp_path)
    with run.lock(), pytest.raises(Exception, match="is held by") as caught:
        store.remove(RUN)
    assert caught.value.exit_code == 4
    assert run.load_checkpoint().step == 4
    store.remove(RUN)
    assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError, match="there is no run"):
        store.remove(RUN)


def test_corrupt_and_leftover_entries_can_be_removed_and_unrecognised_ones_cannot(tmp_path: Path) -> None:
    (tmp_path / "deadbeef").mkdir()
    (tmp_path / "deadbeef" / "junk").write_text("")
    leftover = f".tmp-{'a' * 32}"
    (tmp_path / leftover).mkdir()
    (tmp_path / "other").mkdir()
    store = RunStore(tmp_path)
    store.remove("deadbeef")
    store.remove(leftover)
    with pytest.raises(UsageError):
        store.remove("other")
    assert os.listdir(tmp_path) == ["other"]


def test_only_runs_without_a_result_are_removable_and_finished_ones_on_request(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for number, state in enumerate(["done", "diverged", "interrupted", "failed"]):
        with new_run(tmp_path, f"0000000{number}").lock() as writer:
            writer.write_status(state)
    (tmp_path / "other").mkdir()
    with new_run(tmp_path, "00000004").lock():
        assert [entry.state for entry in store.removable()] == ["diverged", "failed"]
        everything = [entry.state for entry in store.removable(finished=True)]
    assert everything == ["done", "diverged", "interrupted", "failed"], "a running or an unrecognised entry"


def test_figures_and_pages_beside_runs_are_not_listed(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for name in ("figures", "elsewhere"):
        (tmp_path / name).mkdir()
    for name in ("report.html", "curves.svg", "notes.txt"):
        (tmp_path / name).touch()
    assert [entry.name for entry in store.entries()] == ["elsewhere", "notes.txt"]
