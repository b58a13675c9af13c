"""What a job of SLURM does: one attempt at a cohort, whose words are files on the shared disk (`slurm_jobs`)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from semfocus.execution.cluster.messages import REPORTS, Message, Work
from semfocus.store import atomic

WORK, WORDS, PROGRESS, STOP = "work.json", "words.jsonl", "progress.json", "stop"


class SlurmAttempt:
    """submitit keeps it, calls it, and calls `checkpoint` before a time limit or a preemption."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.attempt: Any = None

    def __call__(self) -> None:
        from semfocus.execution.cluster.worker import Attempt

        work = Work.decode((Path(self.folder) / WORK).read_text())
        if os.environ.get("SLURM_RESTART_COUNT"):  # its first life may have ended on a machine that keeps its locks
            work = replace(work, lock_patience=work.lease)
        self._append(b"\n")  # a job that was killed may have left half a line
        self.attempt = Attempt(work, None, lambda name: Path(name).read_bytes(), self._tell)
        self._write(self.attempt.run())

    def checkpoint(self) -> Any:
        """Save, and let SLURM queue the same again."""
        import submitit

        if self.attempt is not None:
            self.attempt.stop_and_wait()
        return submitit.helpers.DelayedSubmission(SlurmAttempt(self.folder))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "attempt": None}

    def _tell(self, messages: list[Message]) -> bool:
        self._write(messages)
        return not (Path(self.folder) / STOP).exists()

    def _write(self, messages: list[Message]) -> None:
        """Progress replaces what was said before, and is the heartbeat; other words are kept in their order."""
        folder = Path(self.folder)
        latest = [m for m in messages if m.kind in REPORTS]
        lines = [json.dumps([m.kind, m.body]).encode() + b"\n" for m in messages if m not in latest]
        if latest:
            atomic.write_text(folder / PROGRESS, json.dumps([latest[-1].kind, latest[-1].body]))
        if lines:
            self._append(b"".join(lines))

    def _append(self, data: bytes) -> None:
        words = Path(self.folder) / WORDS
        atomic.append(words, data, words.stat().st_size)
