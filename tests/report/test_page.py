"""The page as a file: what it says, of good runs and of bad ones, and that nothing in it comes alive."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from semfocus import recipes
from semfocus.analysis.groups import group_records
from semfocus.analysis.recommend import recommend
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.config import RunConfig
from semfocus.errors import StorageError, UsageError
from semfocus.execution import Executor, RunOutcome, register_executor
from semfocus.experiments.compare import comparison_of
from semfocus.report.page import sections
from semfocus.report.page.page import embedded, render, write_page
from semfocus.report.page.provenance import commands
from semfocus.report.page.summary import About, goal_text
from semfocus.store import RunStore
from semfocus.store.measurements import write_measurement
from semfocus.training.loading import document
from semfocus.training.objective import BALANCED_ACCURACY, Learned
from tests.report.helpers import configs, made, made_as, records, rows, store

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028'\"&amp;"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(
        tmp_path_factory.mktemp("made") / "runs", mechanisms=["full", "topk:5", "banded:5"], training__epochs=12
    )


def text_of(page: str) -> str:
    """The words of the page, without tags, scripts and styles."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def data_of(page: str) -> dict:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert script is not None
    return json.loads(script.group(1))


def test_the_page_says_what_was_asked_found_and_how_it_was_made(runs: Path, tmp_path: Path) -> None:
    page = write_page(runs, tmp_path / "report.html").read_text()
    words = text_of(page)
    for part in (
        "Which attention learns even_pairs in the fewest epochs",
        "epochs (median; 3 of 3 seeds), on average",
        "of the rows it has not seen, on average",
        "banded:5 never reached 95 % training accuracy within 12 epochs",
        "A hint, not a proof",
        "9 done",
        "Kaplan-Meier",
        "Without learning: chance, majority, shortcut 50.0 %",
        "PyTorch 2.13.0 (9 runs)",
        "device name a desk (9 runs)",
        "153476998, 205084180, 235510766",
        "semfocus compare even_pairs --attention full,topk:5,banded:5 --seeds 3 --epochs 12",
    ):
        assert part in words, part
    assert [f"C{i}" for i in range(1, 15)] == re.findall(r'class="claim">(C\d+)<', page)
    drawn = data_of(page)["groups"][0]
    assert [arm["m"] for arm in drawn["arms"]] == [0, 1, 2]
    assert len(drawn["arms"][0]["seeds"]) == 3


def test_the_page_needs_nothing_from_anywhere(runs: Path) -> None:
    page = render(Results.load(runs))
    assert "default-src 'none'" in unescape(page)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert "@import" not in page
    assert "url(http" not in page
    assert set(re.findall(r"https?://[^\s\"'<)]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert " style=" not in page  # the policy would drop it
    assert not re.findall(r"\son\w+\s*=", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))


def test_the_same_runs_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    first = write_page(runs, tmp_path / "a.html").read_bytes()
    assert write_page(runs, tmp_path / "b.html").read_bytes() == first


def test_markup_in_every_name_is_shown_as_text(tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    task = config.task.build()
    fields = document(config, task) | {"label": NASTY}
    fields["task"] |= {"name": NASTY}
    fields["attention"] |= {"mechanism": NASTY}
    fields["model"] |= {"activation": NASTY}
    made_as(tmp_path / "runs", config, fields, torch=NASTY, device_name=NASTY)
    (tmp_path / "runs" / "<img src=x>").write_text("")
    (tmp_path / "runs" / os.fsdecode(b"bytes\xff")).write_text("")
    page = write_page(tmp_path / "runs", tmp_path / "report.html", title=NASTY).read_text()
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "<img" not in page
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]  # type: ignore[index]
    assert NASTY in unescape(page)
    assert data_of(page)["mechanisms"][0]["name"] == NASTY
    assert "bytes\\udcff" in page
    assert 'id="group-0"' in page


def test_embedded_json_cannot_leave_its_element() -> None:
    text = embedded({"a": "</script><!--&\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028\u2029"}
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded({"a": float("nan")})


def test_each_state_is_shown_for_what_it_is_and_nothing_is_dropped(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    chosen = configs(seeds=7, mechanisms=["full"], training__epochs=4)
    broken = [row | {"train_loss": float("nan"), "heldout_loss": float("inf")} for row in rows(chosen[1])]
    made(root, chosen[0])
    made(root, chosen[1], "diverged", broken)
    made(root, chosen[2], "interrupted", rows(chosen[2])[:2])
    made(root, chosen[3], "empty", [])
    corrupt = made(root, chosen[4])
    (corrupt.path / "config.json").write_text("{")
    half = made(root, chosen[5])
    (half.path / "metrics.jsonl").write_text('{"step": 1}\n')
    (half.path / "status.json").unlink()  # it would say first that this is not what was saved
    held = made(root, chosen[6], "running", rows(chosen[6])[:1])
    (root / "notes.txt").write_text("mine")
    (root / "0123456789abcdef").mkdir()
    (root / "fedcba9876543210").symlink_to(tmp_path)
    with held.lock():
        words = text_of(render(Results.load(root)))
    for part in ("1 done", "1 running", "1 interrupted", "1 diverged", "1 empty", "5 not readable as a run"):
        assert part in words, part
    for part in (
        f"{corrupt.id} corrupt:",
        f"{half.id} corrupt: metrics.jsonl has no numbers called epoch",
        "notes.txt unrecognised: not a run directory",
        "0123456789abcdef empty: an empty directory",
        "fedcba9876543210 unrecognised: a symbolic link, not followed",
        "3 unfinished runs are left out",
    ):
        assert part in words, part


def test_a_damaged_measurement_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    run = made(tmp_path, config)
    write_measurement(run, "dispersion", {"k": 5})
    (run.path / "measurements" / "dispersion.json").write_text("{")
    assert "dispersion.json" in text_of(render(Results.load(tmp_path)))


def first_screen(page: str) -> str:
    """The words above the first section below the lead."""
    lead = re.search(r'<section id="top".*?</section>', page, re.DOTALL)
    assert lead is not None
    return text_of(lead[0])


def test_the_setting_that_the_headline_means_is_on_the_first_screen(tmp_path: Path) -> None:
    """The headline spoke of the setting that learned; the only cell beside it was of the one that did not."""
    for config in configs(("parity",), seeds=3, training__epochs=12):
        made(tmp_path, config, measured=[row | {"train_accuracy": 0.5} for row in rows(config)])
    store(tmp_path, ("parity",), seeds=3, training__epochs=12, model__blocks=2)
    store(tmp_path, ("parity",), seeds=3, training__epochs=12, model__heads=2)
    results = Results.load(tmp_path)
    top = first_screen(render(results))
    assert "never nor does full" in top
    for group in results.groups:
        assert group.details in top
    assert "needs fewer epochs than full attention" in top
    assert "in 2 of 3 comparisons" in top
    assert "Nothing learned, full attention included, in 1 of 3" in top


def test_of_very_many_settings_those_that_the_headline_means_are_on_the_first_screen(tmp_path: Path) -> None:
    groups = [
        replace(group, details=f"setting {i}")
        for i in range(40)
        for group in group_records(records(tasks=["parity"], seeds=3)).groups
    ]
    assert sections.first_screen(groups[:20], groups[:1]) == groups[:20]
    shown = sections.first_screen(groups, [groups[33]])
    assert groups[33] in shown


def test_a_studys_title_and_question_are_the_headline_of_its_page(runs: Path) -> None:
    about = About("controls", "Focus, or just sparsity?", "Do the k worst keys help as the k best do?")
    page = render(Results.load(runs), about=about)
    assert "<h1><bdi>Focus, or just sparsity?</bdi></h1>" in page
    words = first_screen(page)
    assert words.startswith("controls: 9 runs")
    assert "Asked Do the k worst keys help as the k best do? full, topk:5 and banded:5, with 3 seeds each" in words
    assert "Found topk:5 needs" in words


def test_without_a_task_of_the_paper_there_is_no_section_of_verdicts(tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    fields = document(config, config.task.build())
    fields["task"]["name"], fields["data"] = "reviews.csv", {"sha256": "ab" * 32}
    made_as(tmp_path, config, fields)
    page = render(Results.load(tmp_path))
    assert "#verdicts" not in page
    assert "2506.14095" not in page


def test_several_k_are_drawn_against_k_on_the_page(tmp_path: Path) -> None:
    store(tmp_path, ("parity",), ("full", "topk:1", "topk:5", "topk:9"), 2, training__epochs=6)
    assert "By the number of keys kept" in text_of(render(Results.load(tmp_path)))
    (tmp_path / "none").mkdir()
    store(tmp_path / "none", ("parity",), ("full", "topk:1", "topk:5", "topk:9"), 2, state="empty", training__epochs=6)
    assert "By the number of keys kept" not in text_of(render(Results.load(tmp_path / "none")))


@pytest.mark.parametrize("mechanisms", [("full", "topk:2", "topk:9"), ("full", "topk:5", "banded:5")])
def test_where_several_k_were_trained_the_page_says_which_to_take(mechanisms: tuple[str, ...], tmp_path: Path) -> None:
    """What --attention auto recommends stood in the terminal only."""
    results = Results.load(store(tmp_path / "runs", ("parity",), mechanisms, 8, training__epochs=60))
    (group,) = results.groups
    advice = recommend(group.comparison).text
    assert "is the one to take" in advice
    assert (advice in first_screen(render(results))) == ("banded:5" not in mechanisms)


def test_learning_rates_that_were_chosen_stand_on_the_page(tmp_path: Path) -> None:
    """They stood in the terminal only."""
    for mechanism, lr in (("full", 0.1), ("topk:5", 0.3)):
        store(tmp_path, ("parity",), (mechanism,), 2, training__epochs=6, training__lr=lr, training__tuned="lr of ...")
    words = text_of(render(Results.load(tmp_path)))
    assert "Learning rates chosen by tuning (lr of ...): full 0.1, topk:5 0.3." in words


def test_goals_that_differ_are_named() -> None:
    """The page said "to what each task's objective says than full attention"."""
    goals = [Learned(), Learned(BALANCED_ACCURACY), Learned()]
    groups: list[Any] = [SimpleNamespace(comparison=SimpleNamespace(learned=goal)) for goal in goals]
    assert goal_text(groups) == "95 % training accuracy or 95 % training balanced accuracy"
    assert goal_text(groups, Learned.level) == "95 %"


def test_shares_beside_accuracy_and_the_test_split_stand_on_the_page(tmp_path: Path) -> None:
    """The terminal had balanced accuracy, macro F1 and the test split, and the page had none of them."""
    config = recipes.configure("even_pairs", "full", 7)
    more = {"patience": 3, "patience_on": "validation", "evaluate_test": True}
    config = config.model_copy(update={"training": config.training.model_copy(update=more)})
    made(tmp_path, config, measured=[row | {"test_loss": 0.4, "test_accuracy": 0.618} for row in rows(config)])
    page = text_of(render(Results.load(tmp_path)))
    assert "seeds, test accuracy test quartiles against full 95 % interval held out, final" in page
    assert "61.8%" in page.split("Accuracy on rows not seen")[1].split("Every setting")[0]
    assert "Unseen: the share of test rows that it is right on" in page
    plain = tmp_path / "plain"
    store(plain, seeds=1, training__epochs=5)
    assert "seeds, final held-out accuracy held out, final quartiles" in text_of(render(Results.load(plain)))


def test_a_number_stays_on_the_line_of_its_percent_sign(runs: Path) -> None:
    page = render(Results.load(runs))
    assert "95\N{NO-BREAK SPACE}% training accuracy" in page
    assert not re.search(r"<(p|li|h1)>[^<]*\d %", page)


def test_an_interval_without_1_beside_a_large_p_is_explained_and_left_out_of_the_heat_map(tmp_path: Path) -> None:
    epochs = {"full": 10, "topk:5": 2}
    for config in configs(("parity", "even_pairs"), seeds=3, training__epochs=12):
        at = epochs[config.attention.mechanism] + config.seed % 2
        made(tmp_path, config, measured=[
            row | {"train_accuracy": 1.0 if row["epoch"] >= at else 0.5} for row in rows(config)
        ])  # fmt: skip
    page = text_of(render(Results.load(tmp_path)))
    assert page.count("may be chance") >= 2
    assert "go by p: it is exact" in page
    assert "3 seeds and 1 comparison cannot give less than 0.25" in page


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_store_where_nothing_is_learned_or_one_seed_claims_no_test(seeds: int, tmp_path: Path) -> None:
    for config in configs(seeds=seeds, training__epochs=5):
        made(tmp_path, config, measured=[row | {"train_accuracy": 0.5} for row in rows(config)])
    words = text_of(render(Results.load(tmp_path)))
    assert "Nothing learned: no conclusion" in words
    assert "needs fewer epochs" not in words
    assert "Beyond chance, after Holm" not in words
    assert "nan" not in words.split()


def test_an_empty_store_gives_a_page_that_says_so_and_a_missing_one_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert "No runs yet" in text_of(write_page(tmp_path / "runs", tmp_path / "report.html").read_text())
    with pytest.raises(UsageError, match="not a directory of runs"):
        write_page(tmp_path / "gone", tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()


def test_a_place_that_cannot_be_written_is_named_and_ends_the_command_with_6(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    sealed.chmod(0o500)
    nowhere = [tmp_path / "file", Path("/proc")]  # the kernel's own: even root cannot make files there
    for place in [*nowhere, *([] if os.access(sealed, os.W_OK) else [sealed])]:
        done = CliRunner().invoke(app, ["report", str(runs), "--out", str(place / "report.html")])
        assert isinstance(done.exception, StorageError), place
        assert done.exception.exit_code == 6
        assert str(place / "report.html") in str(done.exception)


def test_killed_while_the_report_is_written_the_old_one_is_intact(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old report")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom semfocus.store import atomic\n"
        "from semfocus.report.page.page import write_page\n"
        "atomic._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)  # the draft is complete, not yet in place\n"
        "write_page(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(runs), str(out)], capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr
    assert out.read_text() == "the old report"
    assert "Which attention learns" in write_page(runs, out).read_text()


@pytest.mark.parametrize(
    "choices",
    [
        {"quick": True, "attention": ["full", "topk:5"], "seeds": 2},
        {"recipe": "paper", "attention": ["full", "topk:9", "banded:5+1g"], "seeds": 3},
        {"recipe": "authors", "attention": ["topk:9", "randomk:5"], "seeds": 2},
        {"options": {"length": 12}, "epochs": 7, "stop_accuracy": 0.9, "attention": ["topk:3"], "seeds": 1},
        {"overrides": ["model.heads=2", "training.clip=null", "precision=tf32"], "attention": ["full"], "seeds": 11},
    ],
)
def test_the_command_shown_makes_these_very_runs(choices: dict, tmp_path: Path) -> None:
    experiment = comparison_of("parity", **choices)
    task = experiment.configs[0].task.build()
    RunStore(tmp_path).create_or_open_all({c.run_id(c.task.build()): document(c, task) for c in experiment.configs})
    (group,) = Results.load(tmp_path).groups
    (text,) = commands(group)
    words = shlex.split(text)
    assert words[:3] == ["semfocus", "compare", "parity"]
    again = _planned(words[2:])
    assert {c.run_id(task) for c in again} == {c.run_id(task) for c in experiment.configs}


@pytest.mark.skipif(not (Path(__file__).parents[2] / ".git").exists(), reason="not a checkout")
def test_the_page_names_the_commit_of_the_checkout_that_wrote_it(runs: Path) -> None:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pytest.skip("git does not answer here")
    assert f"commit {head}" in text_of(render(Results.load(runs)))


def test_arms_that_have_fewer_seeds_have_a_command_of_their_own(tmp_path: Path) -> None:
    arms = (
        comparison_of("parity", attention=["full", "topk:5"], seeds=4),
        comparison_of("parity", attention=["banded:5"], seeds=2),
    )
    wanted = [config for arm in arms for config in arm.configs]
    task = wanted[0].task.build()
    RunStore(tmp_path).create_or_open_all({config.run_id(task): document(config, task) for config in wanted})
    (group,) = Results.load(tmp_path).groups
    again = [config for text in commands(group) for config in _planned(shlex.split(text)[2:])]
    assert sorted(config.run_id(task) for config in again) == sorted(config.run_id(task) for config in wanted)


def _planned(words: list[str]) -> list[RunConfig]:
    """The runs that `semfocus compare` with these words would train."""
    Recorder.configs.clear()
    with tempfile.TemporaryDirectory() as out:
        CliRunner().invoke(app, ["compare", *words, "--out", out, "--executor", "recorder"])
    assert Recorder.configs
    return [*Recorder.configs]


@register_executor
class Recorder(Executor):
    """Trains nothing, and keeps what it was to train."""

    name = "recorder"
    configs: ClassVar[list[RunConfig]] = []

    def run(self, cohorts: Any, store: RunStore, on_progress: Any) -> list[RunOutcome]:
        self.configs.extend(job.config for cohort in cohorts for job in cohort)
        raise UsageError("enough")


def test_seeds_of_ones_own_have_no_single_command_but_each_config_trains(tmp_path: Path) -> None:
    config = recipes.configure("parity", "full", 7)
    made(tmp_path, config, measured=[])
    page = render(Results.load(tmp_path))
    assert "No single command makes these runs" in text_of(page)
    shown = data_of(page)["groups"][0]["config"]
    assert RunConfig.model_validate(shown) == config


def test_a_task_name_cannot_smuggle_words_into_the_command(tmp_path: Path) -> None:
    config = recipes.configure("parity", "full", recipes.PAPER_SEEDS[0])
    fields = document(config, config.task.build())
    for number, name in enumerate(("x.csv; rm -rf ~", "--help")):
        fields["task"]["name"] = name
        RunStore(tmp_path / str(number)).create_or_open(config.run_id(config.task.build()), fields)
        (group,) = Results.load(tmp_path / str(number)).groups
        texts = commands(group)
        assert all(shlex.split(text)[2] == name for text in texts)
        assert not texts or not name.startswith("-")
