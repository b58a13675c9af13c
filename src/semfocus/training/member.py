"""One run of a cohort while it trains: where it stands, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semfocus.config import RunConfig
from semfocus.store import RunWriter
from semfocus.tasks import Task
from semfocus.training.objective import LOSS, Learned


@dataclass
class Member:
    """One run of a cohort while it trains."""

    config: RunConfig
    task: Task
    writer: RunWriter
    slot: int  # its index in the cohort
    best_value: float | None = None  # of the metric that patience looks at
    best_step: int = 0
    last: dict[str, Any] = field(default_factory=dict)  # the newest row of metrics.jsonl

    def ending(
        self, step: int, total: int, per_epoch: int, learned: Learned, watched: Learned
    ) -> tuple[str, str | None]:
        """The state after the evaluation at this step, and the reason why the run ends; no reason: it continues."""
        training = self.config.training
        goal = learned.at(training.stop_accuracy)
        if training.stop_accuracy is not None and goal.reached(self.last[goal.column]):
            return "done", f"{goal.label} reached {goal.threshold}"
        if training.patience is not None and step - self.best_step >= training.patience * per_epoch:
            return "done", f"no gain in {watched.label} for {training.patience} epochs"
        if step < total:
            return "running", None
        finite = math.isfinite(self.last[LOSS.column("train")])  # no step follows the last update to show it
        return ("done", "all epochs made") if finite else ("diverged", "the loss is not finite after the last step")


def best_value(meta: Mapping[str, Any]) -> float | None:
    """The best value that a checkpoint records; None before the first evaluation."""
    value = meta["best_value"] if "best_value" in meta else meta["best_accuracy"]  # the name in semfocus 0.1
    return None if value is None else float(value)
