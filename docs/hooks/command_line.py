"""Writes the reference of the commands from their own help, as `python -m typer semfocus.cli utils docs` does."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File

EXAMPLES = re.compile(r"(?:^semfocus .*\n)+", flags=re.MULTILINE)
INTRODUCTION = "Made from `semfocus COMMAND --help`, which says the same in a terminal.\n"


def on_files(files: Any, config: Any) -> None:
    command = [sys.executable, "-m", "typer", "semfocus.cli", "utils", "docs", "--name", "semfocus"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    _title, _, text = done.stdout.strip().partition("\n")
    text = EXAMPLES.sub(r"```sh\n\g<0>```\n", text)
    files.append(File.generated(config, "reference/commands.md", content=f"# Commands\n\n{INTRODUCTION}{text}\n"))
