"""What the writer of a run does, and which mistakes it refuses."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

import pytest
import torch

from semfocus.errors import StorageError, UsageError
from semfocus.store import RunStore, Save, save_checkpoints, write_statuses
from semfocus.store.logs import Log
from tests.store.helpers import CONFIG, advance, filled, new_run, row, state
from tests.store.machine import before_call


def test_the_newest_two_checkpoints_and_the_kept_ones_are_not_pruned(tmp_path: Path) -> None:
    run = filled(tmp_path, last=12, keep=(2, 6, 10))
    assert run.checkpoint_steps() == [12, 10, 6, 2]
    assert sorted(os.listdir(run.path / "checkpoints")) == ["10", "12", "2", "6"]
    with run.lock() as writer:  # keep is stored, not remembered
        advance(writer, 13, 16)
    assert run.checkpoint_steps() == [16, 14, 10, 6, 2]
    assert torch.equal(run.load_checkpoint(step=6).tensors["weight"], state(6)["weight"])


def test_saving_a_step_again_changes_nothing_but_keep(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        writer.save_checkpoint(4, state(4), {"rng": "ignored"})
        assert run.load_checkpoint().meta == {"rng": [4, 5]}
        writer.save_checkpoint(4, state(4), {}, keep=True)
        advance(writer, 5, 10)
    assert run.checkpoint_steps() == [10, 8, 4]


def test_saving_other_tensors_for_a_step_or_an_earlier_step_is_refused(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        with pytest.raises(UsageError, match="other tensors saved for step 4"):
            writer.save_checkpoint(4, state(5), {})
        with pytest.raises(UsageError, match="rewind before saving step 3"):
            writer.save_checkpoint(3, state(3), {})
        writer.rewind(writer.load_checkpoint(step=2))
        writer.save_checkpoint(3, state(3), {})
    assert run.checkpoint_steps() == [3, 2]


def test_rewinding_removes_newer_checkpoints_even_kept_ones(tmp_path: Path) -> None:
    run = filled(tmp_path, last=8, keep=(2, 6))
    with run.lock() as writer:
        advance(writer, 9, 12)
        writer.rewind(writer.load_checkpoint(step=2))
        assert run.checkpoint_steps() == [2]
        assert run.metrics() == [row(1), row(2)]
        advance(writer, 3, 12)
        assert run.checkpoint_steps() == [12, 10, 2], "step 6 was saved again without keep"
        writer.rewind(None)
    assert run.checkpoint_steps() == []
    assert run.metrics() == run.timing() == []


@pytest.mark.parametrize("step", [-1, 1.5, True, "4", 10**16])
def test_a_step_is_a_whole_number(tmp_path: Path, step: object) -> None:
    with new_run(tmp_path).lock() as writer, pytest.raises(UsageError, match="step = "):
        writer.save_checkpoint(step, state(1), {})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"step": 4}, "step 4 after step 4; steps must rise"),
        ({"step": 3}, "step 3 after step 4"),
        ({"epoch": 1}, "step = None"),
        ({"step": 5.0}, "step = 5.0"),
        ({"step": 5, "loss": torch.tensor(1.0)}, "'loss' is a Tensor"),
        ({"step": 5, "losses": [1.0]}, "'losses' is a list"),
        ({"step": 5, "not_finite": 1}, "is taken"),
        ({"step": 5, "text": "x" * 2**20}, "at most"),
    ],
)
def test_a_row_that_could_not_be_read_back_is_refused_and_leaves_no_trace(
    tmp_path: Path, bad: dict, reason: str
) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        with pytest.raises(UsageError, match=reason):
            writer.append_metrics(bad)
        writer.append_metrics(row(5))
    assert run.metrics() == [row(step) for step in range(1, 6)]


def test_metrics_that_are_not_finite_are_read_back_unchanged(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock() as writer:
        writer.append_metrics({"step": 1, "train_loss": math.inf, "heldout_loss": math.nan})
        writer.write_status("diverged", loss=math.nan, epochs=1, device={"name": "cpu"})
    (back,) = run.metrics()
    assert back["train_loss"] == math.inf
    assert math.isnan(back["heldout_loss"])
    status = run.status()
    assert math.isnan(status.pop("loss"))
    assert status == {"state": "diverged", "epochs": 1, "device": {"name": "cpu"}}
    assert b"NaN" not in (run.path / "metrics.jsonl").read_bytes() + (run.path / "status.json").read_bytes()


def test_a_log_that_would_become_too_large_to_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    log = Log(path, ordered=True, max_bytes=300)
    log.append(row(1))
    log.append(row(2))
    with pytest.raises(StorageError, match="would pass 300 bytes; evaluate less often"):
        log.append({"step": 3, "note": "x" * 300})
    assert log.rows() == [row(1), row(2)]


def test_an_unknown_state_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with new_run(tmp_path).lock() as writer, pytest.raises(UsageError, match="did you mean 'done'"):
        writer.write_status("doen")


def test_a_status_cannot_set_its_own_format(tmp_path: Path) -> None:
    with new_run(tmp_path).lock() as writer, pytest.raises(UsageError, match="not facts"):
        writer.write_status("done", format=7)


def test_meta_that_json_cannot_carry_is_refused_and_nothing_is_saved(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock() as writer:
        for meta in ({"a": math.nan}, {"a": torch.ones(1)}, {"a": "x" * 2**20}):
            with pytest.raises(UsageError, match="the manifest of step 2"):
                writer.save_checkpoint(2, state(2), meta)
    assert os.listdir(run.path / "checkpoints") == []


def test_a_writer_refuses_to_write_after_its_lock_was_released(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with run.lock() as writer:
        pass
    with pytest.raises(StorageError, match="was given back"):
        writer.append_metrics(row(5))


def test_members_saved_together_equal_members_saved_one_by_one(tmp_path: Path) -> None:
    ids = [f"{i:08x}" for i in range(5)]
    runs = RunStore(tmp_path).create_or_open_all(dict.fromkeys(ids, CONFIG))
    locks = [run.lock() for run in runs]
    writers = [lock.__enter__() for lock in locks]
    try:
        for step in (1, 2, 3):
            for writer in writers:
                writer.append_metrics(row(step))
            save_checkpoints([Save(w, step, state(step + i), {"i": i}, i == 4) for i, w in enumerate(writers)])
        write_statuses([(w, "diverged" if i == 2 else "done", {"i": i}) for i, w in enumerate(writers)])
    finally:
        for lock in locks:
            lock.__exit__(None, None, None)
    for i, run in enumerate(runs):
        checkpoint = run.load_checkpoint()
        assert (checkpoint.step, checkpoint.meta) == (3, {"i": i})
        assert torch.equal(checkpoint.tensors["weight"], state(3 + i)["weight"])
        assert run.checkpoint_steps() == ([3, 2, 1] if i == 4 else [3, 2])
        assert run.status() == {"state": "diverged" if i == 2 else "done", "i": i}
        assert run.metrics() == [row(1), row(2), row(3)]


def test_a_member_that_cannot_be_saved_does_not_leave_half_of_the_others(tmp_path: Path) -> None:
    ids = ["aaaaaaaa", "bbbbbbbb"]
    runs = RunStore(tmp_path).create_or_open_all(dict.fromkeys(ids, CONFIG))
    with runs[0].lock() as a, runs[1].lock() as b:
        with pytest.raises(UsageError):
            save_checkpoints([Save(a, 1, state(1), {}), Save(b, 1, state(1), {"bad": math.inf})])
        assert [os.listdir(run.path / "checkpoints") for run in runs] == [[], []]
        save_checkpoints([Save(a, 1, state(1), {}), Save(b, 1, state(1), {})])


def test_a_reader_is_never_disturbed_by_a_writer_that_saves_and_prunes(tmp_path: Path) -> None:
    """The writer prunes the newest checkpoint after the reader has listed it and before it is read."""
    run = filled(tmp_path)
    with run.lock() as writer, warnings.catch_warnings():
        warnings.simplefilter("error")
        with before_call("open", lambda: advance(writer, 5, 10), path="checkpoints/4/"):
            assert run.load_checkpoint().step == 10
