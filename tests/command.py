"""The command line in a process of its own, which starts in milliseconds: a new one takes seconds to import torch."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from tests.training.helpers import process


def semfocus(
    *arguments: str, folder: Path | None = None, timeout: float = 300, **variables: str
) -> CompletedProcess[str]:
    """What `semfocus ARGUMENTS` in a folder prints, and its exit code; variables go into its environment."""
    with tempfile.TemporaryDirectory() as place:
        out, errors = Path(place) / "out", Path(place) / "errors"
        # Where this process finds modules, so do those that the command starts, from whichever folder.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
        started = process(_run, arguments, folder or Path.cwd(), environment, out, errors)
        started.join(timeout)
        if started.exitcode is None:
            started.kill()
            raise TimeoutExpired(["semfocus", *arguments], timeout)
        return CompletedProcess(["semfocus", *arguments], started.exitcode, out.read_text(), errors.read_text())


def _run(arguments: tuple[str, ...], folder: Path, environment: dict[str, str], out: Path, errors: Path) -> None:
    for number, path in ((1, out), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # as `python -m` does
    sys.argv = ["semfocus", *arguments]
    from semfocus.cli import main

    main()
