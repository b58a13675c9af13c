"""Rows 8 to 12, 15 and 17 as a training meets them: full disks, lost directories, other processes, damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from semfocus.config import RunConfig
from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.execution import train
from semfocus.store import DamagedCheckpoint
from semfocus.training import Progress
from semfocus.training.step import TrainStep
from tests.store.helpers import flip
from tests.store.machine import Machine
from tests.training.helpers import assert_same_bits, process, run_of, runtime, states, tensors, tiny, trained

PAIR = [tiny(seed, "topk:3") for seed in (1, 2)]


class _Stop(Exception):
    pass


def _interrupted(configs: list[RunConfig], out: Path, step: int = 10) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == step:
            raise _Stop

    with pytest.raises(_Stop):
        train(configs, out, runtime(checkpoint_seconds=0), stop)


def test_a_full_disk_is_a_storage_error_and_the_next_session_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Row 8: at a dozen places all over a training."""
    with Machine() as machine:
        expected = trained(PAIR, tmp_path / "undisturbed", checkpoint_seconds=0)
    takes_space = [i for i, name in enumerate(machine.names(), 1) if name in ("write", "mkdir", "fsync")]
    for call in takes_space[5 :: len(takes_space) // 11]:
        out = tmp_path / str(call)
        with Machine(full_at=call), pytest.raises(StorageError, match="No space left") as caught:
            trained(PAIR, out, checkpoint_seconds=0)
        assert caught.value.exit_code == 6
        with Machine():
            for run in (run_of(config, out) for config in PAIR):
                if run.path.exists() and run.checkpoint_steps():
                    assert run.load_checkpoint() is not None
            assert_same_bits(trained(PAIR, out), expected)


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


def _train_without_rights(out: Path, answer: Connection) -> None:
    steps: list[int] = []
    TrainStep.step = lambda self: steps.append(self.cohort.step)
    config = tiny(1)
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        train([config], out, runtime())
        answer.send(("no error", 0, steps))
    except StorageError as error:
        answer.send((str(error), error.exit_code, steps))


@pytest.mark.parametrize("known", [False, True], ids=["a new run", "an interrupted run"])
def test_a_read_only_directory_fails_before_the_first_step(world_readable: Path, known: bool) -> None:
    """Row 9."""
    if known:
        _interrupted([tiny(1)], world_readable)
    for folder in (*world_readable.rglob("*"), world_readable):
        if folder.is_dir():
            folder.chmod(0o555)
    received, answer = get_context("forkserver").Pipe(duplex=False)
    started = process(_train_without_rights, world_readable, answer)
    message, code, steps = received.recv()
    started.join()
    assert "cannot write" in message
    assert str(world_readable) in message
    assert code == 6
    assert steps == []


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_run_directory_that_vanishes_is_a_named_error(tmp_path: Path, how: str) -> None:
    """Row 10."""
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
    """Rows 11 and 12."""
    configs = [tiny(1), tiny(2), tiny(3, "topk:3")]
    _interrupted(configs[:2], tmp_path)
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
    """Row 13: and what comes of it is identical to the bit."""
    expected = trained(PAIR, tmp_path / "undisturbed")
    out = tmp_path / "damaged"
    _interrupted(PAIR, out)
    run = run_of(PAIR[0], out)
    newest = run.checkpoint_steps()[0]
    flip(run.path / "checkpoints" / str(newest) / "state.safetensors", -1)
    with pytest.warns(DamagedCheckpoint, match="set aside"):
        found = trained(PAIR, out)
    assert_same_bits(found, expected)


def test_when_every_checkpoint_is_damaged_nothing_is_started_again_silently(tmp_path: Path) -> None:
    """Row 15."""
    _interrupted(PAIR, tmp_path)
    run = run_of(PAIR[1], tmp_path)
    metrics = [run_of(config, tmp_path).metrics() for config in PAIR]
    assert len(run.checkpoint_steps()) == 2
    for state in run.path.glob("checkpoints/*/state.safetensors"):
        flip(state, -1)
    for _ in range(2):
        with pytest.raises(CorruptData, match="no step is intact") as caught:
            train(PAIR, tmp_path, runtime())
        assert caught.value.exit_code == 5
    assert [run_of(config, tmp_path).metrics() for config in PAIR] == metrics
    assert len(list(run.path.glob("checkpoints/*/state.safetensors"))) == 2


@pytest.mark.parametrize("meta", [{}, {"best_accuracy": "high"}], ids=["empty", "a text"])
def test_a_checkpoint_that_does_not_say_how_it_stood_is_refused(tmp_path: Path, meta: dict[str, str]) -> None:
    """Row 15: the sums are right, the content is a stranger's."""
    config = tiny(1)
    _interrupted([config], tmp_path)
    run = run_of(config, tmp_path)
    values = run.load_checkpoint().tensors
    with run.lock() as writer:
        writer.save_checkpoint(11, values, meta)
    with pytest.raises(CorruptData, match="does not say how it stood"):
        train([config], tmp_path, runtime())


def test_a_checkpoint_beyond_the_end_is_refused(tmp_path: Path) -> None:
    """Row 15."""
    config = tiny(1)
    _interrupted([config], tmp_path)
    run = run_of(config, tmp_path)
    checkpoint = run.load_checkpoint()
    with run.lock() as writer:
        writer.save_checkpoint(99, checkpoint.tensors, checkpoint.meta)
    with pytest.raises(CorruptData, match="step 99 of 15"):
        train([config], tmp_path, runtime())


def test_a_run_directory_with_another_config_is_refused_with_the_fields_that_differ(tmp_path: Path) -> None:
    """Row 17."""
    config = tiny(1)
    _interrupted([config], tmp_path)
    run = run_of(config, tmp_path)
    before = run.metrics(), run.checkpoint_steps()
    path = run.path / "config.json"
    document = json.loads(path.read_text())
    document["config"]["training"]["lr"] = 0.7
    document["config"]["data"]["options"]["length"] = 9
    path.write_text(json.dumps(document))
    with pytest.raises(
        UsageError, match=r"training\.lr was 0\.7, is 0\.1; data\.options\.length was 9, is 8"
    ) as caught:
        train([config], tmp_path, runtime())
    assert caught.value.exit_code == 2
    assert (run.metrics(), run.checkpoint_steps()) == before
