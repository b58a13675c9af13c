"""A damaged run is that run's fault alone: its siblings go on, are not failed, and are not deleted."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from semfocus.cli import app
from semfocus.errors import CorruptData, StorageError
from semfocus.execution import train
from semfocus.execution.resuming import resume
from semfocus.store import DamagedCheckpoint, RunDirectory, RunStore
from semfocus.training import Progress
from tests.store.helpers import flip
from tests.store.machine import Machine
from tests.training.helpers import run_of, runtime, tiny, trained

PAIR = [tiny(seed) for seed in (1, 2)]


class _Stop(BaseException):
    """As a kill: no status is written."""


def interrupted(out: Path, step: int = 10) -> list[RunDirectory]:
    def stop(progress: Progress) -> None:
        if progress.step == step:
            raise _Stop

    with pytest.raises(_Stop):
        train(PAIR, out, runtime(checkpoint_seconds=0), stop)
    return [run_of(config, out) for config in PAIR]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def files(run: RunDirectory) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def nul(run: RunDirectory) -> None:
    path = run.path / "metrics.jsonl"
    path.write_bytes(b"\0" + path.read_bytes()[1:])


def emptied(run: RunDirectory) -> None:
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "checkpoints").mkdir()


def no_checkpoint_intact(run: RunDirectory) -> None:
    for state in run.path.glob("checkpoints/*/state.safetensors"):
        flip(state, -1)


def edited(run: RunDirectory) -> None:
    path = run.path / "config.json"
    path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.2'))


def no_status(run: RunDirectory) -> None:
    (run.path / "status.json").write_text("{")


DAMAGE = {f.__name__: f for f in (nul, emptied, no_checkpoint_intact, edited, no_status)}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_the_siblings_of_a_damaged_run_go_on_to_their_ends_and_it_is_named(tmp_path: Path, damage: Any) -> None:
    bad, good = interrupted(tmp_path)
    first_rows = good.metrics()
    checkpoint = good.checkpoint_steps()[0]
    damage(bad)
    before = files(bad)
    result = call("resume", "--out", tmp_path, "--device", "cpu", "--jobs", 1)
    assert isinstance(result.exception, CorruptData), result.output
    assert bad.id in str(result.exception)
    assert good.id not in str(result.exception).replace(str(bad.path), "")
    status = good.status()
    assert (status["state"], status["step"]) == ("done", 15)
    assert sorted(status["cohort"]) == sorted([bad.id, good.id])  # with whom it began
    assert good.metrics()[: len(first_rows)] == first_rows
    assert checkpoint == 10
    after = files(bad)
    for name in before.keys() - {"status.json", "lock"}:
        assert after[name] == before[name], f"{name} of the damaged run was changed"
    results = json.loads(call("runs", tmp_path, "--json").stdout)
    assert {row["id"] for row in results} == {bad.id, good.id}


def test_clean_spares_what_has_an_intact_checkpoint(tmp_path: Path) -> None:
    bad, good = interrupted(tmp_path)
    nul(bad)
    call("resume", "--out", tmp_path, "--device", "cpu", "--jobs", 1)
    assert "nothing to remove" in call("clean", tmp_path, "--yes").stdout
    assert bad.path.is_dir()
    assert good.path.is_dir()
    no_checkpoint_intact(bad)
    assert f"removed {bad.id}" in call("clean", tmp_path, "--yes").stdout
    assert good.path.is_dir()


def test_a_run_that_lost_its_checkpoints_is_refused_and_says_how_to_start_over(tmp_path: Path) -> None:
    bad, good = interrupted(tmp_path)
    emptied(bad)
    before = files(good)
    with pytest.raises(CorruptData, match=rf"checkpoints are gone .* remove .*{bad.id} to start this run over"):
        resume([bad], runtime())
    assert files(good) == before
    assert len(bad.metrics()) == 2
    shutil.rmtree(bad.path)
    (outcome,) = train(PAIR[:1], tmp_path, runtime())
    assert outcome.state == "done"


def test_a_run_alone_that_lost_its_checkpoints_is_not_restarted_either(tmp_path: Path) -> None:
    (bad, _) = interrupted(tmp_path, step=5)
    emptied(bad)
    with pytest.raises(CorruptData, match="checkpoints are gone"):
        resume([bad], runtime())


def test_runs_that_a_full_disk_stopped_are_interrupted_not_failed(tmp_path: Path) -> None:
    with Machine() as machine:
        trained(PAIR, tmp_path / "undisturbed", checkpoint_seconds=0)
    calls = machine.calls_taking_space()
    out = tmp_path / "full"
    with Machine(full_at=calls[len(calls) // 2]), pytest.raises(StorageError):
        trained(PAIR, out, checkpoint_seconds=0)
    states = [entry.state for entry in RunStore(out).entries()]
    assert "failed" not in states
    assert set(states) <= {"interrupted", "done"}
    assert [run.status()["state"] for run in trained(PAIR, out)] == ["done", "done"]


def test_compare_names_a_damaged_run_and_answers_without_it(tmp_path: Path) -> None:
    words = ["even_pairs", "--quick", "--attention", "full", "--seeds", 2, "--epochs", 1, "--set", "task.train_rows=50",
             "--set", "task.heldout_rows=20", "--set", "model.blocks=1", "--device", "cpu", "--jobs", 1,
             "--out", tmp_path]  # fmt: skip
    assert call("compare", *words).exit_code == 0
    first, second = RunStore(tmp_path).entries()
    path = first.path / "metrics.jsonl"
    path.write_text(path.read_text().replace("0.", "0.1", 1))
    result = call("compare", *words)
    assert isinstance(result.exception, CorruptData)
    assert first.name in str(result.exception)
    assert "1 seed," in result.stdout
    (second.path / "status.json").write_text("{")
    result = call("compare", *words)
    assert isinstance(result.exception, CorruptData)
    assert second.name in str(result.exception)


def test_an_objective_that_does_not_measure_what_it_declares_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semfocus.training.objective import Classification

    monkeypatch.setattr(Classification, "measurements", lambda self, logits, targets: {})
    with pytest.raises(ValueError, match="does not return it"):
        train(PAIR, tmp_path / "runs", runtime())
    assert not (tmp_path / "runs").exists()


def test_a_damaged_newest_checkpoint_still_only_sets_the_cohort_back(tmp_path: Path) -> None:
    bad, good = interrupted(tmp_path)
    flip(bad.path / "checkpoints" / "10" / "state.safetensors", -1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcomes = resume([bad, good], runtime())
    assert [outcome.state for outcome in outcomes] == ["done", "done"]
    assert any(issubclass(one.category, DamagedCheckpoint) for one in caught)
