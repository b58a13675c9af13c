"""Training on full disks, in lost or foreign directories, beside other processes, and from damaged checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from semfocus.config import RunConfig
from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.execution import train
from semfocus.store import DamagedCheckpoint, RunDirectory
from semfocus.training import Progress
from tests.store.helpers import flip, reseal
from tests.store.machine import Machine, before_each_step, directory_for_everybody, give_up_superuser, set_mode
from tests.training.helpers import assert_same_bits, process, run_of, runtime, states, tensors, tiny, trained

PAIR = [tiny(seed, "topk:3") for seed in (1, 2)]


class _Stop(Exception):
    pass


def _interrupt(configs: list[RunConfig], out: Path, step: int = 10) -> RunDirectory:
    """Train these runs up to `step`; return the first one."""

    def stop(progress: Progress) -> None:
        if progress.step == step:
            raise _Stop

    with pytest.raises(_Stop):
        train(configs, out, runtime(checkpoint_seconds=0), stop)
    return run_of(configs[0], out)


def test_a_full_disk_is_a_storage_error_and_the_next_session_goes_on_to_the_bit(tmp_path: Path) -> None:
    """At a dozen places all over a training."""
    with Machine() as machine:
        expected = trained(PAIR, tmp_path / "undisturbed", checkpoint_seconds=0)
    calls = machine.calls_taking_space()
    for call in calls[5 :: len(calls) // 11]:
        out = tmp_path / str(call)
        with Machine(full_at=call), pytest.raises(StorageError, match="No space left") as caught:
            trained(PAIR, out, checkpoint_seconds=0)
        assert caught.value.exit_code == 6
        with Machine():
            for run in (run_of(config, out) for config in PAIR):
                if run.path.exists() and run.checkpoint_steps():
                    assert run.load_checkpoint() is not None
            assert_same_bits(trained(PAIR, out), expected)


def _train_without_rights(out: Path, answer: Connection) -> None:
    steps: list[int] = []
    config = tiny(1)
    give_up_superuser()
    try:
        with before_each_step(lambda step: steps.append(step.cohort.step)):
            train([config], out, runtime())
        answer.send(("no error", 0, steps))
    except StorageError as error:
        answer.send((str(error), error.exit_code, steps))


@pytest.mark.parametrize("known", [False, True], ids=["a new run", "an interrupted run"])
def test_a_read_only_directory_fails_before_the_first_step(known: bool) -> None:
    with directory_for_everybody() as root:
        if known:
            _interrupt([tiny(1)], root)
        set_mode(root, 0o555)
        received, answer = get_context("forkserver").Pipe(duplex=False)
        started = process(_train_without_rights, root, answer)
        message, code, steps = received.recv()
        started.join()
    assert "cannot write" in message
    assert str(root) in message
    assert code == 6
    assert steps == []


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_run_directory_that_vanishes_is_a_named_error(tmp_path: Path, how: str) -> None:
    run = run_of(PAIR[1], tmp_path)

    def vanish(progress: Progress) -> None:
        if progress.step == 5:
            if how == "deleted":
                shutil.rmtree(run.path)
            else:
                run.path.rename(tmp_path / "elsewhere")
            if how == "replaced":
                shutil.copytree(tmp_path / "elsewhere", run.path)

    with pytest.raises(StorageError, match=f"{run.id} was (deleted or moved|replaced)") as caught:
        train(PAIR, tmp_path, runtime(), vanish)
    assert caught.value.exit_code == 6


def _hold(config: RunConfig, out: Path, answer: Connection) -> None:
    with run_of(config, out).lock():
        answer.send(os.getpid())
        signal.pause()


def test_a_run_that_another_process_holds_is_left_to_it_and_taken_over_when_that_dies(tmp_path: Path) -> None:
    configs = [tiny(1), tiny(2), tiny(3, "topk:3")]
    _interrupt(configs[:2], tmp_path)
    received, answer = get_context("forkserver").Pipe(duplex=False)
    holder = process(_hold, configs[0], tmp_path, answer)
    pid = received.recv()
    before = tensors(run_of(configs[0], tmp_path))["step"]
    outcomes = train(configs, tmp_path, runtime())
    assert states(outcomes) == ["held", "done", "done"]
    assert outcomes[0].run.holder().pid == pid
    assert tensors(outcomes[0].run)["step"] == before
    holder.kill()
    holder.join()
    assert states(train(configs, tmp_path, runtime())) == ["done", "done", "done"]
    assert [row["step"] for row in outcomes[0].run.metrics()] == [5, 10, 15]


def test_a_damaged_checkpoint_sends_the_whole_cohort_back_to_the_one_before(tmp_path: Path) -> None:
    """And what comes of it is identical to the bit."""
    expected = trained(PAIR, tmp_path / "undisturbed")
    out = tmp_path / "damaged"
    run = _interrupt(PAIR, out)
    newest = run.checkpoint_steps()[0]
    flip(run.path / "checkpoints" / str(newest) / "state.safetensors", -1)
    with pytest.warns(DamagedCheckpoint, match="set aside"):
        resumed = trained(PAIR, out)
    assert_same_bits(resumed, expected)


def test_when_every_checkpoint_is_damaged_nothing_is_started_again_silently(tmp_path: Path) -> None:
    _interrupt(PAIR, tmp_path)
    run = run_of(PAIR[1], tmp_path)
    metrics = run.metrics()
    assert len(run.checkpoint_steps()) == 2
    for state in run.path.glob("checkpoints/*/state.safetensors"):
        flip(state, -1)
    for _ in range(2):
        with pytest.raises(CorruptData, match=f"run {run.id}: no checkpoint is intact") as caught:
            train(PAIR, tmp_path, runtime())
        assert caught.value.exit_code == 5
    assert run.metrics() == metrics
    assert run_of(PAIR[0], tmp_path).status()["state"] == "done"
    assert len(list(run.path.glob("checkpoints/*/state.safetensors"))) == 2


@pytest.mark.parametrize(
    ("step", "meta", "reason"),
    [
        (11, {}, "does not say how it stood"),
        (11, {"best_accuracy": "high"}, "does not say how it stood"),
        (99, None, "step 99 of 15"),
    ],
    ids=["no progress", "a progress of the wrong type", "a step beyond the end"],
)
def test_a_checkpoint_with_valid_checksums_and_invalid_content_is_refused(
    tmp_path: Path, step: int, meta: dict[str, str] | None, reason: str
) -> None:
    config = tiny(1)
    run = _interrupt([config], tmp_path)
    checkpoint = run.load_checkpoint()
    with run.lock() as writer:
        writer.save_checkpoint(step, checkpoint.tensors, checkpoint.meta if meta is None else meta)
    with pytest.raises(CorruptData, match=reason):
        train([config], tmp_path, runtime())


def test_a_run_directory_with_another_config_is_refused_with_the_fields_that_differ(tmp_path: Path) -> None:
    config = tiny(1)
    run = _interrupt([config], tmp_path)
    before = run.metrics(), run.checkpoint_steps()
    path = run.path / "config.json"
    document = json.loads(path.read_text())
    document["config"]["training"]["lr"] = 0.7
    document["config"]["data"]["options"]["length"] = 9
    path.write_text(json.dumps(document))
    differences = r"training\.lr was 0\.7, is 0\.1; data\.options\.length was 9, is 8"
    with pytest.raises(CorruptData, match=differences) as caught:  # it was edited, and says so first
        train([config], tmp_path, runtime())
    assert caught.value.exit_code == 5
    reseal(path, lambda document: None)
    with pytest.raises(UsageError, match=differences) as caught:
        train([config], tmp_path, runtime())
    assert caught.value.exit_code == 2
    assert (run.metrics(), run.checkpoint_steps()) == before
