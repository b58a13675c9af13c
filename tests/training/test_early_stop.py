"""Early stopping watches held-out loss, the test split is measured and decides nothing, and both survive a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from semfocus import Task
from semfocus.analysis.records import read_records
from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.store import RunStore
from semfocus.training import Progress
from tests.training.helpers import assert_same_bits, runtime, tiny, trained

STOP = {"patience": 2, "patience_on": "validation", "evaluate_test": True, "epochs": 40, "lr": 1.0}


def test_a_run_stops_after_patience_epochs_without_a_lower_held_out_loss(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, **STOP)], tmp_path)
    rows = run.metrics()
    losses = [row["heldout_loss"] for row in rows]
    best = losses.index(min(losses))
    assert len(rows) == best + 1 + 2 < 40
    assert run.status()["reason"] == "no gain in held-out loss for 2 epochs"
    records, _ = read_records(RunStore(tmp_path).entries())
    assert records[0].selected("test_accuracy") == rows[best]["test_accuracy"]
    assert records[0].selected("test_accuracy") is not None


def test_measuring_the_test_split_changes_nothing_else(tmp_path: Path) -> None:
    plain, tested = trained([tiny(1), tiny(1, evaluate_test=True)], tmp_path)
    assert plain.id != tested.id
    added = {"test_loss", "test_accuracy"}
    assert [{n: v for n, v in row.items() if n not in added} for row in tested.metrics()] == plain.metrics()
    assert all(added <= row.keys() for row in tested.metrics())
    records, _ = read_records(RunStore(tmp_path).entries())
    last = tested.metrics()[-1]["test_accuracy"]
    assert {record.selected("test_accuracy") for record in records} == {None, last}


def test_an_interrupted_run_stops_at_the_same_epoch_with_the_same_bits(tmp_path: Path) -> None:
    configs = [tiny(seed, **STOP) for seed in (1, 2)]

    def interrupt(progress: Progress) -> None:
        if progress.step == 10:
            raise KeyError

    with pytest.raises(KeyError):
        train(configs, tmp_path / "a", runtime(checkpoint_seconds=0), interrupt)
    assert_same_bits(trained(configs, tmp_path / "a"), trained(configs, tmp_path / "b"))


def test_a_test_split_without_rows_is_refused(tmp_path: Path) -> None:
    task = Task.from_arrays([[i % 3, i] for i in range(40)], [i % 2 for i in range(40)], test_share=0)
    config = RunConfig(task=TaskConfig(name="arrays", train_rows=None, heldout_rows=None))
    config.check(task)
    tested = config.model_copy(update={"training": config.training.model_copy(update={"evaluate_test": True})})
    with pytest.raises(UsageError, match="needs rows of a test split"):
        tested.check(task)
