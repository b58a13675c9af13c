"""`semfocus surface` and `semfocus sharpness`: how steep the loss around trained models is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semfocus.cli.compare import Compile
from semfocus.cli.shared import name_figures, progress_bar, say

Runs = Annotated[list[str], typer.Argument(help="Run directories, or the beginnings of their ids.")]
Out = Annotated[
    Path | None, typer.Option(help="The directory in which runs are kept. Default: SEMFOCUS_RUNS, else ./runs.")
]
Figures = Annotated[Path | None, typer.Option(help="The folder for figures. Default: figures/ beside the runs.")]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="The number of CPU threads.")]
Seed = Annotated[int, typer.Option(help="The seed of the random directions, or of the search.")]
Rows = Annotated[int, typer.Option(help="How many training rows the loss is taken over; 0 means all of them.")]


def surface_command(
    runs: Runs,
    grid: Annotated[
        int, typer.Option(help="The number of points along each direction; the paper's surfaces have 200.")
    ] = 51,
    extent: Annotated[
        float | None,
        typer.Option(
            help="How far to go; 1 is as long as the parameters themselves. Default: 1; with --directions path a "
            "little more than the longest of the paths."
        ),
    ] = None,
    directions: Annotated[
        Literal["random", "path", "hessian"],
        typer.Option(
            help="The plane: random (the paper's), path (of training, needs --keep) or hessian (its top two)."
        ),
    ] = "random",
    rows: Rows = 1000,
    seed: Seed = 0,
    precision: Annotated[
        Literal["fp32", "tf32"], typer.Option(help="The precision of products; tf32 is faster on a GPU.")
    ] = "fp32",
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is there already.")] = False,
    out: Out = None,
    figures: Figures = None,
    device: Device = "auto",
    threads: Threads = None,
    compile: Compile = "auto",
) -> None:
    """Measure the loss around trained models, draw the surfaces with one scale, and their slopes.

    Interrupt it whenever you like: the same command goes on where it was. Surfaces of other settings stay, and pages
    show the one of the finest grid.

    \b
    semfocus surface 1f0c 9a3e
    semfocus surface 1f0c 9a3e --directions path
    semfocus surface 1f0c 9a3e --grid 200 --rows 0 \\
        --precision tf32 --device cuda
    """
    from semfocus.landscape import SurfaceSettings, measure_surface
    from semfocus.landscape.runs import by_mechanism, label_runs, row_limit, shared_task, with_shared_extent
    from semfocus.report.figures.landscape import write_surface_figures
    from semfocus.report.terminal.tables import surface_line
    from semfocus.store import FIGURES, RunStore
    from semfocus.training import Runtime

    settings = SurfaceSettings(
        grid=grid, extent=extent, directions=directions, rows=row_limit(rows), seed=seed, precision=precision
    )
    runtime = Runtime(device=device, threads=threads, compile=compile)
    chosen = label_runs(runs, out)
    settings, task = with_shared_extent(settings, chosen), shared_task(chosen)
    surfaces = {}
    for one in chosen:
        with progress_bar(f"{one.label}, run {one.run.id}") as bar:
            surfaces[one.label] = measure_surface(one.run, settings, runtime, bar, again=again)
        say(f"{one.label}: {surface_line(surfaces[one.label])}")
    slopes = by_mechanism(chosen, [surface.meta for surface in surfaces.values()])
    name_figures(write_surface_figures(surfaces, slopes, figures or RunStore(out).root / FIGURES, task))


def sharpness_command(
    runs: Runs,
    rows: Rows = 1000,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure gradient and largest Hessian eigenvalue at every checkpoint that a run kept (train with --keep).

    \b
    semfocus compare even_pairs --quick --keep ladder
    semfocus sharpness 1f0c 9a3e --rows 200
    """
    from semfocus.landscape import measure_sharpness
    from semfocus.landscape.runs import by_mechanism, label_runs, row_limit, shared_task
    from semfocus.report.figures.landscape import write_sharpness_figures
    from semfocus.report.terminal.tables import sharpness_lines
    from semfocus.store import FIGURES, RunStore
    from semfocus.training import Runtime

    chosen = label_runs(runs, out)
    task, runtime, measured = shared_task(chosen), Runtime(device=device, threads=threads), []
    for one in chosen:
        measured.append(measure_sharpness(one.run, row_limit(rows), runtime, seed=seed))
        say(f"{one.label}: epoch, gradient norm, largest Hessian eigenvalue")
        for line in sharpness_lines(measured[-1]):
            say(line)
    directory = figures or RunStore(out).root / FIGURES
    name_figures(write_sharpness_figures(by_mechanism(chosen, measured), directory, task))
