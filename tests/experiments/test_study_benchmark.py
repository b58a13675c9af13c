"""benchmarks/study.py over several sittings: it stops in time, and counts what was done."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.training.helpers import tiny, trained

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "study.py"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("study_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)  # no handler of the script outlives its test
    return module


def test_a_command_is_asked_to_end_when_its_time_is_over_and_is_waited_for(study: ModuleType) -> None:
    assert study.run_for(["sleep", "60"], minutes=0.001) == -signal.SIGTERM
    assert study.run_for([sys.executable, "-c", "raise SystemExit(4)"], minutes=None) == 4


def test_runs_that_only_have_a_directory_are_counted_as_such(study: ModuleType, tmp_path: Path) -> None:
    runs = trained([tiny(seed, epochs=1) for seed in (1, 2)], tmp_path)
    steps = runs[0].status()["step"]
    assert study.progress(tmp_path) == (2, 2, 2 * steps)
    (runs[1].path / "status.json").unlink()
    assert study.progress(tmp_path) == (2, 1, steps)
