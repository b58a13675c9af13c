"""`semfocus verdicts` and `semfocus export`, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semfocus.analysis.records import Record
from semfocus.cli import app
from semfocus.errors import UsageError
from semfocus.store import RunStore
from tests.analysis.made import both


def stored(root: Path, records: list[Record]) -> None:
    configs = {record.id: record.config for record in records}
    runs = RunStore(root).create_or_open_all(configs)
    for run, record in zip(runs, records, strict=True):
        with run.lock() as writer:
            for row in record.metrics:
                writer.append_metrics(row)
            writer.write_status(record.state)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    stored(root, both(60, 20, ["even_pairs"], seeds=9) + both(60, 20, ["parity"], seeds=1, state="interrupted"))
    (root / "notes.txt").write_text("mine")
    return root


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_one_line_a_claim_each_starting_with_its_id(store: Path) -> None:
    called = call("verdicts", store)
    assert called.exit_code == 0
    lines = called.stdout.splitlines()
    claims, questions = lines[: lines.index("")], lines[lines.index("") :]
    assert [line.split()[0] for line in claims] == [f"C{i}" for i in range(1, 15)]
    assert questions[1].startswith("open questions, which the paper does not claim")
    assert [line.split()[0] for line in questions[2:]] == [f"C{i}" for i in range(15, 23)]
    assert lines[0].startswith("C1   not decided, 1 of 8 parts run: Top-k attention")
    assert "18 runs, even_pairs: 2.9" in lines[0]
    assert "notes.txt: unrecognised" in called.stderr
    assert called.stderr.count("interrupted, left out") == 2


def test_at_length_it_gives_rule_effect_interval_p_runs_and_reason(store: Path) -> None:
    text = call("verdicts", store, "--long").stdout
    first = text.split("\nC2 ")[0]
    for name in ("rule", "effect", "interval", "p  ", "runs", "because"):
        assert f"     {name}" in first
    assert "exact paired log-rank test" in first
    assert max(len(line) for line in text.splitlines() if line.startswith("     ")) <= 100


def test_for_machines_it_is_json_with_faults_and_unfinished_runs(store: Path) -> None:
    document = json.loads(call("verdicts", store, "--json").stdout)
    assert [verdict["claim"] for verdict in document["verdicts"]] == [f"C{i}" for i in range(1, 23)]
    assert [verdict["source"] for verdict in document["verdicts"]] == ["paper"] * 14 + ["open"] * 8
    assert document["verdicts"][0]["outcome"] == "not decided"
    assert document["verdicts"][0]["judged"] == [1, 8]
    assert document["verdicts"][0]["seeds"] is None
    assert document["runs"] == 20
    assert len(document["unfinished"]) == 2
    assert document["faults"] == [{"name": "notes.txt", "what": "unrecognised: not a run directory"}]


def test_missing_data_are_an_answer_and_a_missing_store_is_an_error(tmp_path: Path) -> None:
    called = call("verdicts", tmp_path)
    assert called.exit_code == 0
    assert called.stdout.count("not decided, 0 of ") == 22
    assert isinstance(call("verdicts", tmp_path / "nothing").exception, UsageError)


def test_export_writes_the_file_and_says_how_much(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    out = tmp_path / "table.csv"
    called = call("export", store, "--to", "csv", "--out", out)
    assert called.exit_code == 0, called.output
    rows = out.read_text().splitlines()
    assert f"{len(rows) - 1} rows of 20 runs" in called.stdout
    assert "notes.txt: unrecognised" in called.stderr
    assert call("export", store, "--to", "xls", "--out", out).exit_code == 2
