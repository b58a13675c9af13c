"""`semfocus lengths`: how accurate trained models are on longer sequences than they were trained on."""

from __future__ import annotations

from typing import Annotated

import typer

from semfocus.cli.shared import Device, Out, Threads, progress_bar, say


def lengths_command(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or the beginnings of their ids.")],
    length: Annotated[
        list[int] | None, typer.Option(help="A length to measure; may be given again. Default: N, 2 N, ... 16 N.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Examples of each length, from the split `test`.")] = 500,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure accuracy by length, from the longest length N of training up to 16 N, and keep it with the run.

    Interrupt it whenever you like: the same command goes on where it was.

    \b
    semfocus compare copy --attention full,topk:5 --set task.options.length=64 --set task.lengths=1-64
    semfocus lengths 1f0c
    semfocus lengths 1f0c --length 100 --length 500
    """
    from semfocus.diagnostics.lengths import measure_lengths
    from semfocus.store import RunStore
    from semfocus.training import Runtime
    from semfocus.training.loading import config_of

    runtime = Runtime(device=device, threads=threads)
    for name in runs:
        run = RunStore(out).find(name)
        config = config_of(run)
        with progress_bar(f"{config.task.name}, run {run.id}") as bar:
            curve = measure_lengths(run, length, rows, runtime, on_progress=bar)
        attention = config.attention
        say(f"{run.id}: {config.task.name}, {attention.mechanism}, {attention.normaliser}, accuracy by length")
        for own, point in sorted(curve.points.items()):
            say(f"  {own:>6}  {point.accuracy:.1%}" if point.accuracy is not None else f"  {own:>6}  -")
