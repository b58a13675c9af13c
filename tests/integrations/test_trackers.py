"""Trackers write what metrics.jsonl holds, and none of them can harm a run."""

from __future__ import annotations

import json
import struct
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.errors import MissingExtra, UsageError
from semfocus.integrations.trackers import MAX_OPEN_LOGS, Run, Sink, TrackerFailed, parse_sink, tracking
from semfocus.training.objective import CLASSIFICATION

METRICS = (*CLASSIFICATION.columns, "lr", "epoch")


class Memory:
    """A tracker that keeps its data in memory."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.rows: list[tuple[str, int, dict[str, float]]] = []
        self.closed: list[str] = []

    def __call__(self, run: Run) -> Any:
        self.runs[run.id] = run

        def write(step: int, values: Mapping[str, float]) -> None:
            self.rows.append((run.id, step, dict(values)))

        return SimpleNamespace(write=write, close=lambda: self.closed.append(run.id))


def config(mechanism: str = "topk:3", seed: int = 7, name: str = "even_pairs") -> RunConfig:
    return RunConfig(
        task=TaskConfig(name=name, options={"length": 8}, train_rows=50, heldout_rows=20),
        attention=AttentionConfig(mechanism=mechanism),
        model=ModelConfig(blocks=1, d_model=8, d_mlp=8),
        training=TrainingConfig(epochs=3),
        seed=seed,
    )


def member(run_id: str, step: int | None, **more: Any) -> Any:
    values = {name: float(step or 0) for name in METRICS}
    last = {} if step is None else {"step": step, "note": "x", **values}
    return SimpleNamespace(run=SimpleNamespace(id=run_id), config=config(**more), last=last)


def progress(*members: Any, session_steps: int = 1) -> Any:
    return SimpleNamespace(members=members, session_steps=session_steps)


def test_each_row_is_sent_once_under_the_names_of_the_metrics() -> None:
    memory = Memory()
    sink = Sink("memory", memory)
    sink(progress(member("a", None), member("b", None), session_steps=0))
    sink(progress(member("a", 5), member("b", 5)))
    sink(progress(member("a", 5), member("b", 5)))  # a callback is also called between evaluations
    sink(progress(member("a", 10)))
    assert [(run, step) for run, step, _ in memory.rows] == [("a", 5), ("b", 5), ("a", 10)]
    assert set(memory.rows[0][2]) == {"train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy", "lr", "epoch"}
    sink.close()
    assert sorted(memory.closed) == ["a", "b"]


def test_a_resumed_run_does_not_send_its_last_row_again_and_says_its_step() -> None:
    memory = Memory()
    sink = Sink("memory", memory)
    sink(progress(member("a", 40), session_steps=0))
    sink(progress(member("a", 60)))
    assert [step for _, step, _ in memory.rows] == [60]
    assert memory.runs["a"].step == 40


def test_a_tracker_gets_the_configuration_and_a_name_that_is_valid_for_a_folder() -> None:
    memory = Memory()
    Sink("memory", memory)(progress(member("0123456789abcdef", 1, name="even_pairs", mechanism="banded:3+1g")))
    (run,) = memory.runs.values()
    assert run.name == "even_pairs-banded_3+1g-7-01234567"
    assert run.config["attention"]["mechanism"] == "banded:3+1g"


def test_a_task_given_as_a_path_cannot_leave_the_folder() -> None:
    memory = Memory()
    Sink("memory", memory)(progress(member("0123456789abcdef", 1, name="../../etc/<b>.csv")))
    (run,) = memory.runs.values()
    assert run.name == "_b_-topk_3-7-01234567"


def test_a_tracker_that_fails_is_dropped_with_one_warning_and_training_goes_on() -> None:
    def broken(run: Run) -> Any:
        raise OSError("disk full")

    sink = Sink("broken", broken)
    with pytest.warns(TrackerFailed, match="broken failed and gets nothing more: OSError: disk full"):
        sink(progress(member("a", 1)))
    sink(progress(member("a", 2)))  # a second warning would be an error here
    sink.close()


def test_a_tracker_that_fails_to_close_is_a_warning_too() -> None:
    memory = Memory()
    sink = Sink("memory", lambda run: SimpleNamespace(write=lambda step, values: None, close=lambda: 1 / 0))
    sink(progress(member("a", 1)))
    with pytest.warns(TrackerFailed, match="ZeroDivisionError"):
        sink.close()
    assert memory.rows == []


def test_logs_of_runs_that_ended_do_not_pile_up() -> None:
    memory = Memory()
    sink = Sink("memory", memory)
    for i in range(3 * MAX_OPEN_LOGS):
        sink(progress(member(f"{i}", 1)))
    assert len(memory.closed) == 2 * MAX_OPEN_LOGS
    sink.close()
    assert sorted(memory.closed, key=int) == [str(i) for i in range(3 * MAX_OPEN_LOGS)]


@pytest.mark.parametrize("text", ["tensorbord:logs", "mlflow", "", ":logs"])
def test_an_unknown_tracker_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match="known: tensorboard, trackio, wandb"):
        parse_sink(text)


@pytest.mark.parametrize("text", ["tensorboard", "wandb:", "trackio:  "])
def test_a_tracker_without_a_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not say where to"):
        parse_sink(text)


@pytest.mark.parametrize(
    ("kind", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("trackio", "trackio")]
)
def test_a_missing_package_is_reported_before_training(monkeypatch: pytest.MonkeyPatch, kind: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    with pytest.raises(MissingExtra, match=r"semfocus\[trackers\]"):
        parse_sink(f"{kind}:x")


def test_several_trackers_and_the_callback_get_the_same_and_are_closed() -> None:
    first, second, calls = Memory(), Memory(), []
    backends = {"one": lambda destination: first, "two": lambda destination: second}
    with suppress(KeyboardInterrupt), tracking(calls.append, ["one:x", "two:y"], backends) as on_progress:
        on_progress(progress(member("a", 1)))
        raise KeyboardInterrupt  # trackers are closed however training ends
    assert first.rows == second.rows
    assert first.closed == second.closed == ["a"]
    assert len(calls) == 1


def trained(tmp_path: Path, tracker: str) -> dict[str, list[dict[str, Any]]]:
    """Train two runs with a tracker; return their rows by the names of the runs."""
    from semfocus.execution import train
    from semfocus.training import Runtime

    configs = [config(seed=seed) for seed in (1, 2)]
    with tracking(lambda progress: None, [tracker]) as on_progress:
        outcomes = train(configs, tmp_path / "runs", Runtime(device="cpu", threads=1, compile="off"), on_progress)
    return {f"even_pairs-topk_3-{o.config.seed}-{o.run.id[:8]}": o.run.metrics() for o in outcomes}


def check(rows: Mapping[str, list[dict[str, Any]]], read: Callable[[str], dict[int, dict[str, float]]]) -> None:
    """Assert that the tracker holds all of metrics.jsonl, step by step; it may have single precision."""
    for name, expected in rows.items():
        tracked = read(name)
        assert sorted(tracked) == [row["step"] for row in expected]
        assert len(expected) == 3
        for row in expected:
            assert tracked[row["step"]] == pytest.approx({metric: row[metric] for metric in METRICS}, rel=1e-6)


def test_tensorboard_holds_what_metrics_jsonl_holds(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = trained(tmp_path, f"tensorboard:{tmp_path / 'events'}")

    def read(name: str) -> dict[int, dict[str, float]]:
        events = EventAccumulator(str(tmp_path / "events" / name))
        events.Reload()
        assert set(events.Tags()["scalars"]) == set(METRICS)
        (text,) = events.Tensors("config/text_summary")
        assert '"mechanism": "topk:3"' in text.tensor_proto.string_val[0].decode()
        tracked: dict[int, dict[str, float]] = {}
        for metric in METRICS:
            for event in events.Scalars(metric):
                tracked.setdefault(event.step, {})[metric] = event.value
        return tracked

    assert sorted(path.name for path in (tmp_path / "events").iterdir()) == sorted(rows)
    check(rows, read)


def test_wandb_holds_what_metrics_jsonl_holds_and_stays_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        rows = trained(tmp_path, "wandb:focus")
    tracked: dict[str, dict[int, dict[str, float]]] = {}
    for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb"):
        name, history = "", {}
        for data in _leveldb_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                name = record.run.display_name
                assert record.run.project == "focus"
            if record.HasField("history"):
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                history[items["_step"]] = {metric: items[metric] for metric in METRICS}
        tracked[name] = history
    assert sorted(tracked) == sorted(rows)
    check(rows, tracked.__getitem__)


def _leveldb_records(data: bytes) -> list[bytes]:
    """Return the records of a .wandb file: a 7-byte header, then pieces (sum, length, kind, bytes) in 32 KiB blocks."""
    records, pieces, at = [], b"", 7
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            records.append(pieces)
            pieces = b""
    return records


def test_trackio_holds_what_metrics_jsonl_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when the package is imported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        pytest.importorskip("trackio")
        from trackio.sqlite_storage import SQLiteStorage

        rows = trained(tmp_path, f"trackio:focus-{tmp_path.name}")
        project = f"focus-{tmp_path.name}"
        tracked = {
            name: {
                row["step"]: {metric: row[metric] for metric in METRICS}
                for row in SQLiteStorage.get_logs(project, name)
            }
            for name in SQLiteStorage.get_runs(project)
        }
    assert sorted(tracked) == sorted(rows)
    check(rows, tracked.__getitem__)
