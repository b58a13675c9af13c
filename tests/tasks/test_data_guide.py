"""docs/data.md is run as it stands: its files, its code, and the output that it shows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from semfocus.tasks import registry
from semfocus.tasks.files import LABEL_NAMES, TEXT_NAMES, FileOptions

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
END = "--- end of block ---"


def test_the_guide_runs_and_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script, shown = [], []
    for language, title, content in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if title:
            Path(title).write_text(content, encoding="utf-8")
        elif language == "python":
            script.append(content + f"print({END!r})\n")
        else:
            shown.append(content)
    Path("guide.py").write_text("".join(script), encoding="utf-8")
    runpy.run_path("guide.py")
    assert capsys.readouterr().out.split(END + "\n") == [*shown, ""]
    assert "more_ones" in registry.task_names()


def test_the_guide_names_every_option_and_every_column_name():
    text = GUIDE.read_text(encoding="utf-8")
    for name in (*FileOptions.__dataclass_fields__, *TEXT_NAMES, *LABEL_NAMES):
        assert f"`{name}`" in text, f"{name} is not in {GUIDE.name}"
