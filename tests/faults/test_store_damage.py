"""Damaged and missing files are noticed, set aside or refused, never used."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from semfocus.errors import CorruptData, UsageError
from semfocus.store import DamagedCheckpoint, RunStore, checkpoints, load_common
from tests.store.helpers import CONFIG, RUN, advance, assert_consistent, filled, flip, new_run, row, state

DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated state": lambda at: os.truncate(at / "state.safetensors", 100),
    "empty state": lambda at: os.truncate(at / "state.safetensors", 0),
    "longer state": lambda at: os.truncate(at / "state.safetensors", 10**5),
    "no state": lambda at: (at / "state.safetensors").unlink(),
    "flipped byte in a tensor": lambda at: flip(at / "state.safetensors", -5),
    "flipped byte in the header": lambda at: flip(at / "state.safetensors", 20),
    "no manifest": lambda at: (at / "manifest.json").unlink(),
    "truncated manifest": lambda at: os.truncate(at / "manifest.json", 50),
    "manifest of another step": lambda at: shutil.copy(at.parent / "2" / "manifest.json", at),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_the_previous_checkpoint_is_used_with_a_warning(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    run = filled(tmp_path)
    damage(run.path / "checkpoints" / "4")
    with pytest.warns(DamagedCheckpoint, match="step 4 is not used"):
        assert run.load_checkpoint().step == 2
    assert (run.path / "checkpoints" / "4").is_dir(), "a reader renamed something"
    with run.lock() as writer:
        with pytest.warns(DamagedCheckpoint, match="set aside"):
            checkpoint = writer.load_checkpoint()
        assert checkpoint.step == 2
        assert torch.equal(checkpoint.tensors["weight"], state(2)["weight"])
        writer.rewind(checkpoint)
        advance(writer, 3, 4)
    assert [name for name in os.listdir(run.path / "checkpoints") if name.startswith(".bad-4-")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert assert_consistent(run) == 4


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path, name: str) -> None:
    run = filled(tmp_path)
    path = run.path / "checkpoints" / "4" / name
    intact = path.read_bytes()
    for position in range(0, len(intact), max(1, len(intact) // 150)):
        flip(path, position)
        with pytest.raises(CorruptData):
            checkpoints.load(run.path / "checkpoints", 4)
        path.write_bytes(intact)
    assert checkpoints.load(run.path / "checkpoints", 4).step == 4


def test_when_every_checkpoint_is_damaged_the_run_does_not_silently_start_again(tmp_path: Path) -> None:
    run = filled(tmp_path)
    for step in (2, 4):
        flip(run.path / "checkpoints" / str(step) / "state.safetensors", -1)
    for _ in range(2):  # the first attempt must not remove the evidence
        with run.lock() as writer:
            with pytest.raises(CorruptData, match=r"no checkpoint is intact: .*4/.*2/") as caught:
                writer.load_checkpoint()
            assert caught.value.exit_code == 5
    assert len(run.metrics()) == 4


def test_checkpoints_that_were_all_set_aside_still_prevent_a_silent_restart(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        for step in (2, 4):
            with pytest.warns(DamagedCheckpoint):
                writer.set_aside(step, "test")
        with pytest.raises(CorruptData, match="was set aside"):
            writer.load_checkpoint()


def test_a_run_without_any_checkpoint_says_none(tmp_path: Path) -> None:
    assert new_run(tmp_path).load_checkpoint() is None


def test_a_step_asked_for_by_number_is_that_step_or_an_error(tmp_path: Path) -> None:
    run = filled(tmp_path)
    assert run.load_checkpoint(step=2).step == 2
    with pytest.raises(UsageError, match=r"no checkpoint of step 3; it has \[4, 2\]"):
        run.load_checkpoint(step=3)
    flip(run.path / "checkpoints" / "4" / "state.safetensors", -1)
    with pytest.raises(CorruptData, match="SHA-256"):
        run.load_checkpoint(step=4)


def test_rows_that_a_checkpoint_relies_on_are_missed_when_they_are_gone(tmp_path: Path) -> None:
    run = filled(tmp_path)
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with run.lock() as writer, pytest.raises(CorruptData, match=r"metrics\.jsonl no longer holds"):
        writer.rewind(writer.load_checkpoint())


def test_a_damaged_row_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    run = filled(tmp_path)
    path = run.path / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-3]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(CorruptData, match=r"metrics\.jsonl line 2"):
        run.metrics()


def test_members_resume_from_the_newest_step_that_is_intact_for_all(tmp_path: Path) -> None:
    ids = ("aaaaaaaa", "bbbbbbbb")
    runs = RunStore(tmp_path).create_or_open_all(dict.fromkeys(ids, CONFIG))
    with runs[0].lock() as a, runs[1].lock() as b:
        assert load_common([a, b]) is None
        advance(a, 1, 2)
        assert load_common([a, b]) is None, "b never saved: both start from the beginning"
        advance(b, 1, 2)
        assert [checkpoint.step for checkpoint in load_common([a, b])] == [2, 2]
        advance(a, 3, 4)
        assert [checkpoint.step for checkpoint in load_common([a, b])] == [2, 2]
        advance(b, 3, 4)
        flip(b.path / "checkpoints" / "4" / "state.safetensors", -1)
        with pytest.warns(DamagedCheckpoint, match=r"bbbbbbbb.*set aside|set aside.*bbbbbbbb"):
            common = load_common([a, b])
        for writer, checkpoint in zip((a, b), common, strict=True):
            assert checkpoint.step == 2
            writer.rewind(checkpoint)
            assert writer.metrics() == [row(1), row(2)]
            assert writer.checkpoint_steps() == [2]
        flip(a.path / "checkpoints" / "2" / "state.safetensors", -1)
        with pytest.raises(CorruptData, match="run aaaaaaaa: no checkpoint is intact"):
            load_common([a, b])


def test_a_changed_configuration_is_refused_with_the_fields_that_differ(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.check_config(CONFIG)
    run.check_config({**CONFIG, "task": {"length": 8, "name": "parity"}})
    changed = {**CONFIG, "task": {"name": "parity", "length": 9}, "training": {"lr": 0.3}, "label": "x"}
    with pytest.raises(UsageError) as caught:
        RunStore(tmp_path).create_or_open(RUN, changed)
    message = str(caught.value)
    assert "task.length was 8, is 9" in message
    assert "training.lr was 0.1, is 0.3" in message
    assert "training.epochs was 3, is absent" in message
    assert "label was absent, is 'x'" in message
    assert "seed" not in message
    assert caught.value.exit_code == 2
    run.check_config(changed, free=("task", "training.lr", "training.epochs", "label"))
    with pytest.raises(UsageError, match="seed was 7, is True"):
        run.check_config({**CONFIG, "seed": True})
