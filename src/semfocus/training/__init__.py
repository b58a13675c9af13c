"""HOW it learns: cohorts of runs in lockstep, from configuration to run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.training.loop import Progress
    from semfocus.training.runtime import Runtime
    from semfocus.training.saved import load
    from semfocus.training.session import RunOutcome, train
    from semfocus.training.signals import Interrupted

__all__ = ["Interrupted", "Progress", "RunOutcome", "Runtime", "load", "train"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Interrupted": "semfocus.training.signals",
        "Progress": "semfocus.training.loop",
        "RunOutcome": "semfocus.training.session",
        "Runtime": "semfocus.training.runtime",
        "load": "semfocus.training.saved",
        "train": "semfocus.training.session",
    },
)
