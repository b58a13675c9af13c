"""`semfocus theory`: where the paper's conditions hold, how loose its bounds are, and what predicts a speed-up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semfocus.cli.landscape import Seed
from semfocus.cli.shared import console, name_figures, progress_bar
from semfocus.cli.speed import speed_command

app = typer.Typer(help="The paper's conditions and bounds: where they hold, how loose they are.", rich_markup_mode=None)

FigureDirectory = Annotated[Path, typer.Option("--out", help="Where the figures go.")]


@app.command("regions")
def regions_command(out: FigureDirectory = Path("figures")) -> None:
    """Draw where W < 1 and X < 1 (the paper's figures 21 and 22), and print how much of the plane that is.

    \b
    semfocus theory regions
    semfocus theory regions --out paper/figures
    """
    from semfocus.report.figures.theory import write_region_figures
    from semfocus.report.terminal.tables import region_table

    typer.echo("Share of what one model can reach (c1 + c2 <= 1) in which the paper's condition holds:\n")
    console().print(region_table())
    name_figures(write_region_figures(out))


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
    from semfocus.landscape.runs import label_runs, looseness_by_mechanism
    from semfocus.report.figures.theory import write_looseness_figures
    from semfocus.theory.looseness import search_looseness

    models = looseness_by_mechanism(label_runs(runs or [], store), rows)
    with progress_bar("searching") as bar:
        found = search_looseness(seed=seed, steps=steps, progress=bar)
    name_figures(write_looseness_figures(found, models, out))
    for form, share in found.largest_shares().items():
        typer.echo(f"{form}: at most {share:.3f} of it attained" + (", refuted" if share > 1.0001 else ""))


app.command("speed")(speed_command)
