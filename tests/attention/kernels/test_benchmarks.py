"""The benchmarks of kernels: the rows of the table of regimes that follow from times, and all of it, tiny, on a CPU."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from semfocus.attention.kernels.regimes import Regime
from tests.conftest import DEVICE

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def regime_of(row: str) -> Regime:
    """The row that a line of code makes, read without running it."""
    call = ast.parse(row.strip().rstrip(","), mode="eval").body
    assert isinstance(call, ast.Call)
    given = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    return Regime(*(ast.literal_eval(argument) for argument in call.args), **given)


def test_the_rows_of_the_table_of_regimes_name_the_fastest_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from kernels_regimes import rows_of_table

    times = {"long": 1.0, "threshold": 2.0}
    measured = {
        (512, 8): {"short": 0.5, **times}, (512, 32): times, (512, 64): {"threshold": 1.0},
        (1024, 8): times, (1024, 32): {"long": 3.0, "threshold": 2.0},
    }  # fmt: skip
    rows = [regime_of(row) for row in rows_of_table(measured)]
    assert [(row.kernels, row.max_kept, row.min_keys) for row in rows] == [
        ("short", 8, 512), ("long", 32, 512), ("long", 8, 1024),
    ]  # fmt: skip
    for (keys, kept), found in measured.items():
        first = next((row.kernels for row in rows if row.fits(kept, keys, 100, 16)), "threshold")
        assert first == min(found, key=lambda name: found[name])
    assert not any(row.fits(8, 700, 100, 32) for row in rows)


def test_a_kernel_of_torch_that_cannot_serve_takes_one_line_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from timing import refusal

    error = RuntimeError("No available kernel. Aborting execution.\nat /pytorch/x.cpp")
    warned = [
        "Memory efficient kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:986.)",
        "For dense input, both fused kernels require query, key and value to have the same num_heads. Query.sizes(): "
        "[1, 32, 1, 128] instead. To broadcast dense inputs, try using unsqueeze. (Triggered internally at x.h:418.)",
        "Flash attention has been runtime disabled. (Triggered internally at /pytorch/sdp_utils_cpp.h:540.)",
    ]
    told = "For dense input, both fused kernels require query, key and value to have the same num_heads"
    assert refusal(error, warned) == told
    assert refusal(error, []) == "No available kernel"


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="on a GPU the benchmarks themselves run")
@pytest.mark.parametrize(
    "command",
    [["kernels.py", "--smoke"], ["arena.py", "--device", "cpu", "--length", "64", "--kept", "8"]],
    ids=" ".join,
)
def test_a_benchmark_runs_to_its_end_without_a_gpu(command: list[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent / "src")}
    script, *options = command
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *options], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        assert "failed" not in line
        assert "Error" not in line.split("|")[-1] or "ours" not in line, line
