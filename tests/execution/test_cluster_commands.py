"""`semfocus status`, `--detach`, `--dry-run --executor ray`, and the question that Ctrl-C asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semfocus.cli import app, cluster
from semfocus.cli.shared import fail_if_needed
from semfocus.errors import Locked
from semfocus.execution import RunOutcome
from semfocus.execution.cluster import leaving
from semfocus.report.page.page import write_page
from semfocus.store.board import open_board
from tests.training.helpers import tiny, trained

SMALL = [
    "even_pairs", "--attention", "full,topk:3", "--seeds", "1", "--epochs", "2", "--threads", "1", "--compile", "off",
    "--set=model.blocks=1", "--set=model.d_model=8", "--set=task.train_rows=40", "--set=task.heldout_rows=20",
]  # fmt: skip


def test_status_shows_who_trains_what_and_the_logs_of_workers_that_failed(tmp_path: Path) -> None:
    trained([tiny()], tmp_path)
    row = {"attempt": "ab" * 8, "node": "node-7", "device": "H200", "what": "listops topk:5", "runs": 34,
           "state": "training", "step": 500, "total_steps": 2000, "rate": 1234.0, "left": 90.0}  # fmt: skip
    with open_board(tmp_path, "ray") as board:
        board.write({"rows": [row, row | {"state": "waiting", "node": ""}], "done": 5, "total": 340})
        log = board.keep_log("cd" * 8, "\x1b[31mcannot allocate\x1b[0m\n")
        shown = CliRunner().invoke(app, ["status", str(tmp_path)]).stdout
        page = write_page(tmp_path, tmp_path / "page.html").read_text()
    for text in ("5 of 340 runs done", "<bdi>node-7</bdi>", "<bdi>listops topk:5</bdi>", "500 / 2000"):
        assert text in page
    assert "node-7" not in write_page(tmp_path, tmp_path / "page.html").read_text(), "the driver has ended"
    assert "1 done" in shown
    assert f"ray, driven by process {os.getpid()} on {os.uname().nodename}" in shown
    assert "5 of 340 runs done" in shown
    for text in ("node-7", "H200", "listops topk:5", "34", "training", "500 / 2000", "1234", "waiting"):
        assert text in shown
    assert "\x1b" not in shown
    assert "cannot allocate" in shown
    afterwards = CliRunner().invoke(app, ["status", str(tmp_path)]).stdout
    assert "driven by" not in afterwards
    assert log.name in afterwards, "logs are kept"


def test_a_detached_command_goes_on_without_its_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "semfocus.cli", "compare", *SMALL, "--out", str(tmp_path / "runs")]
    done = subprocess.run([*command, "--detach"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "look at it: semfocus status runs" in done.stdout
    end = time.monotonic() + 120
    while not (tmp_path / "runs" / "report.html").exists():
        assert time.monotonic() < end
        time.sleep(0.2)
    (log,) = (tmp_path / "runs" / "cluster").glob("driver-*.log")
    shown = CliRunner().invoke(app, ["status", str(tmp_path / "runs")]).stdout
    assert "2 done" in shown
    assert log.name in shown


@pytest.mark.parametrize(("answer", "expected"), [("d\n", "detach"), ("c\n", "cancel"), ("\n", "cancel")])
def test_ctrl_c_asks_on_a_terminal_alone(
    answer: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Table:
        live = None

    with cluster.may_detach(Table(), tmp_path):
        assert not leaving.wants_to_detach(), "a script is not asked"
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdin", type("In", (), {"isatty": lambda s: True, "readline": lambda s: answer})())
        assert leaving.wants_to_detach() == (expected == "detach")
    assert not leaving.wants_to_detach()


@pytest.mark.slow
def test_a_dry_run_knows_the_machines(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'semfocus[cluster]'")
    command = ["run", "figure_1", "--tasks", "even_pairs", "--seeds", "1", "--scale", "smoke", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "semfocus.cli", *command, "--out", str(tmp_path), "--dry-run",
         "--executor", "ray:workers=2"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "at best with 2 at a time" in done.stdout
    assert "on 1 machine: 2 CPUs, no GPU; 6 cohorts, 2 at a time" in done.stdout


def test_a_dry_run_counts_on_no_more_jobs_than_there_are_cohorts(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'semfocus[cluster]'")
    command = ["compare", *SMALL, "--dry-run", "--out", str(tmp_path), "--executor", "slurm-local:workers=50"]
    shown = CliRunner().invoke(app, command).stdout
    assert "at best with 2 at a time" in shown
    assert "on this machine: 50 jobs at a time; 2 cohorts, 2 at a time" in shown
    values = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (values["at_a_time"], values["tasks"][0]["waiting"]) == (2, 2)


def test_a_run_that_is_held_elsewhere_is_told_with_where_or_that_it_is_free_again(tmp_path: Path) -> None:
    (run,) = trained([tiny()], tmp_path)
    held = [RunOutcome(tiny(), run, "held")]
    with run.lock(), pytest.raises(Locked, match=f"{run.id} by process {os.getpid()} on {os.uname().nodename} since"):
        fail_if_needed(held)
    with pytest.raises(Locked, match=r"by a process that has ended since .the same command goes on"):
        fail_if_needed(held)
