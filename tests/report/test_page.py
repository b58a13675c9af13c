"""The page as a file: what it says, of good runs and of bad ones, and that nothing in it comes alive."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import StorageError, UsageError
from semfocus.report.page.page import embedded, render, write_page
from semfocus.store.measurements import write_measurement
from semfocus.training.loading import document
from tests.report.helpers import configs, made, made_as, rows
from tests.report.pages import NASTY, data_of, text_of


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


@pytest.mark.skipif(not (Path(__file__).parents[2] / ".git").exists(), reason="not a checkout")
def test_the_page_names_the_commit_of_the_checkout_that_wrote_it(runs: Path) -> None:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pytest.skip("git does not answer here")
    assert f"commit {head}" in text_of(render(Results.load(runs)))
