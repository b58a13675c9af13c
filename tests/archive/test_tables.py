"""Published tables: the same results as from the store, and nothing cut, edited or mixed goes unnoticed."""

from __future__ import annotations

import csv
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import semfocus
from semfocus.analysis.gaps import gaps
from semfocus.analysis.results import Results
from semfocus.archive.manifest import PackedFile
from semfocus.archive.tables import EVALUATIONS, MANIFEST, MEASUREMENTS, RUNS, TABLES, publish, read_published
from semfocus.cli import app
from semfocus.errors import CorruptData, OtherFormat, UsageError
from semfocus.store import RunDirectory, RunStore, write_measurement
from tests.archive.test_round_trip import files_of, stopped
from tests.training.helpers import tiny, trained


def published(tmp_path: Path) -> tuple[list[RunDirectory], Path]:
    runs = trained([tiny(seed, mechanism) for seed in (1, 2) for mechanism in ("full", "topk:3")], tmp_path / "runs")
    publish(RunStore(tmp_path / "runs"), tmp_path / "paper")
    return runs, tmp_path / "paper"


def test_results_of_the_tables_equal_those_of_the_store_to_the_bit(tmp_path: Path) -> None:
    runs = trained([tiny(seed) for seed in (1, 2)], tmp_path / "runs")
    with runs[0].lock() as writer:
        last = writer.metrics()[-1]
        writer.append_metrics({**last, "step": 99, "train_loss": float("nan"), "heldout_loss": float("-inf")})
        facts = {name: value for name, value in writer.status().items() if name != "state"}
        writer.write_status("done", **facts | {"step": 99})
    write_measurement(runs[0], "dispersion", {"k": 5})
    publish(RunStore(tmp_path / "runs"), tmp_path / "paper")
    results = read_published(tmp_path / "paper", RunStore(tmp_path / "again"))
    expected = Results.load(tmp_path / "runs")
    assert [record.id for record in results.records] == [record.id for record in expected.records]
    for run in runs:
        assert files_of(RunDirectory(tmp_path / "again" / run.id)) == files_of(run, "checkpoints")
    assert [v.to_dict() for v in results.verdicts] == [v.to_dict() for v in expected.verdicts]
    read_published(tmp_path / "paper", RunStore(tmp_path / "again"))  # the runs that are there are found to be equal


def with_last_row(run: RunDirectory, change: Callable[[dict[str, Any]], dict[str, Any]], **facts: Any) -> None:
    """One more evaluation, of other fields than those before it, and a last status that knows of it."""
    with run.lock() as writer:
        writer.append_metrics(change({**writer.metrics()[-1], "step": 99}))
        before = {name: value for name, value in (writer.status() or {}).items() if name != "state"}
        writer.write_status("done", **before | {"step": 99, **facts})


def assert_published_to_the_bit(runs: list[RunDirectory], tmp_path: Path) -> None:
    assert publish(RunStore(tmp_path / "runs"), tmp_path / "paper").left_out == {}
    read_published(tmp_path / "paper", RunStore(tmp_path / "again"))
    for run in runs:
        assert files_of(RunDirectory(tmp_path / "again" / run.id)) == files_of(run, "checkpoints")


def test_runs_with_fields_of_their_own_come_back_with_each_field_in_its_place(tmp_path: Path) -> None:
    runs = trained([tiny(seed) for seed in (1, 2, 3)], tmp_path / "runs")
    with_last_row(runs[0], lambda row: {"epoch": 3, "bits": 1.5, **row})
    with_last_row(runs[1], lambda row: {"epoch": 3, "step": 99, "entropy": 0.5, **row, "last": 1})
    with_last_row(runs[2], lambda row: {"first": 0, "epoch": 3, "bits": 1.0, "step": 99, "entropy": 0.5, **row})
    assert_published_to_the_bit(runs, tmp_path)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_run_whose_fields_stand_in_a_contrary_order_is_left_out_by_name(tmp_path: Path, odd: int) -> None:
    runs = sorted(trained([tiny(seed) for seed in (1, 2, 3)], tmp_path / "runs"), key=lambda run: run.id)
    with_last_row(runs[odd], lambda row: dict(reversed(row.items())))
    written = publish(RunStore(tmp_path / "runs"), tmp_path / "paper")
    assert "another order" in written.left_out[runs[odd].id]
    assert len(read_published(tmp_path / "paper", RunStore(tmp_path / "again")).records) == 2


def test_long_texts_and_line_ends_of_other_systems_come_back(tmp_path: Path) -> None:
    runs = trained([tiny(1)], tmp_path / "runs")
    odd = "a\r\nb\rc"
    with_last_row(runs[0], lambda row: {**row, "note": "x" * 200_000, odd: odd}, device_name=odd, log="y" * 200_000)
    assert_published_to_the_bit(runs, tmp_path)


def test_no_cell_of_the_tables_is_a_formula(tmp_path: Path) -> None:
    runs = trained([tiny(seed) for seed in (1, 2)], tmp_path / "runs")
    with_last_row(runs[0], lambda row: row, device_name="=1+1")
    with_last_row(runs[1], lambda row: {**row, "=2+2": 1.0})
    written = publish(RunStore(tmp_path / "runs"), tmp_path / "paper")
    assert written.runs == [runs[0].id]
    assert "'=2+2', which a spreadsheet would take for a formula" in written.left_out[runs[1].id]
    for name in (RUNS, EVALUATIONS):
        rows = csv.reader(io.StringIO(lzma.decompress((tmp_path / "paper" / name).read_bytes()).decode(), newline=""))
        assert not [cell for row in rows for cell in row if cell.startswith("=")]
    read_published(tmp_path / "paper", RunStore(tmp_path / "again"))
    assert files_of(RunDirectory(tmp_path / "again" / runs[0].id)) == files_of(runs[0], "checkpoints")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_was_cut_or_edited_is_refused(tmp_path: Path, name: str) -> None:
    folder = published(tmp_path)[1]
    text = lzma.decompress((folder / name).read_bytes())
    for changed in (lzma.compress(text + b"\n"), (folder / name).read_bytes()[:-8]):
        (folder / name).write_bytes(changed)
        with pytest.raises(CorruptData, match=f"{name}.*cut or edited"):
            read_published(folder, RunStore(tmp_path / "again"))
    assert RunStore(tmp_path / "again").entries() == []


def test_another_format_version_is_named(tmp_path: Path) -> None:
    folder = published(tmp_path)[1]
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(OtherFormat, match="format 2"):
        read_published(folder, RunStore(tmp_path / "again"))


def replaced(folder: Path, name: str, text: bytes) -> None:
    """Write a table anew, with a manifest that agrees."""
    (folder / name).write_bytes(lzma.compress(text))
    manifest = json.loads((folder / MANIFEST).read_text())
    file = PackedFile.of((folder / name).read_bytes())
    manifest["tables"][name] = {"bytes": file.bytes, "sha256": file.sha256}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_run_that_is_there_twice_is_named(tmp_path: Path) -> None:
    folder = published(tmp_path)[1]
    text = lzma.decompress((folder / RUNS).read_bytes())
    heading, rows = text.split(b"\n", 1)
    replaced(folder, RUNS, heading + b"\n" + rows + rows)
    with pytest.raises(CorruptData, match="twice"):
        read_published(folder, RunStore(tmp_path / "again"))


def test_rows_of_a_run_that_is_not_listed_are_refused(tmp_path: Path) -> None:
    folder = published(tmp_path)[1]
    text = lzma.decompress((folder / EVALUATIONS).read_bytes())
    replaced(folder, EVALUATIONS, text + text.splitlines()[-1].replace(text.splitlines()[-1][:16], b"f" * 16) + b"\n")
    with pytest.raises(CorruptData, match="does not list"):
        read_published(folder, RunStore(tmp_path / "again"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (RUNS, b"run,state\nabc,done\n"),
        (RUNS, b"id\nabc\n"),
        (EVALUATIONS, b""),
        (MEASUREMENTS, b"[1]\n"),
        (RUNS, b"run,state\rx,\n"),
        (MEASUREMENTS, b'{"run": "abc", "file": "x", "base64": "?"}\n'),
    ],
)
def test_a_table_with_true_sums_and_other_contents_is_refused_and_not_a_crash(
    tmp_path: Path, name: str, text: bytes
) -> None:
    folder = published(tmp_path)[1]
    replaced(folder, name, text)
    with pytest.raises(CorruptData):
        read_published(folder, RunStore(tmp_path / "again"))
    assert RunStore(tmp_path / "again").entries() == []


def test_unfinished_runs_are_left_out_by_name(tmp_path: Path) -> None:
    store = stopped(tmp_path / "runs")
    with pytest.raises(UsageError, match="nothing to publish"):
        publish(store, tmp_path / "paper")
    (done,) = trained([tiny(9)], store.root)
    written = publish(store, tmp_path / "paper")
    assert written.runs == [done.id]
    assert len(written.left_out) == 2


def test_a_missing_seed_is_named(tmp_path: Path) -> None:
    trained([tiny(1, "full"), tiny(2, "full"), tiny(1, "topk:3")], tmp_path / "runs")
    assert gaps(Results.load(tmp_path / "runs")) == ["even_pairs: topk:3 has no ended run of seed 2"]


def test_runs_of_several_precisions_are_named(tmp_path: Path) -> None:
    trained([tiny(1), tiny(1, "topk:3").model_copy(update={"precision": "tf32"})], tmp_path / "runs")
    assert gaps(Results.load(tmp_path / "runs")) == [
        "even_pairs: runs of several precisions are compared apart: fp32 has full; tf32 has topk:3"
    ]


def test_a_run_without_checkpoints_can_be_listed_and_judged_and_says_why_it_has_no_model(tmp_path: Path) -> None:
    runs, folder = published(tmp_path)
    read_published(folder, RunStore(tmp_path / "again"))
    for command in (["runs"], ["verdicts"], ["report", "--out", str(tmp_path / "page.html")]):
        result = CliRunner().invoke(app, [command[0], str(tmp_path / "again"), *command[1:]])
        assert result.exit_code == 0, result.output
    with pytest.raises(UsageError, match="its checkpoints are not here"):
        semfocus.load(tmp_path / "again" / runs[0].id)
    again = trained([tiny(1)], tmp_path / "again")  # it has ended: nothing is trained
    assert again[0].checkpoint_steps() == []


def test_the_commands_take_a_study_from_one_store_to_verdicts_figures_and_page(tmp_path: Path) -> None:
    def call(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    size = ("--scale", "smoke", "--seeds", 1)
    options = ("--tasks", "even_pairs", "--device", "cpu", "--threads", 1, "--jobs", 1)
    call("run", "figure_1", *size, *options, "--out", tmp_path / "runs")
    assert "packed 6 runs" in call(
        "pack", tmp_path / "runs", "--study", "figure_1", *size, "--out", tmp_path / "a.tar.xz"
    )
    assert "6 added" in call("unpack", tmp_path / "a.tar.xz", "--out", tmp_path / "home")
    assert "published 6 runs" in call("publish", tmp_path / "home", "--out", tmp_path / "paper", "--trained-at", "abc")
    assert json.loads((tmp_path / "paper" / MANIFEST).read_text())["trained_at"] == ["abc"]
    text = call("rebuild", tmp_path / "paper", "--out", tmp_path / "build", "--scale", "smoke")
    assert "figure_1: 6 of 180 runs" in text
    assert "controls" not in text, "half a comparison is no figure"
    assert "table_6" not in text, "its runs are there, and nothing that it draws was measured"
    assert "## even_pairs" not in (tmp_path / "paper" / "levels.md").read_text(), "one seed is no comparison"
    assert (tmp_path / "paper" / "figures" / "figure_1.svg").exists()
    assert "| C1 | not decided, 1 of 8 parts run" in (tmp_path / "paper" / "verdicts.md").read_text()
    assert (tmp_path / "build" / "report.html").exists()
