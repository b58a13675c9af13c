"""What becomes of the runs of a worker that was lost: out once more, in two halves, or given up."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from semfocus.execution.cluster.flights import Flight, Load, got_further
from semfocus.execution.processes import LostProcess
from semfocus.training.session import Job

LOG_LINES = 5  # of a failed worker that are shown at once


class LostWorker(LostProcess):
    """A worker that ended without a word; its cohort goes on elsewhere."""


def after_loss(load: Load, jobs: list[Job], retries: int, split: bool, memory: str) -> tuple[list[Load], str]:
    """What goes out again of these runs, which are left of a load, and how it is told; nothing: they are given up.

    Losses count only while no run of the load gets further.
    """
    load.losses = 1 if got_further(load, jobs) else load.losses + 1
    load.jobs = jobs
    if load.losses < retries and not (split and len(jobs) > 1):
        return [load], "they go on from their checkpoints elsewhere"
    if len(jobs) > 1:
        half = len(jobs) // 2
        halves = [Load(jobs[:half]), Load(jobs[half:])]
        return halves, f"they are tried again in two halves (losses in a row: {load.losses}{memory})"
    return [], f"given up after {load.losses} losses in a row"


def tell_of_loss(flight: Flight, node: str, jobs: Sequence[Job], why: str, then: str, where: Path | None) -> None:
    """Warn, with the end of the worker's log, which is kept at `where`."""
    shown = flight.log.strip().splitlines()[-LOG_LINES:]
    told = "".join(f"\n    {line}" for line in shown) + (f"\n    (all of it: {where})" if where else "")
    ids = ", ".join(job.id for job in jobs[:4]) + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")
    warnings.warn(f"the worker on {node} that trained {ids} {why}: {then}{told}", LostWorker, stacklevel=3)
