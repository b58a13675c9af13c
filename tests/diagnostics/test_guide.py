"""The code of docs/diagnose.md runs, and the guide names every statistic."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from semfocus.diagnostics.aggregate import NAMES

GUIDE = Path(__file__).parents[2] / "docs" / "diagnose.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_guide_runs_and_prints_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = BLOCK.findall(GUIDE.read_text(encoding="utf-8"))
    guide = tmp_path / "guide.py"
    guide.write_text("".join(block for language, block in blocks if language == "python"), encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(guide))
    assert capsys.readouterr().out == "".join(block for language, block in blocks if language == "text")


def test_the_guide_names_everything_that_is_measured() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}`" in text, name
