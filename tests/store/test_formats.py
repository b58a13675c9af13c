"""Documents of older formats are migrated when read and never rewritten; those of newer formats are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import semfocus
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import CorruptData, OtherFormat
from semfocus.store import RunDirectory, RunStore, formats
from tests.store.helpers import filled, plant
from tests.training.helpers import assert_same_bits, runtime, tiny, trained


def _set_format(path: Path, version: object) -> None:
    document = json.loads(path.read_text())
    document["format"] = version
    path.write_text(json.dumps(document))


def test_a_newer_format_is_refused_by_its_version(tmp_path: Path) -> None:
    run = filled(tmp_path)
    _set_format(run.path / "config.json", 99)
    with pytest.raises(OtherFormat, match=r"has format 99; this semfocus reads up to \d+: upgrade"):
        run.config()
    entry = RunStore(tmp_path).entries()[0]
    assert entry.state == "unrecognised"
    assert "format 99" in entry.why


def test_an_older_format_without_a_migration_is_refused_by_its_version(tmp_path: Path) -> None:
    run = filled(tmp_path)
    _set_format(run.path / "config.json", 0)
    with pytest.raises(OtherFormat, match="has format 0, which"):
        run.config()


@pytest.mark.parametrize("version", [None, "1", 1.0, True])
def test_a_document_without_a_version_is_corrupt(tmp_path: Path, version: object) -> None:
    run = filled(tmp_path)
    _set_format(run.path / "config.json", version)
    with pytest.raises(CorruptData, match="does not say its format"):
        run.config()


def test_a_checkpoint_of_a_newer_format_is_refused_and_not_set_aside(tmp_path: Path) -> None:
    run = filled(tmp_path)
    plant(run, b"tensors of the future", format=formats.FORMAT + 1)
    with run.lock() as writer, pytest.raises(OtherFormat, match=f"format {formats.FORMAT + 1}"):
        writer.load_checkpoint()
    assert sorted(os.listdir(run.path / "checkpoints")) == ["2", "4"]


def test_an_older_document_is_migrated_version_by_version() -> None:
    def rename(kind: str, body: formats.Document) -> formats.Document:
        return {"rate": body["lr"]} if kind == "config" else body

    def rescale(kind: str, body: formats.Document) -> formats.Document:
        return {"rate": body["rate"] * 10} if kind == "config" else body

    migrations = {1: rename, 2: rescale}
    for version, kind, body, expected in [
        (1, "config", {"lr": 0.5}, {"rate": 5.0}),
        (2, "config", {"rate": 0.5}, {"rate": 5.0}),
        (3, "config", {"rate": 0.5}, {"rate": 0.5}),
        (1, "status", {"lr": 0.5}, {"lr": 0.5}),
    ]:
        assert formats.upgrade({"format": version, **body}, kind, Path("x.json"), migrations) == expected


# A run directory as semfocus 0.1 wrote it: format 1, with the old names training.until, sizes.num_symbols and
# sizes.width. The id is the one that 0.1 gave to this config.
RUN_1 = "97e62cc134cdfadf"
CONFIG_1: dict[str, Any] = {
    "task": {"name": "even_pairs", "options": {"length": 8}, "train_rows": 43, "heldout_rows": 21},
    "attention": {"mechanism": "topk:3", "normaliser": "softmax", "inverse_temperature": 1.0},
    "model": {
        "blocks": 1, "heads": 1, "d_model": 8, "d_mlp": 8, "head_width": "model", "activation": "relu", "norm": "pre",
        "pooling": "mean", "dropout": 0.1, "padding_visible": False, "pad_to_multiple": False,
        "dropout_in_evaluation": False, "first_norm_exact": False,
    },
    "training": {
        "epochs": 3, "batch_size": 10, "optimizer": "sgd", "lr": 0.1, "decay": 0.9995, "clip": 0.5,
        "weight_decay": 0.0, "drop_one_row": False, "until": 0.99, "patience": None,
    },
    "seed": 1,
    "precision": "fp32",
    "label": "",
    "data": {"task": "even_pairs", "version": 1, "options": {"length": 8}},
    "sizes": {"num_symbols": 2, "num_classes": 2, "width": 8},
}  # fmt: skip
STATUS_1: dict[str, Any] = {
    "cohort": [RUN_1], "steps": 15, "device": "cpu", "device_name": "x86_64", "threads": 1, "compiled": False,
    "torch": "2.13.0+cpu", "python": "3.11.7",
}  # fmt: skip
CONFIG = tiny(1, "topk:3", stop_accuracy=0.99)


class _Stop(Exception):
    pass


def _write_format_1(root: Path, source: RunDirectory, step: int, state: str, reason: str) -> RunDirectory:
    """Write the documents of format 1; rows and tensors, which have no format, are those of `source` up to `step`."""
    path = root / RUN_1
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"format": 1, "id": RUN_1, "config": CONFIG_1}, indent=2) + "\n")
    status = {"format": 1, "state": state, **STATUS_1, "step": step, "reason": reason}
    (path / "status.json").write_text(json.dumps(status) + "\n")
    (path / "lock").touch()
    sizes = {}
    for name in ("metrics.jsonl", "timing.jsonl"):
        (path / name).write_bytes((source.path / name).read_bytes())
        sizes[name] = (path / name).stat().st_size
    tensors = (source.path / "checkpoints" / str(step) / "state.safetensors").read_bytes()
    rows = source.metrics()
    best = max(rows, key=lambda row: row["train_accuracy"])  # the first of equals
    meta = {"best_accuracy": best["train_accuracy"], "best_step": best["step"], "died_at": -1, "seconds": 0.2}
    run = RunStore(root).open(RUN_1)
    plant(run, tensors, step, meta=meta, logs=sizes)
    return run


def _interrupted(root: Path) -> RunDirectory:
    """Return a format-1 run that was interrupted at step 10 of 15."""

    def stop(progress: Any) -> None:
        if progress.step == 10:
            raise _Stop

    with pytest.raises(_Stop):
        semfocus.train([CONFIG], root / "source", runtime(checkpoint_seconds=0), stop)
    return _write_format_1(root / "runs", RunStore(root / "source").open(RUN_1), 10, "interrupted", "SIGTERM")


def _finished(root: Path) -> RunDirectory:
    (source,) = trained([CONFIG], root / "source")
    return _write_format_1(root / "runs", source, 15, "done", "all epochs made")


def _files(run: RunDirectory) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def _printed(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_run_of_format_1_opens_under_the_names_of_today_and_is_not_rewritten(tmp_path: Path) -> None:
    run = _finished(tmp_path)
    before = _files(run)
    assert run.config()["training"]["stop_accuracy"] == 0.99
    assert "until" not in run.config()["training"]
    assert run.config()["sizes"] == {"vocab_size": 2, "num_classes": 2, "seq_len": 8}
    assert run.status()["state"] == "done"
    assert [row["step"] for row in run.metrics()] == [5, 10, 15]
    assert run.load_checkpoint().step == 15
    assert semfocus.load(run.path).spec.seq_len == 8
    assert _files(run) == before


def test_a_run_of_format_1_is_listed_with_its_metrics_and_judged(tmp_path: Path) -> None:
    run = _finished(tmp_path)
    before = _files(run)
    (row,) = _printed("runs", str(run.path.parent))
    assert (row["id"], row["state"], row["task"], row["mechanism"]) == (RUN_1, "done", "even_pairs", "topk:3")
    assert row["heldout_accuracy"] == run.metrics()[-1]["heldout_accuracy"]
    verdicts = _printed("verdicts", str(run.path.parent))
    assert (verdicts["runs"], verdicts["unfinished"], verdicts["faults"]) == (1, [], [])
    assert _files(run) == before


def test_runs_of_format_1_and_of_today_are_compared_with_each_other(tmp_path: Path) -> None:
    run = _finished(tmp_path)
    seeds = [1, 2]
    trained([CONFIG.model_copy(update={"seed": 2})], run.path.parent)
    trained([tiny(seed, "full", stop_accuracy=0.99) for seed in seeds], run.path.parent)
    groups = Results.load(run.path.parent).groups
    assert [sorted(group.mechanisms) for group in groups] == [["full", "topk:3"]]
    assert groups[0].comparison.seeds == 2


def test_an_interrupted_run_of_format_1_is_resumed_under_its_id_to_the_bit(tmp_path: Path) -> None:
    run = _interrupted(tmp_path)
    before = _files(run)
    (resumed,) = trained([CONFIG], run.path.parent)
    assert resumed.path == run.path
    assert_same_bits([resumed], trained([CONFIG], tmp_path / "undisturbed"))
    after = _files(run)
    for name in ("config.json", "checkpoints/10/manifest.json", "checkpoints/10/state.safetensors"):
        assert after[name] == before[name], f"{name} was rewritten"
    assert after["metrics.jsonl"].startswith(before["metrics.jsonl"])
