"""What was reported as saved survives a power cut, whatever the clock says: order is by syncs and by steps."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from semfocus.store import RunStore, Save, save_checkpoints
from tests.store.helpers import CONFIG, RUN, advance, assert_consistent, filled, new_run, row, state
from tests.store.machine import Killed, Machine


def test_files_are_synced_then_their_directory_then_renamed_then_the_parent_is_synced(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock() as writer, Machine() as machine:
        writer.append_metrics(row(1))
        machine.events.clear()
        writer.save_checkpoint(1, state(1), {})
    events = [(name, Path(place).name) for name, place in machine.events]
    draft = next(name for call, name in events if call == "mkdir")
    rename = events.index(("rename", draft))
    before, after = events[:rename], events[rename + 1 :]
    assert {("fsync", name) for name in ("state.safetensors", "manifest.json", "metrics.jsonl", draft)} <= set(before)
    assert [name for call, name in before if call == "open"] == ["state.safetensors", "manifest.json"], "manifest last"
    written = max(i for i, (call, _) in enumerate(before) if call in ("write", "open"))
    assert written < min(i for i, (call, _) in enumerate(before) if call == "fsync")
    assert ("fsync", "checkpoints") in after


def test_a_power_cut_right_after_saving_loses_neither_the_checkpoint_nor_its_rows(tmp_path: Path) -> None:
    with Machine() as machine:
        run = new_run(tmp_path / "runs")
        with run.lock() as writer:
            for step in range(1, 9):
                advance(writer, step, step)
                if step % 2 == 0:
                    machine.power_cut(tmp_path / "runs", tmp_path / f"image{step}")
                    assert assert_consistent(RunStore(tmp_path / f"image{step}").open(RUN)) == step


def test_a_power_cut_at_any_change_leaves_the_previous_checkpoint_or_the_new_one(tmp_path: Path) -> None:
    outcomes = set()
    for call in range(1, 10_000):
        root, image = tmp_path / f"{call}", tmp_path / f"{call}-image"
        with Machine() as machine, suppress(Killed):
            run = new_run(root)
            with run.lock() as writer:
                advance(writer, 1, 4)
                machine.die_at = len(machine.events) + call
                try:
                    advance(writer, 5, 6)
                finally:
                    machine.power_cut(root, image)
        outcomes.add(assert_consistent(RunStore(image).open(RUN), at_least=4))
        if len(machine.events) < machine.die_at:
            break
    assert call > 20
    assert outcomes == {4, 6}


def test_a_power_cut_after_the_final_status_loses_no_row_that_has_no_checkpoint(tmp_path: Path) -> None:
    with Machine() as machine:
        run = new_run(tmp_path / "runs")
        with run.lock() as writer:
            writer.append_metrics(row(1))
            writer.write_status("diverged", loss=float("nan"))
            machine.power_cut(tmp_path / "runs", tmp_path / "image")
    left = RunStore(tmp_path / "image").open(RUN)
    assert left.metrics() == [row(1)]
    assert left.status()["state"] == "diverged"


def test_a_power_cut_after_a_rewind_cannot_restore_a_checkpoint_without_its_rows(tmp_path: Path) -> None:
    with Machine() as machine:
        run = new_run(tmp_path / "runs")
        with run.lock() as writer:
            advance(writer, 1, 4)
            writer.rewind(writer.load_checkpoint(step=2))
            writer.append_metrics(row(3))
            writer.write_status("interrupted")
            machine.power_cut(tmp_path / "runs", tmp_path / "image")
    left = RunStore(tmp_path / "image").open(RUN)
    with left.lock() as writer:
        checkpoint = writer.load_checkpoint()
        writer.rewind(checkpoint)
        assert len(writer.metrics()) == checkpoint.step == 2


def test_runs_created_and_saved_together_all_survive_a_power_cut(tmp_path: Path) -> None:
    ids = [f"{i:08x}" for i in range(3)]
    with Machine() as machine:
        runs = RunStore(tmp_path / "runs").create_or_open_all(dict.fromkeys(ids, CONFIG))
        with runs[0].lock() as a, runs[1].lock() as b, runs[2].lock() as c:
            save_checkpoints([Save(writer, 4, state(i), {"i": i}) for i, writer in enumerate((a, b, c))])
            machine.power_cut(tmp_path / "runs", tmp_path / "image")
    for i, run_id in enumerate(ids):
        left = RunStore(tmp_path / "image").create_or_open(run_id, CONFIG)
        checkpoint = left.load_checkpoint()
        assert checkpoint.meta == {"i": i}
        assert torch.equal(checkpoint.tensors["weight"], state(i)["weight"])


def test_the_newest_checkpoint_is_the_highest_step_whatever_the_file_times_say(tmp_path: Path) -> None:
    run = filled(tmp_path, last=12, every=2, keep=(2, 10))
    for age, step in enumerate(run.checkpoint_steps()):
        for place in (run.path / "checkpoints" / str(step)).iterdir():
            os.utime(place, (1e9 + age * 1e6,) * 2)
        os.utime(run.path / "checkpoints" / str(step), (1e9 + age * 1e6,) * 2)
    assert run.checkpoint_steps() == [12, 10, 2], "as numbers, not as strings"
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


def test_the_files_of_a_run_do_not_depend_on_the_time(tmp_path: Path) -> None:
    """Two runs of one configuration are equal to the bit."""
    runs = [filled(tmp_path / name) for name in ("a", "b")]
    names = ["config.json", "metrics.jsonl", "checkpoints/4/state.safetensors", "checkpoints/4/manifest.json"]
    for name in names:
        first, second = ((run.path / name).read_bytes() for run in runs)
        assert first == second, name
