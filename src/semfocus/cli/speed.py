"""`semfocus theory speed`: what was measured on how models attend, against how soon they learn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.figures import both_themes, name_figures
from semfocus.cli.shared import console

if TYPE_CHECKING:
    from semfocus.analysis.consistent_settings import LeftOut
    from semfocus.analysis.correlation import Correlation


def speed_command(
    store: Annotated[Path | None, typer.Option("--runs", help="Where runs live. Default: SEMFOCUS_RUNS.")] = None,
    measure: Annotated[
        Literal["dispersion", "masks"],
        typer.Option(help="What to relate: the ratio of dispersions, or the share of kept keys that stay under noise."),
    ] = "dispersion",
    mechanism: Annotated[str, typer.Option(help="What to hold against full attention.")] = "topk:5",
    percentile: Annotated[
        Literal["50", "75", "90", "95", "100"], typer.Option(help="Of the queries, for dispersion.")
    ] = "95",
    out: Annotated[Path, typer.Option("--out", help="Where the figures go.")] = Path("figures"),
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
    from semfocus.store import RunStore

    if measure == "masks":
        _masks(RunStore(store), mechanism, out)
    else:
        _dispersion(RunStore(store), mechanism, percentile, out)


def _dispersion(store: Any, mechanism: str, percentile: str, out: Path) -> None:
    from semfocus.analysis.dispersion_vs_speedup import WHENS, dispersion_against_speed, drawn_points, stored_points
    from semfocus.report.figures.speedup_scatter import draw_dispersion_vs_speedup

    points = stored_points(store, mechanism, percentile)
    rows = []
    for point in points:
        ratios = ["" if ratio is None else f"{ratio:.3g}" for ratio in (point.start, point.end)]
        counts = dict.fromkeys((point.start_seeds, point.end_seeds))
        seeds = f"{' / '.join(map(str, counts))} of {point.speed_up.pairs}"
        rows.append((point.task, *ratios, point.speed_up.ratio.text, seeds))
    _print(("task", "ratio, start", "ratio, end", "speed-up", "seeds measured"), rows)
    _name_left_out(one for point in points for one in point.left_out)
    found = {when: dispersion_against_speed(points, when) for when in WHENS}
    _say({f"{when} of training": correlation for when, correlation in found.items()})
    name_figures(both_themes(lambda end, theme: [
        path for when, correlation in found.items() if drawn_points(points, when)
        for path in draw_dispersion_vs_speedup(drawn_points(points, when), correlation,
                                               out / f"dispersion-speed-{when}{end}", when=when, theme=theme)
    ]))  # fmt: skip


def _masks(store: Any, mechanism: str, out: Path) -> None:
    from semfocus.analysis.masks_vs_speedup import OUTCOMES, masks_against, stored_mask_points
    from semfocus.report.figures.speedup_scatter import draw_masks_vs_speedup

    found = stored_mask_points(store, mechanism)
    rows = []
    for point in found.points:
        kept = "" if point.kept is None else f"{point.kept:.1%}"
        epochs = f"{'' if point.all_reached else '>= '}{point.epochs:.3g}"
        rows.append((point.task, kept, epochs, point.speed_up.ratio.text, f"{point.seeds} of {point.speed_up.pairs}"))
    _print(("task", "keys that stay", "epochs to 95 %", "speed-up", "seeds measured"), rows)
    about = ", ".join(f"{name} = {value}" for name, value in found.settings.items() if value is not None)
    typer.echo(f"\nKept keys of {mechanism} that stay, mean over the sizes of noise ({about}).")
    _name_left_out(one for point in found.points for one in point.left_out)
    _say({f"masks against {outcome}": masks_against(found.points, outcome) for outcome in OUTCOMES})
    name_figures(both_themes(lambda end, theme: draw_masks_vs_speedup(
        found.points, out / f"masks-speed{end}", mechanism=mechanism, theme=theme
    )))  # fmt: skip


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from semfocus.report.tables import TextTable
    from semfocus.report.terminal.tables import rich_table

    console().print(rich_table(TextTable("", titles, rows)))


def _name_left_out(left_out: Iterable[LeftOut]) -> None:
    for record, why in left_out:
        task = record.config["task"]["name"]
        typer.echo(f"left out: run {record.id} ({task}, {record.mechanism}, seed {record.seed}), measured with {why}")


def _say(found: dict[str, Correlation]) -> None:
    """The correlations; and, where there are so few tasks that nothing could come of it, that."""
    from semfocus.analysis.dispersion_vs_speedup import smallest_p
    from semfocus.analysis.multiple import ALPHA
    from semfocus.report.text import correlation_text

    typer.echo()
    for name, correlation in found.items():
        typer.echo(f"{name}: {correlation_text(correlation)}")
    few = min((one.items for one in found.values() if one.rho is not None), default=0)
    if few and smallest_p(few) > ALPHA:
        typer.echo(
            f"With {few} tasks even a perfect order has p = {smallest_p(few):.2g}: it takes more to show anything."
        )
