"""docs/huggingface.md is run as it stands, and names what the code refuses and accepts."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import transformers

from semfocus.integrations.transformers.attention import HARMLESS, HONOURED, REFUSED

GUIDE = Path(__file__).parents[2] / "docs" / "huggingface.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_guide_runs_prints_what_it_shows_and_counts_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    Path("guide.py").write_text("".join(code for language, code in blocks if language == "python"), encoding="utf-8")
    names = runpy.run_path("guide.py")
    assert capsys.readouterr().out == "".join(shown for language, shown in blocks if language == "text")
    if f"In transformers {transformers.__version__} there are" in text:
        assert f"{transformers.__version__} there are {names['counts']}." in text


def test_the_guide_names_every_argument_that_is_refused_accepted_or_honoured():
    text = GUIDE.read_text(encoding="utf-8")
    for name in (*REFUSED, *HARMLESS, *HONOURED):
        assert f"`{name}`" in text, f"{name} is not in {GUIDE.name}"
