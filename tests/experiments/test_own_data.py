"""Own data from the first call to the page: any form, in worker processes, after the session, and told of honestly."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import semfocus
from semfocus import Task
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import MissingExtra, UsageError
from semfocus.experiments.compare import asks_which_k, comparison_of
from semfocus.experiments.result import ComparisonResult
from semfocus.store import RunStore
from tests.command import semfocus as command
from tests.tasks.helpers import write_csv

TINY = ("model.blocks=1", "model.d_model=8", "model.d_mlp=8")
FAST: dict[str, Any] = {"attention": "full,topk:2", "seeds": 1, "epochs": 2, "threads": 1, "progress": False}
PAIRS = [(f"{'good fine' if i % 2 else 'bad poor'} w{i % 7} x{i}", "pos" if i % 2 else "neg") for i in range(120)]
RARE = [(f"{'spam' if i % 15 == 0 else 'fine'} w{i % 7} x{i}", "spam" if i % 15 == 0 else "ham") for i in range(240)]


def _semfocus(*arguments: str) -> Result:
    """The command line in this process: what it does is in files, and starting a process takes seconds."""
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """A comparison on an array task, in two processes."""
    task = Task.from_arrays([[i % 3, i % 5, i % 2] for i in range(90)], [i % 2 for i in range(90)], name="counts")
    out = tmp_path_factory.mktemp("own")
    return semfocus.compare(task, **FAST | {"progress": True}, jobs=2, overrides=TINY, out=out)


def test_an_array_task_is_compared_in_processes_and_rebuilt_after_the_session(result: ComparisonResult) -> None:
    assert result.task == "counts"
    assert [run.state for run in result.runs] == ["done", "done"]
    run = result.runs[0].run
    name = run.config()["task"]["name"]
    moved = run.path.parent.rename(run.path.parent.with_name("moved"))
    try:
        more = _semfocus(
            "compare", name, "--attention", "full,topk:2", "--seeds", "1", "--epochs", "3", "--threads", "1",
            *(f"--set={change}" for change in TINY), "--out", str(moved),
        )  # fmt: skip
        assert more.exit_code == 0, more.stderr
        assert "accuracy without learning: majority" in more.stdout
        assert "Data: " in more.stdout
    finally:
        moved.rename(run.path.parent)


def test_an_interrupted_run_on_data_in_memory_is_resumed_by_another_session(tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.step:
            raise KeyError

    choices = FAST | {"progress": stop, "attention": "full", "epochs": 3}
    with pytest.raises(KeyError):
        semfocus.compare(PAIRS, **choices, overrides=TINY, out=tmp_path, name="reviews")
    done = _semfocus("resume", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert ": done, " in done.stdout
    again = semfocus.compare(
        PAIRS, **FAST | {"attention": "full", "epochs": 3}, overrides=TINY, out=tmp_path, name="reviews"
    )
    assert [run.run.id for run in again.runs] == [entry.name for entry in RunStore(tmp_path).entries()]


def test_an_archive_says_which_data_it_does_not_hold(result: ComparisonResult, tmp_path: Path) -> None:
    """It said nothing, and its runs could not go on elsewhere."""
    root = result.runs[0].run.path.parent
    (data,) = (root / "data").rglob("*.safetensors")
    done = _semfocus("pack", str(root), "--out", str(tmp_path / "runs.tar.xz"))
    assert done.exit_code == 0, done.stderr
    assert f"{data} is not in the archive" in done.stderr
    assert "take it along" in done.stderr


def test_a_result_shows_itself(result: ComparisonResult, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = result.rows()
    assert [row["mechanism"] for row in rows] == ["full", "topk:2"]
    assert rows[0]["heldout_accuracy"] == result.arm("full").final_heldout.median
    html = result._repr_html_()
    assert html.count("<tr>") == 3
    for text in ("topk:2", "Data: ", "Accuracy without learning: majority", str(result.page)):
        assert text in html
    assert "<script" not in html
    assert "<th>time</th><th>times fewer epochs</th>" in html
    assert "1 seed, at most 2 epochs" in html
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # there rich displays what it prints, by itself
    monkeypatch.setattr("rich.jupyter.display", lambda *_: pytest.fail("shown beside the result"))
    shown = repr(result).splitlines()  # a console got the fields of every dataclass inside
    assert shown[0] == "counts: 1 seed, at most 2 epochs"
    assert shown[2].split()[:2] == ["mechanism", "epochs"]
    assert [line.split()[0] for line in shown[3:5]] == ["full", "topk:2"]
    assert set(result.sentences()) <= set(shown)
    assert shown[-1] == f"page: {result.page}"
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert len(result.plot("train_loss", "heldout_accuracy", "heldout_loss").axes) == 3
    with pytest.raises(UsageError, match="unknown metric 'heldout_acuracy'; did you mean 'heldout_accuracy'"):
        result.plot("heldout_acuracy")
    frame = pytest.importorskip("pandas", reason="pandas is not installed") and result.table()
    assert list(frame.index) == ["full", "topk:2"]
    assert frame.loc["full", "baseline"] == result.baseline
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"rows\(\) gives the same as plain values.*semfocus\[notebook\]"):
        result.table()


def test_names_in_html_are_escaped(tmp_path: Path) -> None:
    result = semfocus.compare([(text, f"<b>{label}") for text, label in PAIRS], **FAST, overrides=TINY, out=tmp_path)
    assert "<b>pos" not in result._repr_html_().replace("<p><b>", "")
    assert "&lt;b&gt;" in result._repr_html_()


def test_the_baseline_of_an_unbalanced_set_is_its_majority_everywhere(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "mail.csv", RARE)
    out = str(tmp_path / "runs")
    done = _semfocus(
        "compare", str(path), "--attention", "full,topk:2", "--seeds", "1", "--epochs", "2", "--threads", "1",
        "--quick", "--option", "max_length=9", *(f"--set={change}" for change in TINY), "--out", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "accuracy without learning: majority 9" in done.stdout
    assert "chance" not in done.stdout
    assert "held-out balanced accuracy" in done.stdout
    assert "of which 'ham' has 9" in done.stdout
    (group,) = Results.load(out).groups
    assert max(group.baselines.values()) > 0.9
    assert group.comparison.baseline == max(group.baselines.values())
    assert group.comparison.learned.column == "train_balanced_accuracy"
    page = (Path(out) / "report.html").read_text(encoding="utf-8")
    assert "of which &#39;ham&#39; has 9" in page
    assert "Without learning: majority 9" in page
    assert "chance 50" not in page
    assert '"chance"' not in page
    shown = _semfocus("show", group.records[0].id, "--out", out).stdout
    assert "of which 'ham' has 9" in shown


def test_facts_are_kept_with_the_run_and_no_part_of_its_identity(tmp_path: Path) -> None:
    long = [(f"{text} {'z ' * 300}" if i == 1 else text, label) for i, (text, label) in enumerate(PAIRS)]
    with pytest.warns(UserWarning, match="tokenise to nothing"):
        result = semfocus.compare([*long, ("", "pos")], **FAST, overrides=TINY, out=tmp_path, name="reviews")
    facts = result.runs[0].run.config()["facts"]
    assert facts == result.facts
    assert sum(facts["rows"].values()) == 120
    assert (facts["skipped"], facts["cut"], facts["num_classes"]) == (1, 1, 2)
    assert sum(map(sum, facts["classes"].values())) == 120
    assert 0 < facts["unknown_share"] < 1
    assert result.to_dict()["data"] == facts
    with pytest.warns(UserWarning, match="tokenise to nothing"):
        task = result.runs[0].config.task.build(tmp_path)
    assert "facts" not in result.runs[0].config.identity(task)
    told = result._repr_html_()
    assert "1 row without a token skipped; 1 row cut at 256 tokens; " in told


def test_own_tasks_have_defaults_and_quick_takes_their_options_and_fewer_rows(tmp_path: Path) -> None:
    many = [(f"{i % 2} {i}", i % 2) for i in range(4000)]
    quick = comparison_of(many, quick=True, options={"max_length": 2}, out=tmp_path).configs[0]
    assert (quick.task.train_rows, quick.task.heldout_rows) == (2000, 500)
    assert (quick.training.epochs, quick.model.blocks, quick.task.options["max_length"]) == (20, 3, 2)
    usual = comparison_of(many, out=tmp_path).configs[0]
    assert (usual.task.train_rows, usual.training.epochs, usual.model.blocks) == (None, 50, 4)
    assert comparison_of("parity", quick=True, options={"length": 9}, out=tmp_path).configs[0].task.options == {
        "length": 9
    }


def test_an_unbalanced_task_is_judged_by_balanced_accuracy_unless_told_otherwise(tmp_path: Path) -> None:
    assert comparison_of(RARE, out=tmp_path).configs[0].task.options == {"metrics": "balanced"}
    assert comparison_of(PAIRS, out=tmp_path).configs[0].task.options == {}
    told = comparison_of(RARE, options={"metrics": "accuracy"}, out=tmp_path)
    assert told.configs[0].task.options == {"metrics": "accuracy"}


def test_rows_that_are_skipped_are_told_of_once_and_plainly(tmp_path: Path) -> None:
    """The command line showed Python's warning with its place in the package, several times, and each worker again."""
    path = write_csv(tmp_path / "reviews.csv", [*PAIRS, ("", "pos")])
    done = command(
        "compare", str(path), "--attention", "full,topk:2", "--seeds", "2", "--epochs", "1", "--threads", "1",
        "--jobs", "2", *(f"--set={change}" for change in TINY), "--out", str(tmp_path / "runs"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tokenise to nothing") == 1
    assert re.search(
        r"^semfocus: warning: \S*reviews.csv: 1 of 121 rows tokenise to nothing", done.stderr, re.MULTILINE
    )
    assert "Warning" not in done.stderr


def test_auto_tries_a_ladder_of_k_and_says_what_it_thinks(tmp_path: Path) -> None:
    done = _semfocus(
        "compare", str(write_csv(tmp_path / "reviews.csv", PAIRS)), "--attention", "auto", "--seeds", "1",
        "--epochs", "1", "--early-stop", "1", "--threads", "1", "--json",
        *(f"--set={change}" for change in TINY), "--out", str(tmp_path / "runs"),
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert [arm["mechanism"] for arm in told["mechanisms"]] == ["full", "topk:2"]  # rows have 4 tokens
    assert len(told["mechanisms"][0]["final_test_accuracy"]) == 1
    assert told["recommendation"]["text"].startswith("Nothing to recommend: nothing reached 95%")


def test_attention_is_a_text_or_a_list(tmp_path: Path) -> None:
    texts = comparison_of("parity", attention="full, topk:5", out=tmp_path).mechanisms
    assert texts == comparison_of("parity", attention=["full", "topk:5"], out=tmp_path).mechanisms == ["full", "topk:5"]
    with pytest.raises(UsageError):
        comparison_of("parity", attention="", out=tmp_path)
    with pytest.raises(UsageError, match="auto,topk:3: auto chooses the mechanisms by itself; leave the others out"):
        comparison_of("parity", attention="auto,topk:3", out=tmp_path)
    ladder = comparison_of("parity", attention=["auto"], out=tmp_path).mechanisms
    assert ladder == comparison_of("parity", attention="auto", out=tmp_path).mechanisms
    assert asks_which_k(["auto"])
    assert not asks_which_k(["full"])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--early-stop", "0"), "early_stop = 0 must be at least 1"),
        (
            ("--early-stop", "3", "--option", "test_share=0"),
            "early_stop = 3 judges the test split, and reviews has none",
        ),
        (("--stop-accuracy", "95"), "stop_accuracy = 95 is not a share of 1: for 95 % write 0.95"),
        (("--epochs", "0"), "epochs = 0 must be at least 1"),
        (("--option", "length"), "--option length must look like --option name=value"),
        (("--option", "text_column=txt"), "name one with --option text_column=NAME"),
    ],
    ids=str,
)
def test_messages_name_options_as_they_are_typed(typed: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """--early-stop 0 was refused as training.patience = 0."""
    path = write_csv(tmp_path / "reviews.csv", PAIRS)
    done = _semfocus("compare", str(path), *typed, "--dry-run", "--out", str(tmp_path / "runs"))
    assert message in str(done.exception)
