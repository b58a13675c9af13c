"""HOW it learns: cohorts of runs in lockstep, from configuration to run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.training.loading import checkpoint_epochs, load
    from semfocus.training.progress import Progress
    from semfocus.training.runtime import Runtime, parse_epochs, parse_shares
    from semfocus.training.signals import Interrupted

__all__ = ["Interrupted", "Progress", "Runtime", "checkpoint_epochs", "load", "parse_epochs", "parse_shares"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Interrupted": "semfocus.training.signals",
        "Progress": "semfocus.training.progress",
        "Runtime": "semfocus.training.runtime",
        "checkpoint_epochs": "semfocus.training.loading",
        "load": "semfocus.training.loading",
        "parse_epochs": "semfocus.training.runtime",
        "parse_shares": "semfocus.training.runtime",
    },
)
