"""Runs as analysis sees them: what was asked, what was measured, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semfocus.store import RunDirectory

THRESHOLD = 0.95  # training accuracy at which a run counts as converged, as in the paper


@dataclass(frozen=True, eq=False)
class Record:
    """One run, read from its directory."""

    id: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    state: str
    seconds: float  # spent on it, by its own clock

    @staticmethod
    def read(run: RunDirectory) -> Record:
        status = run.status() or {"state": "new"}
        timing = run.timing()
        return Record(run.id, run.config(), run.metrics(), status["state"], timing[-1]["seconds"] if timing else 0.0)

    @property
    def mechanism(self) -> str:
        return self.config["attention"]["mechanism"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def horizon(self) -> int:
        return self.config["training"]["epochs"]

    @property
    def converged_at(self) -> float | None:
        """The first epoch whose training accuracy is at the threshold; None if there is none."""
        return next((row["epoch"] for row in self.metrics if row["train_accuracy"] >= THRESHOLD), None)

    @property
    def ended(self) -> bool:
        """Whether the run counts: done, or diverged (which counts as never converged)."""
        return self.state in ("done", "diverged")

    def final(self, name: str) -> float | None:
        """The last value of a metric."""
        return self.metrics[-1][name] if self.metrics else None

    def best(self, name: str) -> float | None:
        """The largest value of a metric."""
        return max((row[name] for row in self.metrics), default=None)
