"""The list of runs: in which settings they differ, some of them, in any order."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from semfocus.analysis.listing import chosen, in_order
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import UsageError
from tests.report.helpers import store


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that were alike to the letter though half of them were of a deeper model."""
    made = tmp_path_factory.mktemp("runs")
    for blocks in (2, 6):
        store(made, ("parity",), ("full", "topk:5"), 1, training__epochs=4, model__blocks=blocks)
    store(made, ("even_pairs",), ("topk:5",), 1, training__epochs=4, state="interrupted")
    (made / "notes.txt").write_text("mine")
    return made


def listed(root: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["runs", str(root), *options])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_list_says_in_which_settings_runs_of_one_task_differ(root: Path) -> None:
    rows = Results.load(root).overview()
    assert sorted(row["settings"] for row in rows if row.get("task") == "parity") == ["blocks 2"] * 2 + ["blocks 6"] * 2
    assert [row["settings"] for row in rows if row.get("task") == "even_pairs"] == [""]
    out = listed(root)
    assert out.count("blocks 6") == 2
    assert "notes.txt: unrecognised, not a run directory" in out
    assert "entries" not in out


def test_runs_are_chosen_by_task_mechanism_state_and_setting(root: Path) -> None:
    out = listed(root, "--task", "parity", "--attention", "topk:5", "--where", "blocks 6")
    assert out.count("parity") == 1
    assert "1 of 6 entries" in out
    assert "interrupted" in listed(root, "--state", "interrupted,unrecognised")
    assert "notes.txt" in listed(root, "--state", "interrupted,unrecognised")
    rows = Results.load(root).overview()
    assert len(chosen(rows, mechanism=["full"])) == 2
    with pytest.raises(UsageError, match=r"unknown task in this store 'partiy'; did you mean 'parity'\?"):
        chosen(rows, task=["partiy"])
    with pytest.raises(UsageError, match=r"'block 6'; did you mean 'blocks 6'\?"):
        listed(root, "--where", "block 6")


def test_runs_are_sorted_by_a_column_either_way_and_what_has_no_value_is_last(root: Path) -> None:
    rows = Results.load(root).overview()
    up, down = ([row.get("heldout_accuracy") for row in in_order(rows, by)] for by in ("heldout", "-heldout"))
    known = [value for value in up if value is not None]
    assert known == sorted(known)
    assert down[: len(known)] == known[::-1]
    assert up[-1] is None
    assert down[-1] is None
    assert [row.get("mechanism") for row in in_order(rows, "mechanism")][:2] == ["full", "full"]
    with pytest.raises(UsageError, match="unknown column to sort by 'helout'; did you mean 'heldout'"):
        listed(root, "--sort", "helout")
    assert listed(root, "--sort=-heldout").splitlines()[1].split()[0] == in_order(rows, "-heldout")[0]["id"]


def test_rows_that_differ_in_a_tuned_learning_rate_say_so(tmp_path: Path) -> None:
    """Each mechanism had a rate of its own, and the list showed none."""
    for mechanism, lr in (("full", 0.1), ("topk:5", 0.3)):
        store(
            tmp_path,
            ("parity",),
            (mechanism,),
            1,
            training__epochs=4,
            training__lr=lr,
            training__tuned="lr of 0.1, 0.3",
        )
    found = {row["mechanism"]: row["settings"] for row in Results.load(tmp_path).overview()}
    assert found == {"full": "learning rate 0.1", "topk:5": "learning rate 0.3"}
    assert [row["mechanism"] for row in chosen(Results.load(tmp_path).overview(), settings=["learning rate 0.3"])] == [
        "topk:5"
    ]
