"""Writes the reference of the commands from their own help, as `python -m typer semfocus.cli utils docs` does."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File

EXAMPLES = re.compile(r"(?:^semfocus .*\n)+", flags=re.MULTILINE)
SUMMARY = re.compile(r"^\* `(\w+)`: ", flags=re.MULTILINE)  # a command in the list of all
INTRODUCTION = "Made from `semfocus COMMAND --help`, which says the same in a terminal.\n"


def on_files(files: Any, config: Any) -> None:
    command = [sys.executable, "-m", "typer", "semfocus.cli", "utils", "docs", "--name", "semfocus"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    _title, _, text = done.stdout.strip().partition("\n")
    text = EXAMPLES.sub(r"```sh\n\g<0>```\n", text.replace("\b\n", "\n"))  # \b keeps lines apart in a terminal
    everything, one_by_one = text.split("\n## ", 1)
    everything = SUMMARY.sub(r"* [`\1`](#semfocus-\1): ", everything)
    page = f"# Commands\n\n{INTRODUCTION}{everything}\n## {one_by_one}\n"
    files.append(File.generated(config, "reference/commands.md", content=page))
