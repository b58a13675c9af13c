"""Exports and the `semfocus tasks` commands, run as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semfocus.errors import CorruptData, DataError, UsageError
from semfocus.tasks.export import Recipe, export, export_again
from tests.command import semfocus

RECIPE = Recipe(task="solve_equation", options={"length": 12}, n=40, seed=3)


@pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".parquet"])
def test_an_export_is_made_again_from_its_manifest_in_every_format(tmp_path: Path, suffix: str) -> None:
    first = export(RECIPE, tmp_path / f"rows{suffix}")
    export_again(first, tmp_path / "again.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert lines[0].keys() == {"text", "label"}
    if suffix == ".parquet":
        import duckdb

        stored = duckdb.read_parquet(str(tmp_path / "rows.parquet")).fetchall()
        assert stored == [(line["text"], line["label"]) for line in lines]
    if suffix == ".tsv":
        rows = (tmp_path / "rows.tsv").read_text().splitlines()
        assert rows == ["text\tlabel", *(f"{line['text']}\t{line['label']}" for line in lines)]


def test_a_manifest_whose_rows_cannot_be_made_again_is_reported(tmp_path: Path) -> None:
    manifest = export(RECIPE, tmp_path / "rows.jsonl")
    stored = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(stored | {"rows_sha256": "0" * 64}))
    with pytest.raises(CorruptData, match="not those of"):
        export_again(manifest, tmp_path / "again.jsonl")


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(DataError, match="not the manifest"):
        export_again(tmp_path / "x.json", tmp_path / "out.jsonl")
    with pytest.raises(DataError, match="is not there"):
        export_again(tmp_path / "y.json", tmp_path / "out.jsonl")


def test_an_unknown_format_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.jsonl, \.tsv, \.parquet"):
        export(RECIPE, tmp_path / "rows.xlsx")


def test_the_list_has_a_line_for_every_task() -> None:
    shown = semfocus("tasks").stdout
    for name in ("parity", "listops", "stack_manipulation"):
        assert name in shown


def test_show_prints_rows_with_labels_and_baselines() -> None:
    shown = semfocus("tasks", "show", "stack_manipulation", "--n", "3", "--seed", "1").stdout
    assert shown.count("  ->  ") == 3
    assert "majority 50.0%, shortcut 83.4%" in shown
    assert semfocus("tasks", "show", "parity", "--option", "length=7").stdout.count("width 7")


def test_the_command_line_exports_and_repeats(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    done = semfocus("tasks", "export", "parity", "--n", "9", "--out", str(first))
    assert done.returncode == 0, done.stderr
    done = semfocus("tasks", "export", "--manifest", f"{first}.manifest.json", "--out", str(second))
    assert done.returncode == 0, done.stderr
    assert first.read_text() == second.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks", "show", "partiy"], "did you mean 'parity'"),
        (["tasks", "show", "parity", "--n", "-1"], "n = -1 must be at least 0"),
        (["tasks", "show", "parity", "--option", "length"], "name=value"),
        (["tasks", "show", "parity", "--option", "lenght=3"], "did you mean 'length'"),
        (["tasks", "export", "--out", "x.jsonl"], "either a task's name or --manifest"),
        (["tasks", "show", "parity", "--split", "val"], "heldout"),
    ],
)
def test_a_wrong_command_exits_2_and_says_what_to_do(arguments: list[str], message: str) -> None:
    done = semfocus(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
