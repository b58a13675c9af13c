"""The tidy table: what was put in comes out, from both formats, whatever the names and texts."""

from __future__ import annotations

import builtins
import csv
import math
import re
import signal
from pathlib import Path

import pytest

from semfocus.analysis.export import export_records, flatten
from semfocus.analysis.records import Record
from semfocus.errors import MissingExtra, StorageError, UsageError
from tests.analysis.made import run

duckdb = pytest.importorskip("duckdb")
GUIDE = Path(__file__).parents[2] / "docs" / "export.md"


def rows(path: Path, query: str = "SELECT * FROM {}") -> list[dict]:
    with duckdb.connect() as connection:
        cursor = connection.execute(query.format(f"'{path}'"))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def small(name: str = "a" * 8, config: dict | None = None, **row) -> Record:
    metrics = [{"epoch": e, "step": 10 * e, "train_loss": 1 / e, "train_accuracy": e / 4} | row for e in (1, 2)]
    base = {
        "task": {"name": "t", "options": {}},
        "attention": {"mechanism": "full"},
        "training": {"epochs": 4},
        "seed": 1,
    }
    return Record(name, base | (config or {}), metrics, "done", 0.0)


@pytest.mark.parametrize("to", ["parquet", "csv"])
def test_there_is_one_row_a_run_and_epoch_with_the_configuration_beside(tmp_path: Path, to) -> None:
    records = [run("parity", mechanism, seed) for mechanism in ("full", "topk:5") for seed in (1, 2)]
    written = export_records(records, tmp_path / f"out.{to}", to)
    exported = rows(written.path)
    assert written.runs == 4
    assert written.rows == len(exported) == sum(len(record.metrics) for record in records)
    by_run = {(row["run"], row["epoch"]): row for row in exported}
    assert len(by_run) == len(exported)
    for record in records:
        for row in record.metrics:
            other = by_run[record.id, row["epoch"]]
            assert {name: other[name] for name in row} == row
            assert other["attention_mechanism"] == record.mechanism
            assert other["seed"] == record.seed
            assert other["training_lr"] == 0.1
            assert other["model_padding_visible"] is True
            assert other["data_options_length"] == 40


def test_parquet_keeps_the_kinds_of_numbers(tmp_path: Path) -> None:
    export_records([run("parity", "full", 1)], tmp_path / "out.parquet", "parquet")
    kinds = {
        row["column_name"]: row["column_type"] for row in rows(tmp_path / "out.parquet", "DESCRIBE SELECT * FROM {}")
    }
    expected = {"run": "VARCHAR", "seed": "BIGINT", "training_lr": "DOUBLE", "model_padding_visible": "BOOLEAN"}
    assert {name: kinds[name] for name in expected} == expected
    assert kinds["epoch"] == "DOUBLE"
    assert kinds["step"] == "BIGINT"


def test_the_queries_of_the_guide_give_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [run("parity", "full", seed, at=20 + seed, heldout=0.5) for seed in range(3)]
    records += [run("parity", "topk:5", seed, at=None if seed else 9, heldout=0.75) for seed in range(3)]
    export_records(records, tmp_path / "runs.parquet", "parquet")
    monkeypatch.chdir(tmp_path)
    first, second, third = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    with duckdb.connect() as connection:
        epochs = connection.execute(first).fetchall()
        counts = connection.execute(second).fetchall()
        gains = connection.execute(third).fetchall()
    assert epochs == [("parity", "full", seed, 20 + seed) for seed in range(3)] + [("parity", "topk:5", 0, 9)]
    assert counts == [("parity", "full", 3, 3, 21), ("parity", "topk:5", 3, 1, 9)]
    assert gains == [("parity", seed, 0.25) for seed in range(3)]


def test_rows_do_not_depend_on_the_order_of_runs(tmp_path: Path) -> None:
    records = [run("parity", "full", seed) for seed in range(4)]
    for name, given in (("a", records), ("b", records[::-1])):
        export_records(given, tmp_path / f"{name}.csv", "csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_formula_is_neutralised_in_csv_and_kept_as_it_is_in_parquet(tmp_path: Path) -> None:
    labels = ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "plain", 'a,"b"\nc']
    records = [small(f"{i}" * 8, {"label": label}) for i, label in enumerate(labels)]
    for to in ("csv", "parquet"):
        export_records(records, tmp_path / f"out.{to}", to)
    with (tmp_path / "out.csv").open(newline="") as file:
        exported = {row["run"]: row["label"] for row in csv.DictReader(file)}
    assert [exported[f"{i}" * 8] for i in range(7)] == [*(f"'{label}" for label in labels[:5]), *labels[5:]]
    kept = {row["run"]: row["label"] for row in rows(tmp_path / "out.parquet")}
    assert [kept[f"{i}" * 8] for i in range(7)] == labels


def test_a_formula_is_neutralised_in_a_heading_and_where_a_line_of_a_cell_begins(tmp_path: Path) -> None:
    names, label = ["=1+1", "+x"], "a\n=1+1\r\n @x"
    records = [
        small(config={"label": label, **dict.fromkeys(names, 1)}),
        small("b" * 8, **{"=cmd|m": 2.5, "note": "=x"}),
    ]
    export_records(records, tmp_path / "out.csv", "csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        heading, *lines = csv.reader(file)
    cells = [*heading, *(cell for line in lines for cell in line)]
    assert {"'=1+1", "'+x", "'=cmd|m", "note", "'=x"} <= {*cells}
    assert "a\n'=1+1\r\n' @x" in cells
    assert not [cell for cell in cells if re.search("(^|[\r\n])[ ]*[=+@]", cell)]


def test_names_that_differ_in_case_only_or_are_empty_stop_nothing(tmp_path: Path) -> None:
    records = [small(config={"rate": 1, "RATE": 2, "": 3}), small("b" * 8, {"Rate": 4})]
    for to in ("csv", "parquet"):
        export_records(records, tmp_path / f"out.{to}", to)
        names = [*rows(tmp_path / f"out.{to}")[0]]
        assert {"rate", "RATE_2", "unnamed", "Rate_3"} <= {*names}


def test_a_text_in_the_metrics_of_one_run_leaves_those_of_the_others(tmp_path: Path) -> None:
    export_records([small(note="fine"), small("b" * 8, note=2.5), small("c" * 8)], tmp_path / "o.parquet", "parquet")
    assert {row["run"][0]: row["note"] for row in rows(tmp_path / "o.parquet")} == {"a": "fine", "b": "2.5", "c": None}


def test_a_disk_that_fills_while_the_database_writes_is_a_storage_error(tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the write ends the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot write"):
            export_records([small()], tmp_path / "o.parquet", "parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_names_with_quotes_and_fields_that_collide_lose_nothing(tmp_path: Path) -> None:
    config = {"a": {"b_c": 1}, "a_b": {"c": 2}, 'q"; DROP': 3, "step": "mine", "list": [1, 2], "none": None}
    export_records([small(config=config)], tmp_path / "it's.parquet", "parquet")
    with duckdb.connect() as connection:
        table = connection.read_parquet(str(tmp_path / "it's.parquet"))
        exported = dict(zip(table.columns, table.fetchall()[0], strict=True))
    assert (exported["a_b_c"], exported["a_b_c_"], exported['q"; DROP']) == (1, 2, 3)
    assert (exported["step_"], exported["step"], exported["list"], exported["none"]) == ("mine", 10, "[1, 2]", None)


def test_fields_of_different_kinds_become_texts_and_missing_ones_nulls(tmp_path: Path) -> None:
    export_records(
        [small("a" * 8, {"x": 1}), small("b" * 8, {"x": "one"}), small("c" * 8)], tmp_path / "o.parquet", "parquet"
    )
    exported = {row["run"][0]: row["x"] for row in rows(tmp_path / "o.parquet")}
    assert exported == {"a": "1", "b": "one", "c": None}


def test_a_metric_that_is_nan_or_that_a_run_does_not_have_is_null(tmp_path: Path) -> None:
    records = [small("a" * 8, train_loss=math.nan), small("b" * 8, extra=2.5)]
    export_records(records, tmp_path / "o.parquet", "parquet")
    exported = {(row["run"][0], row["epoch"]): row for row in rows(tmp_path / "o.parquet")}
    assert exported["a", 1]["train_loss"] is None
    assert exported["a", 1]["extra"] is None
    assert exported["b", 1]["extra"] == 2.5


def test_runs_without_rows_are_named_and_no_runs_at_all_are_an_error(tmp_path: Path) -> None:
    empty = Record("c" * 8, small().config, [], "empty", 0.0)
    written = export_records([small(), empty], tmp_path / "o.csv", "csv")
    assert (written.runs, written.without_rows) == (1, ("c" * 8,))
    with pytest.raises(UsageError, match="no run with metrics"):
        export_records([empty], tmp_path / "p.csv", "csv")
    with pytest.raises(UsageError, match="not one of parquet, csv"):
        export_records([small()], tmp_path / "p.xls", "xls")  # type: ignore[arg-type]


def test_a_place_that_cannot_be_written_is_a_named_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        export_records([small()], tmp_path / "file" / "o.csv", "csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_without_duckdb_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *more, **others):
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"semfocus\[analysis\]"):
        export_records([small()], tmp_path / "o.csv", "csv")


def test_nested_fields_are_named_by_their_place() -> None:
    assert dict(flatten({"a": {"b": {"c": 1}}, "d": [1]})) == {"a_b_c": 1, "d": "[1]"}
