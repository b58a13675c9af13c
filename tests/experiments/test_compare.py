"""The main job, as a user runs it: a tiny comparison from the command line, again, and with everything wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semfocus
from semfocus.execution import train
from semfocus.training import Progress
from tests.command import semfocus as command
from tests.training.helpers import run_of, runtime, tiny

SMALL = [
    "--option", "length=8", "--seeds", "2", "--epochs", "2", "--attention", "full,topk:3", "--threads", "1",
    "--compile", "off",
    *(f"--set={change}" for change in (
        "model.blocks=1", "model.d_model=8", "model.d_mlp=8", "task.train_rows=100", "task.heldout_rows=50",
    )),
]  # fmt: skip


def test_compare_trains_prints_a_table_and_does_not_train_again(tmp_path: Path) -> None:
    first = command("compare", "parity", *SMALL, "--keep", "0,1", "--out", str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert "epochs to 95 %" in first.stdout
    assert "Nothing learned: no conclusion" in first.stdout
    assert "chance 50.0%" in first.stdout
    assert {path.name for path in tmp_path.glob("curves-*")} == {"curves-parity.svg", "curves-parity.png"}
    runs = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(runs) == 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    again = command("compare", "parity", *SMALL, "--out", str(tmp_path), "--json")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    found = json.loads(again.stdout)
    assert [arm["mechanism"] for arm in found["mechanisms"]] == ["full", "topk:3"]
    listed = json.loads(command("runs", str(tmp_path), "--json").stdout)
    assert sorted(row["state"] for row in listed) == ["done"] * 4  # curves and page are not taken for runs
    assert "Content-Security-Policy" in (tmp_path / "report.html").read_text()
    shown = command("show", runs[0].name[:6], "--out", str(tmp_path)).stdout
    assert "checkpoints: epoch 0 (step 0, kept), epoch 1 (step 4, kept), epoch 2 (step 8)" in shown


def test_a_dry_run_of_compare_says_what_it_takes_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = command("compare", "parity", *SMALL, "--out", str(out), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "parity: 4 runs, 0 there, 4 to train" in done.stdout
    assert "of disk space at most" in done.stdout
    assert not out.exists()
    told = json.loads(command("compare", "parity", *SMALL, "--out", str(out), "--dry-run", "--json").stdout)
    assert told["tasks"][0]["waiting"] == 4


def test_a_dry_run_with_tuning_says_which_runs_choose_the_rates(tmp_path: Path) -> None:
    """Both tables had the same heading, and as JSON there were two documents, which nothing reads."""
    dry = ("compare", "parity", *SMALL, "--out", str(tmp_path / "runs"), "--dry-run", "--tune", "lr")
    shown = command(*dry).stdout
    assert "parity, learning rates to choose from: 12 runs" in shown
    assert "parity: 4 runs" in shown
    first, second = json.loads(command(*dry, "--json").stdout)
    assert (first["study"], first["tasks"][0]["runs"]) == (f"{second['study']}-tuning", 12)
    assert not (tmp_path / "runs").exists()


def test_resume_ends_with_the_table_of_the_whole_comparison_and_its_page(tmp_path: Path) -> None:
    """It ended with a line a run, and the comparison that it had finished was nowhere to be seen."""
    first = command("compare", "parity", *SMALL, "--out", str(tmp_path))
    assert first.returncode == 0, first.stderr
    (one, *_) = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("metrics.jsonl", "timing.jsonl"):
        (one / name).write_bytes(b"")
    (one / "status.json").unlink()
    shutil.rmtree(one / "checkpoints")
    (one / "checkpoints").mkdir()
    (tmp_path / "report.html").unlink()
    again = command("resume", "--out", str(tmp_path), "--track", f"tensorboard:{tmp_path / 'logs'}")
    assert again.returncode == 0, again.stderr
    assert "1 of 1 runs done" in again.stderr, "only what is left counts"
    table = first.stdout[first.stdout.index("mechanism  epochs") : first.stdout.index("curves:")]
    assert table.split() == again.stdout[again.stdout.index("mechanism  epochs") : again.stdout.index("page:")].split()
    assert (tmp_path / "report.html").exists()
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_train_sends_metrics_to_a_tracker(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'seed = 1\n[task]\nname = "parity"\noptions = {length = 8}\ntrain_rows = 100\nheldout_rows = 50\n'
        '[attention]\nmechanism = "full"\n[model]\nblocks = 1\nd_model = 8\nd_mlp = 8\n[training]\nepochs = 1\n'
    )
    place = f"tensorboard:{tmp_path / 'logs'}"
    small = ["--threads", "1", "--compile", "off", "--out", str(tmp_path / "runs"), "--track", place]
    done = command("train", str(tmp_path / "run.toml"), *small)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "logs").rglob("events*"))


def _reviews(path: Path, last: str) -> Path:
    rows = "".join(f"{'good fine nice' if i % 2 else 'bad poor awful'} word{i % 17},{i % 2}\n" for i in range(79))
    path.write_text(f"text,label\n{rows}{last},1\n")
    return path


def test_ctrl_c_stops_every_process_and_exits_130_and_changed_data_are_told_of(tmp_path: Path) -> None:
    data, runs = _reviews(tmp_path / "reviews.csv", "good"), tmp_path / "runs"
    begin = [
        "compare", str(data), "--attention", "full,topk:2", "--seeds", "1", "--threads", "1", "--jobs", "2",
        "--compile", "off", "--out", str(runs),
        *(f"--set={change}" for change in ("model.blocks=1", "model.d_model=8", "model.d_mlp=8")),
    ]  # fmt: skip
    long = ["--epochs", "1000000", "--evaluate-every", "1"]  # else its first evaluation would take minutes to come
    started = subprocess.Popen([sys.executable, "-m", "semfocus.cli", *begin, *long], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not any(path.stat().st_size for path in runs.glob("[!.]*/metrics.jsonl")):  # a draft may be renamed away
        assert time.monotonic() < end
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 130, errors
    assert "interrupted by SIGINT; saved" in errors
    stopped = json.loads(command("runs", str(runs), "--json").stdout)
    assert len(stopped) == 2
    assert "interrupted" in {row["state"] for row in stopped} <= {"interrupted", "empty"}
    _reviews(data, "better")
    refused = command("resume", stopped[0]["id"], "--out", str(runs))
    assert refused.returncode == 2
    assert "have changed since it began" in refused.stderr
    anew = command(*begin, "--epochs", "1")
    assert anew.returncode == 0
    assert f"{data} has changed since {', '.join(row['id'] for row in stopped)} began" in anew.stderr


def test_resume_finishes_what_was_begun_and_says_when_there_is_nothing_left(tmp_path: Path) -> None:
    pair = [tiny(seed, "topk:3") for seed in (1, 2)]

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyError

    with pytest.raises(KeyError):
        train(pair, tmp_path, runtime(checkpoint_seconds=0), stop)
    one = command("resume", run_of(pair[0], tmp_path).id[:8], "--out", str(tmp_path))
    assert one.returncode == 0, one.stderr
    assert f"give {run_of(pair[1], tmp_path).id} too for results to the bit" in one.stderr
    rest = command("resume", "--out", str(tmp_path))
    assert rest.stdout.count(": done, ") == 1
    assert [run_of(config, tmp_path).status()["state"] for config in pair] == ["done", "done"]
    assert "nothing to go on with" in command("resume", "--out", str(tmp_path)).stdout


def test_clean_says_what_would_go_and_removes_it_only_when_told(tmp_path: Path) -> None:
    assert command("compare", "parity", *SMALL, "--out", str(tmp_path)).returncode == 0
    assert "nothing to remove" in command("clean", str(tmp_path)).stdout
    assert command("clean", str(tmp_path), "--all").stdout.count("would remove") == 4
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 4
    assert command("clean", str(tmp_path), "--all", "--yes").stdout.count("removed") == 4
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_a_configuration_file_trains_one_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'seed = 1\n[task]\nname = "parity"\ntrain_rows = 50\nheldout_rows = 20\n[task.options]\nlength = 6\n'
        '[attention]\nmechanism = "topk:2"\n[model]\nblocks = 1\nd_model = 8\nd_mlp = 8\n[training]\nepochs = 1\n'
    )
    done = command("train", str(tmp_path / "run.toml"), "--set", "training.lr=0.3", "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    assert '"lr": 0.3' in done.stdout


def test_the_same_from_python_with_a_users_own_file(tmp_path: Path) -> None:
    rows = "".join(f"{'good fine nice' if i % 2 else 'bad poor awful'} word{i % 17},{i % 2}\n" for i in range(200))
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows)
    found = semfocus.compare(
        str(tmp_path / "reviews.csv"), attention=["full", "topk:2"], seeds=1, epochs=1, threads=1,
        out=tmp_path / "runs",
        overrides=["model.blocks=1", "model.d_model=8", "model.d_mlp=8"],
    )  # fmt: skip
    assert found.task == "reviews"
    assert len(found.arm("topk:2").final_heldout) == 1
    assert found.baselines["majority"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "partiy"], "did you mean 'parity'"),
        (["compare", "parity", "--seeds", "0"], "seeds = 0 must be at least 1"),
        (["compare", "parity", "--attention", "topk:50"], "k = 50 exceeds the sequence length 40"),
        (["compare", "parity", "--attention", "topkk:5"], "did you mean 'topk'"),
        (["compare", "parity", "--attention", ","], "--attention names nothing"),
        (["compare", "parity", "--device", "cuda:7"], "is not there on this machine"),
        (["compare", "parity", "--device", "tpu"], "is not one of auto, cpu, cuda, mps"),
        (["compare", "parity", "--set", "training.lrr=1"], "did you mean 'training.lr'"),
        (["compare", "parity", "--set", "training.lr=-1"], "training.lr = -1"),
        (["compare", "parity", "--epochs", "0"], "epochs = 0 must be at least 1"),
        (["compare", "parity", "--keep", "0,x"], "'x' is not an epoch"),
        (["compare", "parity", "--quick", "--option", "lenght=9"], "did you mean 'length'"),
        (["compare", "parity", "--tune", "decay"], "'decay'"),
        (["compare", "parity", "--early-stop", "0"], "early_stop = 0 must be at least 1"),
        (["compare", "nowhere.csv"], "nowhere.csv"),
        (["train", "nowhere.toml"], "nowhere.toml"),
        (["show", "ffff0000"], "no run in"),
    ],
)
def test_a_wrong_command_exits_2_and_says_what_to_do(arguments: list[str], message: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)] if arguments[0] != "runs" else []
    done = command(*arguments, *out)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
