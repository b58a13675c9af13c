"""What an experiment takes, printed before it begins: for `--dry-run` of `semfocus compare` and `semfocus run`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semfocus.cli.shared import console, say

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.experiments.run import Plan
    from semfocus.training import Runtime


def heading(job: Plan) -> str:
    """`From one key to all: 42 runs, 3 there, 39 to train`."""
    from semfocus.report.text import counted

    there = len(job.jobs) - len(job.waiting)
    return f"{job.experiment.title}: {counted(len(job.jobs), 'run')}, {there} there, {len(job.waiting)} to train"


def print_estimates(jobs: Sequence[Plan], runtime: Runtime, as_json: bool, executor: str = "auto") -> None:
    """Print what experiments take that follow one another; as JSON a list, where there are several."""
    if as_json and len(jobs) > 1:
        say(json.dumps([_estimate_values(job, runtime, executor) for job in jobs], indent=2))
        return
    for place, job in enumerate(jobs):
        if place:
            say("")
        print_estimate(job, runtime, as_json, executor)


def _estimate_values(job: Plan, runtime: Runtime, executor: str) -> dict[str, Any]:
    from semfocus.experiments.estimate import SOURCES, estimate

    at_a_time, machines, runtime = _machines(job, executor, runtime)
    cost = estimate(job, runtime)
    total = {"steps": cost.steps, "seconds": cost.seconds, "bytes": cost.bytes, "free": cost.free}
    how = {source: SOURCES[source] for source in cost.sources}
    where = {"machines": machines, "at_a_time": at_a_time} if machines else {}
    return {"study": job.experiment.name, **total, **where, "time": how, "tasks": cost.by_task()}


def print_estimate(job: Plan, runtime: Runtime, as_json: bool, executor: str = "auto") -> None:
    """Print the runs, steps, time and disk space of an experiment. Nothing is trained, and nothing written."""
    from semfocus.experiments.estimate import SOURCES, estimate
    from semfocus.report.text import counted, duration

    if as_json:
        say(json.dumps(_estimate_values(job, runtime, executor), indent=2))
        return
    jobs, machines, runtime = _machines(job, executor, runtime)
    cost = estimate(job, runtime)
    rows = cost.by_task()
    say(f"{heading(job)}\n")
    console().print(_size_table(rows))
    if cost.steps:
        known = cost.sources.items()
        how = "; ".join(f"{SOURCES[source]} ({counted(count, 'shape')})" for source, count in known)
        sure = "at most" if cost.may_stop_early else "about"
        shared = f", {duration(cost.seconds / jobs)} at best with {jobs} at a time" if jobs > 1 else ""
        say(f"\n{cost.steps:,} steps in all: {sure} {duration(cost.seconds)} one after the other{shared}")
        say(f"time {how}")
    if machines:
        say(f"on {machines}")
    say(f"{_room(cost.bytes)} of disk space at most; {_room(cost.free)} free at {job.store.root}")


def _machines(job: Plan, executor: str, runtime: Runtime) -> tuple[int, str, Runtime]:
    """How many cohorts train at a time, on which machines, and a runtime by which a step can be measured here."""
    from dataclasses import replace

    from semfocus.errors import UsageError
    from semfocus.execution.executor import AUTO, make_executor
    from semfocus.report.text import counted

    machines, cohorts = None, 0
    if executor != AUTO:
        chosen = make_executor(executor, runtime)
        try:
            machines = chosen.machines()
            cohorts = len(chosen.form_cohorts(job.jobs)) if machines else 0
        finally:
            chosen.close()
    if machines is None:  # this one, whose cohorts share its GPU if it has one
        return runtime.num_jobs() if runtime.torch_device().type == "cpu" else 1, "", runtime
    try:
        runtime = replace(runtime, device=machines.device)
        runtime.torch_device()
        where = ""
    except UsageError:  # earlier runs may tell; else the CPU of this machine is all that can be measured
        runtime = replace(runtime, device="cpu")
        where = f"; measured on this machine, which has no {machines.device}: expect less"
    at_a_time = min(machines.slots, cohorts)  # room for more than there are makes nothing quicker
    return at_a_time, f"{machines.text}; {counted(cohorts, 'cohort')}, {at_a_time} at a time{where}", runtime


def _size_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semfocus.report.text import duration

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("task", "runs", "there", "to train", "steps a run", "steps in all", "time", "disk"):
        table.add_column(title, justify="left" if title == "task" else "right", no_wrap=True)
    for row in rows:
        least, most = row["steps_per_run"]
        span = f"{least:,}" if least == most else f"{least:,}-{most:,}"
        cells = [str(row[name]) for name in ("runs", "there", "waiting")]
        table.add_row(row["task"], *cells, span, f"{row['steps']:,}", duration(row["seconds"]), _room(row["bytes"]))
    return table


def _room(count: int) -> str:
    """`74 MB`, `1.2 GB`."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
