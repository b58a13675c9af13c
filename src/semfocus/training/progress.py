"""What whoever follows a training sees of it, in this process or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semfocus.config import RunConfig
from semfocus.store import RunDirectory


@dataclass(frozen=True)
class MemberProgress:
    """One run as a callback sees it, from this process or another."""

    run: RunDirectory
    config: RunConfig
    last: dict[str, Any]  # the newest row of metrics.jsonl, if there is one


@dataclass(frozen=True)
class Progress:
    """What a callback receives after each evaluation, and at least every few seconds in between."""

    members: list[MemberProgress]
    going_on: int  # how many of them have not ended
    step: int
    total_steps: int
    steps_per_epoch: int
    seconds: float  # since this process began with the runs
    session_steps: int  # made in that time
    worker: str = ""  # the machine that trains, where that is another one


Callback = Callable[[Progress], None]
