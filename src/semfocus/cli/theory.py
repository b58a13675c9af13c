"""`semfocus theory`, `surface` and `sharpness`: where the paper's conditions hold, how loose its bounds are, and how
steep the loss around a trained model is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from semfocus.cli.compare import Compile
from semfocus.cli.figures import both_themes, name_figures
from semfocus.cli.shared import console, progress_bar
from semfocus.cli.speed import speed_command
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from semfocus.store import RunDirectory

app = typer.Typer(help="The paper's conditions and bounds: where they hold, how loose they are.", rich_markup_mode=None)

Runs = Annotated[list[str], typer.Argument(help="Run directories, or the beginnings of their ids.")]
Out = Annotated[Path | None, typer.Option(help="Where runs live. Default: SEMFOCUS_RUNS, else ./runs.")]
Figures = Annotated[Path | None, typer.Option(help="Where figures go. Default: figures/ beside the runs.")]
FigureDirectory = Annotated[Path, typer.Option("--out", help="Where the figures go.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
Seed = Annotated[int, typer.Option(help="Of the random directions, or of the search.")]
Rows = Annotated[int, typer.Option(help="Training rows the loss is taken over; 0: all of them.")]


@app.command("regions")
def regions_command(out: FigureDirectory = Path("figures")) -> None:
    """Draw where W < 1 and X < 1 (the paper's figures 21 and 22), and print how much of the plane that is.

    \b
    semfocus theory regions
    semfocus theory regions --out paper/figures
    """
    from rich.table import Table

    from semfocus.report.figures.theory import DISPERSIONS, SINK_RATIOS, draw_regions, share_where
    from semfocus.theory import region

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("delta full", "W < 1", *(f"X < 1, beta {beta:g}" for beta in SINK_RATIOS)):
        table.add_column(title, justify="right")
    for delta in DISPERSIONS:
        shares = [share_where(region(delta), "w")]
        shares += [share_where(region(delta, beta), "x") for beta in SINK_RATIOS]
        table.add_row(f"{delta:g}", *(f"{share:.1%}" for share in shares))
    typer.echo("Share of what one model can reach (c1 + c2 <= 1) in which the paper's condition holds:\n")
    console().print(table)
    name_figures(both_themes(lambda end, theme: [
        *draw_regions("w", out / f"regions-w{end}", theme=theme),
        *draw_regions("x", out / f"regions-x{end}", theme=theme),
    ]))  # fmt: skip


@app.command("looseness")
def looseness_command(
    runs: Annotated[list[str] | None, typer.Argument(help="Trained runs whose gradients to compare as well.")] = None,
    out: FigureDirectory = Path("figures"),
    store: Annotated[Path | None, typer.Option("--runs", help="Where runs live.")] = None,
    steps: Annotated[int, typer.Option(help="Of each search; fewer is faster and finds less.")] = 300,
    rows: Annotated[int, typer.Option(help="Single training rows of each run.")] = 16,
    seed: Seed = 0,
) -> None:
    """Search for inputs that come near each bound, and draw what they attain: 1 is tight, above 1 is refuted.

    About two minutes on one core. With RUNS also the gradients of trained models, as shares of their certificates.

    \b
    semfocus theory looseness
    semfocus theory looseness --steps 50
    semfocus theory looseness 1f0c 9a3e --rows 16
    """
    from semfocus.report.figures.theory import draw_attention_looseness, draw_model_looseness, draw_softmax_looseness
    from semfocus.theory.looseness import ATTENTION_SETTINGS, attention_looseness, softmax_looseness

    models = _model_looseness(runs or [], store, rows)
    wanted = 30 + len(ATTENTION_SETTINGS)
    with progress_bar("searching") as bar:
        softmax = [_counted(row, bar, i, wanted) for i, row in enumerate(softmax_looseness(seed=seed, steps=steps), 1)]
        attention = [
            _counted(row, bar, i, wanted)
            for i, row in enumerate(attention_looseness(seed=seed, steps=steps), 1 + len(softmax))
        ]

    def draw(end: str, theme: Any) -> list[Path]:
        written = draw_softmax_looseness(softmax, out / f"looseness-softmax{end}", theme=theme)
        written += draw_attention_looseness(attention, out / f"looseness-attention{end}", theme=theme)
        if models:
            written += draw_model_looseness(models, out / f"looseness-models{end}", theme=theme)
        return written

    name_figures(both_themes(draw))
    for form, share in _most(softmax, attention).items():
        typer.echo(f"{form}: at most {share:.3f} of it attained" + (", refuted" if share > 1.0001 else ""))


app.command("speed")(speed_command)


def surface_command(
    runs: Runs,
    grid: Annotated[int, typer.Option(help="Points along each direction; the paper's surfaces have 200.")] = 51,
    extent: Annotated[
        float | None,
        typer.Option(
            help="How far to go; 1 is as long as the parameters themselves. Default: 1; with --directions path a "
            "little more than the longest of the paths."
        ),
    ] = None,
    directions: Annotated[
        Literal["random", "path", "hessian"],
        typer.Option(help="random (the paper's), path (of training, needs --keep), hessian (its top two)."),
    ] = "random",
    rows: Rows = 1000,
    seed: Seed = 0,
    precision: Annotated[Literal["fp32", "tf32"], typer.Option(help="tf32 is faster on a GPU.")] = "fp32",
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
    from semfocus.landscape import SurfaceSettings, default_extent, measure_surface
    from semfocus.report.figures.landscape import draw_slopes
    from semfocus.report.figures.surfaces import draw_surfaces
    from semfocus.store import FIGURES, RunStore
    from semfocus.training import Runtime

    settings = SurfaceSettings(
        grid=grid, extent=extent, directions=directions, rows=_at_most(rows), seed=seed, precision=precision
    )
    runtime = Runtime(device=device, threads=threads, compile=compile)
    found = _found(runs, out)
    if extent is None:  # one for all, so that they can be compared
        settings = replace(settings, extent=max(default_extent(named.run, directions) for named in found))
    task, directory = _task(found), figures or RunStore(out).root / FIGURES
    surfaces = {}
    for named in found:
        with progress_bar(f"{named.label}, run {named.run.id}") as bar:
            surfaces[named.label] = measure_surface(named.run, settings, runtime, bar, again=again)
        typer.echo(f"{named.label}: {_surface_line(surfaces[named.label].payload)}")
    slopes = _grouped(found, [surface.payload for surface in surfaces.values()])
    title = f"{task}: training loss around the trained models (+), {directions} directions, one scale"
    name_figures(both_themes(lambda end, theme: [
        *draw_surfaces(surfaces, directory / f"surface-{task}-{directions}{end}", title=title, theme=theme),
        *draw_slopes(slopes, directory / f"slopes-{task}-{directions}{end}", title=f"{task}: slopes of the surface "
                     "inside growing squares", theme=theme),
    ]))  # fmt: skip


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
    from semfocus.report.figures.landscape import draw_sharpness
    from semfocus.store import FIGURES, RunStore
    from semfocus.training import Runtime

    found = _found(runs, out)
    task, directory = _task(found), figures or RunStore(out).root / FIGURES
    runtime, payloads = Runtime(device=device, threads=threads), []
    for named in found:
        payload = measure_sharpness(named.run, _at_most(rows), runtime, seed=seed)
        payloads.append(payload)
        typer.echo(f"{named.label}: epoch, gradient norm, largest Hessian eigenvalue")
        for line in zip(payload["epochs"], payload["gradient_norm"], payload["hessian_top"], strict=True):
            typer.echo("  ".join(f"{'not finite' if value is None else format(value, '.4g'):>12}" for value in line))
    title = f"{task}: gradient and curvature of the training loss along training"
    name_figures(both_themes(lambda end, theme: draw_sharpness(
                _grouped(found, payloads), directory / f"sharpness-{task}{end}", title=title, theme=theme
    )))  # fmt: skip


class _Named(NamedTuple):
    label: str  # the mechanism, and the seed where a mechanism comes twice
    mechanism: str
    run: RunDirectory


def _found(runs: Sequence[str], out: Path | None) -> list[_Named]:
    from semfocus.landscape.trained_model import find_run
    from semfocus.training.loading import config_of

    configs = {run: config_of(run) for run in (find_run(run, out) for run in runs)}
    mechanisms = [config.attention.mechanism for config in configs.values()]
    found: list[_Named] = []
    for run, config in configs.items():
        mechanism = config.attention.mechanism
        label = mechanism if mechanisms.count(mechanism) == 1 else f"{mechanism}, seed {config.seed}"
        twin = next((other.run.id for other in found if other.label == label), None)
        if twin is not None:
            raise UsageError(f"two of the runs are both {label}: {twin} and {run.id}; give one of them")
        found.append(_Named(label, mechanism, run))
    return found


def _grouped(found: Sequence[_Named], payloads: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Payloads by mechanism."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for named, payload in zip(found, payloads, strict=True):
        groups.setdefault(named.mechanism, []).append(payload)
    return groups


def _task(found: Sequence[_Named]) -> str:
    from semfocus.training.loading import config_of

    names = {Path(config_of(named.run).task.name).stem for named in found}
    if len(names) > 1:
        raise UsageError(f"these runs are of different tasks: {', '.join(sorted(names))}; draw each task apart")
    return names.pop()


def _surface_line(payload: dict[str, Any]) -> str:
    if payload["lowest"] is None:
        return "no loss on the grid is finite"
    steepest, extent = payload["per_distance"]["95"][-1], payload["extent"]
    lost = f", {payload['not_finite']} points not finite" if payload["not_finite"] else ""
    slope = "not finite" if steepest is None else f"{steepest:.3g}"
    return (
        f"losses {payload['lowest']:.4g} to {payload['highest']:.4g} up to {extent:g} along each direction{lost}; "
        f"95th percentile of slopes within {min(extent, payload['squares'][-1]):g}: {slope} per parameter distance"
    )


def _at_most(rows: int) -> int | None:
    """So many rows; None: all of them."""
    if rows < 0:
        raise UsageError(f"rows = {rows} must be the number of training rows to take, or 0 for all of them")
    return rows or None


def _model_looseness(runs: Sequence[str], store: Path | None, rows: int) -> dict[str, dict[str, float]]:
    if not runs:
        return {}
    from semfocus.landscape.groups import looseness
    from semfocus.landscape.trained_model import open_subject

    models: dict[str, dict[str, float]] = {}
    for named in _found(runs, store):
        subject = open_subject(named.run).first(rows)
        shares = looseness(subject.spec, subject.parameters[0], subject.rows)
        known = models.setdefault(named.mechanism, shares)
        models[named.mechanism] = {name: max(share, known.get(name, 0.0)) for name, share in shares.items()}
    if len({len(shares) for shares in models.values()}) > 1:
        raise UsageError("these runs have different numbers of blocks, so that their groups differ; give them apart")
    return models


def _most(*tables: Sequence[Any]) -> dict[str, float]:
    """The largest share of each form that was attained anywhere."""
    most: dict[str, float] = {}
    for row in (row for table in tables for row in table):
        for form, share in row.shares.items():
            most[form] = max(most.get(form, 0.0), share)
    return most


def _counted(row: Any, bar: Callable[[int, int], None], done: int, wanted: int) -> Any:
    bar(done, wanted)
    return row
