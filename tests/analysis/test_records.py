"""A store of good and bad directories: each is shown for what it is, and speed costs no strictness."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semfocus.analysis.metrics import Metrics, read_metrics
from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.errors import CorruptData, UsageError
from semfocus.measurements import Dispersion
from semfocus.store import RunDirectory, RunStore, write_measurement
from tests.analysis.made import run
from tests.analysis.test_verdicts_cli import stored
from tests.measurements import payloads
from tests.store.helpers import reseal

CONFIG = {
    "task": {"name": "parity"},
    "attention": {"mechanism": "topk:5"},
    "training": {"epochs": 10},
    "seed": 3,
}
ROW = {"lr": 0.1, "train_loss": 0.5, "train_accuracy": 0.6, "heldout_loss": 0.5, "heldout_accuracy": 0.5}


def made(root: Path, run_id: str, rows: int = 2, state: str | None = "done", config=CONFIG, **changes) -> RunDirectory:
    run = RunStore(root).create_or_open(run_id, config)
    with run.lock() as writer:
        for i in range(1, rows + 1):
            writer.append_metrics({"epoch": i, "step": 40 * i, **ROW} | changes)
            writer.append_timing({"step": 40 * i, "seconds": 1.5 * i})
        if state is not None:
            writer.write_status(state)
    return run


def put(run: RunDirectory, text: str) -> RunDirectory:
    """With these metrics, of which no status says what they were."""
    (run.path / "status.json").unlink(missing_ok=True)
    (run.path / "metrics.jsonl").write_text(text)
    return run


def line(step: int, **more) -> str:
    return json.dumps({"epoch": step, "step": step, **ROW, **more}) + "\n"


def test_every_run_that_can_be_read_is_a_record_in_its_own_state(tmp_path: Path) -> None:
    for name, state in (("aa", "done"), ("bb", "diverged"), ("cc", "interrupted"), ("dd", "failed"), ("ee", None)):
        made(tmp_path, name * 4, state=state)
    RunStore(tmp_path).create_or_open("ff" * 4, CONFIG)
    results = Results.load(tmp_path)
    states = ["done", "diverged", "interrupted", "failed", "interrupted", "empty"]
    assert [record.state for record in results.records] == states
    assert results.unreadable == []
    assert [len(record.metrics) for record in results.records] == [2, 2, 2, 2, 2, 0]
    assert results.records[0].seconds == 3.0
    assert results.records[5].final("epoch") is None
    assert results.records[5].best("train_loss") is None


def test_a_run_that_a_process_works_on_is_called_running(tmp_path: Path) -> None:
    run = made(tmp_path, "aa" * 4, state=None)
    with run.lock() as writer:
        writer.write_status("running")
        (record,) = Results.load(tmp_path).records
    assert record.state == "running"
    assert not record.ended


def test_everything_else_is_a_fault_that_says_what_it_is(tmp_path: Path) -> None:
    made(tmp_path, "aaaaaaaa")
    put(made(tmp_path, "bbbbbbbb"), line(2) + line(1))  # steps fall
    (made(tmp_path, "cccccccc").path / "config.json").write_text("{")
    (tmp_path / "dddddddd").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "eeeeeeee").symlink_to(tmp_path / "aaaaaaaa")
    (made(tmp_path, "ffffffff").path / "status.json").write_text('{"format": 99, "state": "done"}')
    made(tmp_path, "abababab", config=CONFIG | {"seed": "seven"})
    made(tmp_path, "acacacac", config={"task": 3})
    results = Results.load(tmp_path)
    assert [record.id for record in results.records] == ["aaaaaaaa"]
    kinds = {fault.name: fault.kind for fault in results.unreadable}
    assert kinds == {
        "bbbbbbbb": "corrupt", "cccccccc": "corrupt", "dddddddd": "empty", "notes.txt": "unrecognised",
        "eeeeeeee": "unrecognised",
        "ffffffff": "unrecognised", "abababab": "corrupt", "acacacac": "corrupt",
    }  # fmt: skip
    why = {fault.name: fault.what for fault in results.unreadable}
    assert "step 1 after step 2" in why["bbbbbbbb"]
    assert "seed = 'seven'" in why["abababab"]


def test_a_store_that_is_not_there_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory of runs"):
        Results.load(tmp_path / "nothing")
    assert Results.load(tmp_path).records == []


def test_a_torn_last_line_is_not_seen(tmp_path: Path) -> None:
    run = put(made(tmp_path, "aa" * 4), line(1) + line(2) + line(3)[:30])
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    assert len(read_metrics(put(run, line(1)[:-1]))) == 0


@pytest.mark.parametrize(
    "text",
    [
        line(1) + line(2, epoch=2.5),
        line(1) + line(2, note="a text"),
        line(1) + line(2, extra=None),
        line(1) + line(2, train_loss=None, not_finite={"train_loss": "nan"}),
        line(1) + line(2, train_loss=None, not_finite={"train_loss": "inf"}),
        '{"step": 1, "a" : 2}\n',
        "",
    ],
)
def test_the_fast_way_gives_what_the_stores_own_way_gives(tmp_path: Path, text: str) -> None:
    run = put(made(tmp_path, "aa" * 4), text)
    rows = run.metrics()
    metrics = read_metrics(run)
    assert len(metrics) == len(rows)
    for fast, slow in zip(metrics, rows, strict=True):
        for name, value in slow.items():
            assert fast[name] == value or (isinstance(fast[name], float) and math.isnan(fast[name]))
    if rows:
        assert repr(metrics[-1]) == repr(list(metrics)[-1])


class OnlyInOnePiece(RunDirectory):
    """A run whose metrics must not be read line by line."""

    def metrics(self) -> list[dict[str, Any]]:
        pytest.fail("line by line")


def test_an_ordinary_run_is_read_in_one_piece(tmp_path: Path) -> None:
    run = put(made(tmp_path, "aa" * 4), line(1) + line(2))
    assert read_metrics(OnlyInOnePiece(run.path)).column("step").tolist() == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        line(1) + '{"step": 2, "step": 3}\n',
        '{"step": 1, "a": 1}\n{"step": 2, "a": 1, "a": 2}\n',
        line(1) + "{}\n",
        line(1) + '{"step": 2, "a": NaN}\n',
        line(1) + '{"step": 2, "a": 1e999}\n',
        line(1) + '{"step": 2, "a": [1]}\n',
        line(1) + '{"step": 2, "a": {"b": 1}}\n',
        line(1) + '{"step": 2.0}\n',
        line(1) + '{"step": 1}\n',
        line(1) + '{"step": -1}\n',
        line(1) + "nonsense\n",
        line(1) + "\n",
        '{"step": 1}, {"step": 2}\n{"step": 3\n"a": 4}\n',
        '[{"step": 1}]\n',
    ],
)
def test_what_the_store_refuses_is_refused_here_too(tmp_path: Path, text: str) -> None:
    run = put(made(tmp_path, "aa" * 4), text)
    with pytest.raises(CorruptData):
        run.metrics()
    with pytest.raises(CorruptData):
        read_metrics(run)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epoch": 11}, "epoch = 11"),
        ({"epoch": 0}, "epoch = 0"),
        ({"train_accuracy": 1.5}, "train_accuracy = 1.5"),
        ({"heldout_accuracy": float("nan")}, "heldout_accuracy = nan"),
        ({"train_loss": "low"}, "no numbers called train_loss"),
    ],
)
def test_metrics_that_no_training_can_give_are_a_fault_and_not_a_crash_later(tmp_path: Path, change, said: str) -> None:
    made(tmp_path, "aa" * 4, rows=1, **change)
    (fault,) = Results.load(tmp_path).unreadable
    assert said in fault.what


def test_a_diverged_runs_nan_loss_is_no_fault(tmp_path: Path) -> None:
    made(tmp_path, "aa" * 4, state="diverged", train_loss=float("nan"))
    (record,) = Results.load(tmp_path).records
    assert math.isnan(record.final("train_loss"))
    assert record.best("train_accuracy") == 0.6


def test_a_record_takes_rows_and_gives_columns() -> None:
    rows = [
        {"epoch": e, "step": e, "train_accuracy": a, "heldout_accuracy": a} for e, a in ((1, 0.2), (2, 0.95), (3, 0.5))
    ]
    record = Record("x", CONFIG, rows, "done", 0.0)
    assert record.converged_at == 2
    assert record.first_at(0.96) is None
    assert record.best("train_accuracy") == 0.95
    assert record.final("train_accuracy") == 0.5
    assert list(record.metrics) == rows
    assert record.metrics[-1] == rows[-1]
    assert record.metrics[1:] == rows[1:]
    np.testing.assert_array_equal(record.column("train_accuracy"), [0.2, 0.95, 0.5])
    with pytest.raises(IndexError):
        record.metrics[3]


def test_columns_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Metrics.of([{"a": 1}]).column("a")[0] = 2


def test_measurements_are_found_by_run_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    good, bad = made(tmp_path, "aa" * 4), made(tmp_path, "bb" * 4, config=CONFIG | {"seed": 4})
    write_measurement(good, "dispersion", payloads.dispersion())
    write_measurement(bad, "surface", {"grid": 3})
    (bad.path / "measurements" / "surface.json").write_text("{")
    results = Results.load(tmp_path)
    assert results.measurements == {"aa" * 4: {"dispersion": Dispersion.from_payload(payloads.dispersion())}}
    assert [(fault.name, fault.kind) for fault in results.faults] == [("bb" * 4, "corrupt")]
    assert results.unreadable == []


def test_the_best_value_of_a_loss_is_the_smallest() -> None:
    rows = [
        {"epoch": i + 1, "step": i + 1, "train_loss": loss, "train_accuracy": right, "heldout_loss": loss,
         "heldout_accuracy": right}
        for i, (loss, right) in enumerate([(0.9, 0.5), (0.2, 0.9), (0.4, 0.8)])
    ]  # fmt: skip
    record = Record("aa" * 8, {"training": {"epochs": 3}}, rows, "done", 1.0)
    assert record.best("heldout_loss") == 0.2
    assert record.best("heldout_accuracy") == 0.9


@pytest.mark.parametrize("objective", [[], {}, 5, None])
def test_an_objective_that_is_no_name_is_a_fault_of_its_run_alone(objective: object, tmp_path: Path) -> None:
    stored(tmp_path, [run("parity", "full", seed) for seed in (1, 2)])
    path = tmp_path / run("parity", "full", 1).id / "config.json"
    reseal(path, lambda document: document["config"].update(objective=objective))
    results = Results.load(tmp_path)
    assert [(fault.name, fault.kind) for fault in results.faults] == [(run("parity", "full", 1).id, "corrupt")]
    assert len(results.records) == 1
