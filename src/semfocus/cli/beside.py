"""`semfocus theory smoothness` and `positional-semantic`: theory of others beside ours, measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.shared import Device, DryRun, Threads, name_figures, progress_bar

if TYPE_CHECKING:
    from semfocus.experiments.solvable import Row, SolvableStudy

Figures = Annotated[Path, typer.Option("--out", help="The folder for the figures.")]
SEARCHED = (2, 4, 8, 16, 32)  # lengths


def smoothness_command(
    runs: Annotated[list[str] | None, typer.Argument(help="Trained runs; none: the bounds alone.")] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="A number of tokens; may be given again. Default: 10, 20, ... 600.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Examples of each length, from the split `test`.")] = 4,
    steps: Annotated[
        int, typer.Option(help="The steps of each search for inputs near the bounds; 0: no search.")
    ] = 150,
    out: Figures = Path("figures"),
    store: Annotated[Path | None, typer.Option("--runs", help="The directory in which runs are kept.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure how the exact local Lipschitz constant of attention grows with the length, beside the bounds.

    Of trained runs: power iteration on the Jacobian of each attention layer, with the chosen keys held fixed; kept with
    the run length by length, so that the same command goes on where it was. Without runs: the sqrt(n) bound of arXiv
    2312.14820, the certified one, and what inputs attain.

    \b
    semfocus theory smoothness
    semfocus theory smoothness 1f0c 9a3e --length 10 --length 40 --length 160
    """
    from semfocus.report.figures.drawing import both_themes
    from semfocus.report.figures.smoothness import GAMMAS, draw_bounds
    from semfocus.theory.smoothness import steepest_frobenius

    if runs:
        _measure(runs, length, rows, out, store, device, threads)
        return
    searched: dict[float, dict[int, float]] = {}
    with progress_bar("searching") as bar:
        for place, gamma in enumerate(GAMMAS if steps else ()):
            bar(place, len(GAMMAS))
            searched[gamma] = {n: steepest_frobenius(n, gamma=gamma, steps=steps) for n in SEARCHED}
    _print_bounds(searched)
    name_figures(both_themes(lambda end, theme: draw_bounds(searched, out / f"smoothness-bounds{end}", theme=theme)))


def _measure(
    names: list[str],
    lengths: list[int] | None,
    rows: int,
    out: Path,
    store: Path | None,
    device: str,
    threads: int | None,
) -> None:
    from semfocus.diagnostics.smoothness import LENGTHS, measure_smoothness
    from semfocus.landscape.runs import by_mechanism, label_runs, shared_task
    from semfocus.report.figures.drawing import both_themes
    from semfocus.report.figures.smoothness import draw_growth
    from semfocus.training import Runtime

    labelled, runtime = label_runs(names, store), Runtime(device=device, threads=threads)
    task, measured = shared_task(labelled), []
    for one in labelled:
        with progress_bar(f"{task}, {one.label}") as bar:
            own = measure_smoothness(one.run, lengths or LENGTHS, rows, runtime, on_progress=bar)
        measured.append(own)
        exponent = "-" if own.exponent is None else f"{own.exponent:+.3f}"
        typer.echo(f"{one.run.id}: {task}, {one.label}, exponent {exponent}")
        for n, point in sorted(own.points.items()):
            settled = "" if point.settled == 1 else f", {1 - point.settled:.0%} of the iterations not settled"
            typer.echo(
                f"  {n:>5}  exact {point.constant:<8.3g} certified {point.certified:<8.3g} sqrt(n) {point.sqrt_n:.3g}"
                f"{settled}"
            )
    groups = by_mechanism(labelled, measured)
    title = f"{task}: exact local Lipschitz constants of trained attention layers, {len(labelled)} runs"
    name_figures(
        both_themes(lambda end, theme: draw_growth(groups, out / f"smoothness-{task}{end}", title=title, theme=theme))
    )


def _print_bounds(searched: dict[float, dict[int, float]]) -> None:
    from semfocus.theory.smoothness import frobenius_bound, lone_tokens, sqrt_n_bound

    typer.echo("full attention, tokens of norm 1, V = 1; search: gradient ascent over tokens, W and directions\n")
    typer.echo(f"{'|W|':>5} {'tokens':>7} {'search':>8} {'lone':>8} {'certified':>10} {'sqrt(n)':>9}")
    for gamma, found in searched.items():
        for n in (*SEARCHED, 100, 1000):
            best = f"{found[n]:.3f}" if n in found else ""
            lone, ours = lone_tokens(n, gamma=gamma).constant, frobenius_bound(n, gamma=gamma)
            typer.echo(f"{gamma:>5g} {n:>7} {best:>8} {lone:>8.3f} {ours:>10.3f} {sqrt_n_bound(n, gamma=gamma):>9.3f}")


def positional_semantic_command(
    scale: Annotated[
        Literal["paper", "quick", "smoke"], typer.Option(help="The source's sizes, smaller ones, or a moment's.")
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(help="How many seeds. Default: 10; of smoke 2.")] = None,
    tokens: Annotated[
        int, typer.Option(help="Tokens of an example. With 2 it is the source's model, with full attention alone.")
    ] = 4,
    out: Annotated[Path, typer.Option("--out", help="The folder for results and figures.")] = Path("solvable"),
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the transitions as JSON.")] = False,
) -> None:
    """Train a solvable attention layer that learns by position or by meaning, full and top-k, over sample ratios.

    The model of arXiv 2402.03902, on a CPU. Says at which ratio of examples to dimensions each way to attend turns from
    position to meaning. Interrupt it whenever you like: the same command goes on where it was.

    \b
    semfocus theory positional-semantic --scale smoke
    semfocus theory positional-semantic --tokens 2 --dry-run
    """
    from semfocus.experiments.solvable import SolvableStudy
    from semfocus.report.text import duration

    study = SolvableStudy.at_scale(scale, seeds, tokens)
    left = study.left(out)
    if dry_run:
        there = len(study.cells) - len(left)
        typer.echo(f"{len(study.cells)} data sets, {there} there, {len(left)} to train on")
        typer.echo(f"about {duration(study.seconds(out))} on this machine")
        return
    with progress_bar("positional or semantic") as bar:
        rows = study.run(out, bar)
    _report(study, rows, out, as_json)


def _report(study: SolvableStudy, rows: list[Row], out: Path, as_json: bool) -> None:
    from semfocus.analysis.transition import compare_transitions, transitions
    from semfocus.experiments.solvable import results
    from semfocus.report.figures.drawing import both_themes
    from semfocus.report.figures.positional_semantic import draw_overlaps

    answers = []
    for target in study.targets:
        own = results(rows, target)
        for mechanism in study.mechanisms:
            turns, test = sorted(transitions(own, mechanism).values()), compare_transitions(own, mechanism)
            answers.append({
                "target": target, "mechanism": mechanism, "seeds": len(turns),
                "by_meaning_at_every_ratio": turns.count(0.0), "by_position_at_the_last": turns.count(math.inf),
                "turns_at": [turn for turn in turns if 0 < turn < math.inf],
                "earlier_than_full": test.earlier, "later_than_full": test.later, "p": test.p,
            })  # fmt: skip
    if as_json:
        typer.echo(json.dumps(answers, indent=2))
    else:
        typer.echo("from how many examples a dimension on meaning has the larger overlap, over seeds\n")
        for one in answers:
            typer.echo(_sentence(one))
    for target in study.targets:
        title = f"Target: {target}; lower of the two minima, median and quartiles over {len(study.seeds)} seeds, L = "
        name = f"overlaps-{target.replace(':', '-')}"
        name_figures(both_themes(lambda end, theme, target=target, title=title, name=name: draw_overlaps(
            results(rows, target), study.mechanisms, out / f"{name}{end}",
            title=f"{title}{study.setup.tokens}, d = {study.setup.width}", theme=theme,
        )))  # fmt: skip


def _sentence(one: dict[str, Any]) -> str:
    """`target full, topk:2: at 0.12 to 0.22 in 4 seeds, at every ratio in 6; earlier than full in 10, ...`."""
    turns, parts = one["turns_at"], []
    if turns:
        parts.append(f"at {turns[0]:.2g} to {turns[-1]:.2g} in {len(turns)} seeds")
    parts += [f"at every ratio in {one['by_meaning_at_every_ratio']}"] if one["by_meaning_at_every_ratio"] else []
    parts += [f"at none in {one['by_position_at_the_last']}"] if one["by_position_at_the_last"] else []
    text = f"target {one['target']}, {one['mechanism']}: {', '.join(parts)}"
    if one["mechanism"] == "full":
        return text
    counts = f"earlier than full in {one['earlier_than_full']}, later in {one['later_than_full']}"
    return f"{text}; {counts}, p = {one['p']:.2g}"
