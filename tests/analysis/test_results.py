"""A store is read once, and the same results serve comparisons, verdicts, pages and listings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from semfocus.analysis.comparability import comparability_key, settings_of
from semfocus.analysis.groups import group_records
from semfocus.analysis.records import Fault, Record
from semfocus.analysis.results import Results
from semfocus.analysis.verdicts import judge
from semfocus.analysis.verdicts.settings import settings_from
from semfocus.store import RunStore, write_measurement
from semfocus.tasks import register_task
from semfocus.tasks.parity import Parity
from tests.analysis.made import both, run
from tests.analysis.test_verdicts_cli import stored
from tests.measurements import payloads


@pytest.fixture
def root(tmp_path: Path) -> Path:
    stored(tmp_path, [run(task, "full", seed) for task in ("parity", "even_pairs") for seed in (1, 2)])
    return tmp_path


def test_a_store_is_read_once_and_may_be_gone_afterwards(root: Path) -> None:
    write_measurement(RunStore(root).open(run("parity", "full", 1).id), "dispersion", payloads.dispersion())
    results = Results.load(root)
    measurements = results.measurements
    shutil.rmtree(root)
    assert [len(group.records) for group in results.groups] == [2, 2]
    assert [group.comparison for group in results.groups] == results.comparisons
    assert results.measurements is measurements
    assert len(results.verdicts) == 22
    assert results.verdicts is results.verdicts
    assert results.faults == []
    assert len(results.overview()) == 4


def test_some_runs_can_be_asked_for_and_keep_the_order_of_their_ids(root: Path) -> None:
    wanted = [run("parity", "full", 2).id, run("even_pairs", "full", 1).id, "0" * 16]
    results = Results.load(root, wanted)
    assert [record.id for record in results.records] == wanted[:2]
    assert results.unreadable == [Fault("0" * 16, "unrecognised", "not a run directory")]
    assert [group.task for group in results.groups] == ["even_pairs", "parity"]


def test_an_overview_has_a_row_for_everything_in_the_store_by_name(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    rows = Results.load(root).overview()
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert len(rows) == 5
    assert {"id": "notes.txt", "state": "unrecognised", "why": "not a run directory"} in rows
    (row,) = [row for row in rows if row["id"] == run("parity", "full", 1).id]
    assert (row["task"], row["epoch"], row["epochs"], row["state"]) == ("parity", 1000, 1000, "done")


def test_the_states_and_the_time_of_the_last_change_are_told(root: Path) -> None:
    stored(root, [run("parity", "topk:5", 1, state="interrupted")])
    results = Results.load(root)
    assert results.states == {"done": 4, "interrupted": 1}
    assert results.mechanisms == ["full", "topk:5"]
    assert results.as_of is not None


def test_seed_label_mechanism_and_the_place_of_a_file_are_not_compared() -> None:
    one, other = run("parity", "full", 1).config, run("parity", "topk:5", 2).config
    other["label"], other["task"]["name"] = "second", "elsewhere/copy.csv"
    assert comparability_key(one) == comparability_key(other)
    assert len(group_records([Record(str(i), c, [], "done", 0.0) for i, c in enumerate((one, other))]).groups) == 1


def test_a_field_that_an_older_run_does_not_record_has_its_default() -> None:
    config = run("parity", "full", 1).config
    older = {name: value for name, value in config.items() if name != "precision"}
    assert comparability_key(older) == comparability_key(config | {"objective": "classification"})
    assert comparability_key(older) != comparability_key(config | {"objective": "next_token"})


@pytest.mark.parametrize(
    "changes",
    [
        {"task.train_rows": 2000},
        {"task.options": {"length": 20}},
        {"model.blocks": 3},
        {"training.epochs": 90},
        {"precision": "tf32"},
    ],
)
def test_any_other_setting_keeps_runs_apart(changes: dict[str, Any]) -> None:
    assert comparability_key(run("parity", "full", 1).config) != comparability_key(
        run("parity", "full", 1, changes=changes).config
    )


def test_other_content_of_the_data_keeps_runs_apart_and_options_are_those_of_the_data() -> None:
    config = run("parity", "full", 1).config
    changed = config | {"data": config["data"] | {"sha256": "1" * 64}}
    assert comparability_key(config) != comparability_key(changed)
    assert settings_of(config)["task.options.length"] == config["data"]["options"]["length"]


class Ninth(Parity):
    """A task of a user's own."""

    name = "ninth"


def test_a_task_that_the_paper_does_not_have_changes_no_verdict() -> None:
    register_task(Ninth)
    runs = both(60, 20, ("even_pairs", "parity"))
    ninth = both(20, 60, ["parity"])
    for record in ninth:
        record.config["task"]["name"] = record.config["data"]["task"] = Ninth.name
    assert judge(runs + ninth) == judge(runs)
    assert {setting.task for setting in settings_from(ninth)} == {"ninth"}
