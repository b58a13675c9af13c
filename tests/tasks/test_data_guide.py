"""The code of docs/data.md runs with its files and prints the output that the guide shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from semfocus.tasks.files import LABEL_NAMES, TEXT_NAMES, FileOptions

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
END = "--- end of block ---"


def test_the_guide_runs_and_prints_what_it_shows(tmp_path):
    """In a process of its own: the guide registers a task from a script that no worker process could import."""
    script, shown = [], []
    for language, title, content in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if title:
            (tmp_path / title).write_text(content, encoding="utf-8")
        elif language == "python":
            script.append(content + f"print({END!r})\n")
        elif language == "text":  # `console` shows a command of minutes with what it printed
            shown.append(content)
    (tmp_path / "guide.py").write_text("".join(script), encoding="utf-8")
    done = subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(END + "\n") == [*shown, ""]


def test_the_guide_names_every_option_and_every_column_name():
    text = GUIDE.read_text(encoding="utf-8")
    for name in (*FileOptions.__dataclass_fields__, *TEXT_NAMES, *LABEL_NAMES):
        assert f"`{name}`" in text, f"{name} is not in {GUIDE.name}"
