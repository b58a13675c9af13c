"""`semfocus theory`: where the paper's conditions hold, how loose its bounds are, and what predicts a speed-up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semfocus.cli.landscape import Seed
from semfocus.cli.shared import console, name_figures, progress_bar, say

if TYPE_CHECKING:
    from semfocus.analysis.results import Results

app = typer.Typer(help="The paper's conditions and bounds: where they hold, how loose they are.", rich_markup_mode=None)

FigureDirectory = Annotated[Path, typer.Option("--out", help="The folder for the figures.")]


@app.command("regions")
def regions_command(out: FigureDirectory = Path("figures")) -> None:
    """Draw where W < 1 and X < 1 (the paper's figures 21 and 22), and print how much of the plane that is.

    \b
    semfocus theory regions
    semfocus theory regions --out paper/figures
    """
    from semfocus.report.figures.theory import write_region_figures
    from semfocus.report.terminal.tables import region_table

    say("Share of what one model can reach (c1 + c2 <= 1) in which the paper's condition holds:\n")
    console().print(region_table())
    name_figures(write_region_figures(out))


@app.command("looseness")
def looseness_command(
    runs: Annotated[list[str] | None, typer.Argument(help="Trained runs, whose gradients to compare as well.")] = None,
    out: FigureDirectory = Path("figures"),
    store: Annotated[Path | None, typer.Option("--runs", help="The directory in which runs are kept.")] = None,
    steps: Annotated[int, typer.Option(help="The steps of each search; fewer are faster and find less.")] = 300,
    rows: Annotated[int, typer.Option(help="How many single training rows of each run to take.")] = 16,
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
        looseness = search_looseness(seed=seed, steps=steps, progress=bar)
    name_figures(write_looseness_figures(looseness, models, out))
    for form, share in looseness.largest_shares().items():
        say(f"{form}: at most {share:.3f} of it attained" + (", refuted" if share > 1.0001 else ""))


@app.command("speed")
def speed_command(
    store: Annotated[
        Path | None, typer.Option("--runs", help="The directory in which runs are kept. Default: SEMFOCUS_RUNS.")
    ] = None,
    measure: Annotated[
        Literal["dispersion", "masks"],
        typer.Option(help="What to relate: the ratio of dispersions, or the share of kept keys that stay under noise."),
    ] = "dispersion",
    mechanism: Annotated[str, typer.Option(help="The mechanism to hold against full attention.")] = "topk:5",
    percentile: Annotated[
        Literal["50", "75", "90", "95", "100"],
        typer.Option(help="The percentile of the queries at which dispersion is taken."),
    ] = "95",
    out: Annotated[Path, typer.Option("--out", help="The folder for the figures.")] = Path("figures"),
) -> None:
    """Draw what was measured against how soon models learn, a point a task, with rank correlations and intervals.

    Dispersion: that of the k heaviest keys of MECHANISM over that of all keys of full attention, at the start of
    training (what could predict a speed-up) and at its end, against the speed-up. Masks: the share of the kept keys of
    MECHANISM that stay under noise, against its epochs to 95 % and its speed-up. Both from what `diagnose` has stored;
    runs measured in another way than most (rows, split, k, noise) are left out, and named.

    \b
    semfocus compare even_pairs --keep 0      (and so for other tasks)
    semfocus diagnose RUN ... --checkpoint all --mask-stability
    semfocus theory speed
    semfocus theory speed --measure masks --mechanism topk:5
    """
    from semfocus.analysis.results import Results
    from semfocus.store import RunStore

    results = Results.load(RunStore(store))
    if measure == "masks":
        _masks(results, mechanism, out)
    else:
        _dispersion(results, mechanism, percentile, out)


def _dispersion(results: Results, mechanism: str, percentile: str, out: Path) -> None:
    from semfocus.analysis.dispersion_vs_speedup import WHENS, dispersion_against_speed, drawn_points, stored_points
    from semfocus.report.figures.drawing import both_themes
    from semfocus.report.figures.scatter import draw_dispersion_vs_speedup
    from semfocus.report.terminal.tables import correlation_lines, dispersion_table, left_out_lines

    points = stored_points(results, mechanism, percentile)
    correlations = {when: dispersion_against_speed(points, when) for when in WHENS}
    lines = correlation_lines({f"{when} of training": correlation for when, correlation in correlations.items()})
    console().print(dispersion_table(points))
    _print([*left_out_lines(points), "", *lines])
    name_figures(both_themes(lambda end, theme: [
        path for when, correlation in correlations.items() if drawn_points(points, when)
        for path in draw_dispersion_vs_speedup(drawn_points(points, when), correlation,
                                               out / f"dispersion-speed-{when}{end}", when=when, theme=theme)
    ]))  # fmt: skip


def _masks(results: Results, mechanism: str, out: Path) -> None:
    from semfocus.analysis.masks_vs_speedup import OUTCOMES, masks_against, stored_mask_points
    from semfocus.report.figures.drawing import both_themes
    from semfocus.report.figures.scatter import draw_masks_vs_speedup
    from semfocus.report.terminal.tables import correlation_lines, left_out_lines, mask_line, mask_table

    measured = stored_mask_points(results, mechanism)
    points = measured.points
    lines = correlation_lines({f"masks against {outcome}": masks_against(points, outcome) for outcome in OUTCOMES})
    console().print(mask_table(points))
    _print(["", mask_line(measured, mechanism), *left_out_lines(points), "", *lines])
    name_figures(both_themes(lambda end, theme: draw_masks_vs_speedup(
        points, out / f"masks-speed{end}", mechanism=mechanism, theme=theme
    )))  # fmt: skip


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)
