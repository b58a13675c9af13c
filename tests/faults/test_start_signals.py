"""Signals that come while a command begins, or while its worker processes do: 130 or 143, and nothing else is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semfocus.store import RunStore

COMMAND = [
    sys.executable, "-m", "semfocus.cli", "compare", "even_pairs", "--quick", "--attention", "full,topk:3",
    "--seeds", "1", "--epochs", "2000", "--device", "cpu", "--jobs", "2", "--threads", "1", "--compile", "off",
]  # fmt: skip


def started(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )


def interrupted(out: Path, number: signal.Signals, whole_group: bool, after: float) -> None:
    """Send a signal some seconds after the run directories are there, which is when workers begin to start."""
    process = started(out)
    end = time.monotonic() + 120
    while not (out.is_dir() and any(out.iterdir())):
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(after)
    (os.killpg if whole_group else os.kill)(process.pid, number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in output + errors
    assert "Aborted" not in output + errors
    for entry in RunStore(out).entries():
        assert entry.state in ("interrupted", "empty", "running"), (entry.state, entry.why)
        assert entry.holder is None


def test_a_signal_while_workers_start_is_heard_by_all_and_loses_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "runs", signal.SIGINT, whole_group=True, after=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", [*range(0, 30, 3)])
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)]
)
def test_a_signal_at_any_moment_of_the_start_is_heard(
    tmp_path: Path, number: signal.Signals, whole_group: bool, tenth: int
) -> None:
    interrupted(tmp_path / "runs", number, whole_group, after=tenth / 10)
