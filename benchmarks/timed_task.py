"""A plugin for benchmarks/cluster.py: training that takes as long as it is told to, and no processor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from semfocus import register_objective, register_task
from semfocus.tasks.even_pairs import EvenPairs
from semfocus.training.objective import Classification


@register_objective
class Waiting(Classification):
    """Each step waits for a fifth of a second: five of them are a run of one second."""

    name = "waiting"

    def loss(self, logits: Any, targets: Any) -> Any:
        time.sleep(0.2)
        return super().loss(logits, targets)


@register_task
@dataclass(frozen=True, kw_only=True)
class Timed(EvenPairs):
    """Even Pairs by the clock."""

    name = "timed"
    objective = "waiting"
