"""`semfocus diagnose`: how trained runs, or anybody's model, attend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.shared import console, progress_bar
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from semfocus.diagnostics.runs import MeasuredRun
    from semfocus.measurements import MaskStability


def diagnose_command(
    runs: Annotated[list[str] | None, typer.Argument(help="Runs: directories, or the beginnings of ids.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of runs: a Hugging Face checkpoint, a folder or a name in the cache.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="With --model: a text file to run it on.")] = None,
    k: Annotated[
        int | None, typer.Option(help="Keys to keep. Default 5, for a model 8; a top-k run has its own.")
    ] = None,
    split: Annotated[Literal["train", "heldout"], typer.Option(help="Which rows of a run.")] = "train",
    rows: Annotated[
        int | None, typer.Option(help="Rows of a run (default 1000) or windows of text (64); 0: all.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="last, all, or a kept epoch such as 20.")] = "last",
    mask_stability: Annotated[
        bool, typer.Option("--mask-stability", help="Also shake the inputs: do the kept keys stay?")
    ] = False,
    length: Annotated[
        int | None, typer.Option(help="With --model: tokens of a window. Default: 128, or fewer.")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="With --model: fetch what is not here.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Where runs live. Default: SEMFOCUS_RUNS, else ./runs.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write an HTML page here, and its figures beside it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say how runs or a model attend: dispersion, separation, sinks, and what keeping only k keys would do.

    \b
    semfocus diagnose 3f2a 91c0 --checkpoint all --page diagnosis.html
    semfocus diagnose --model PATH_OR_NAME --text corpus.txt --k 8
    """
    if (model is None) == (not runs):
        raise UsageError("give either runs, or --model with --text")
    given = {name: value for name, value in (("k", k), ("rows", rows)) if value is not None}
    if model is not None:
        of_runs = {
            "--split": split != "train",
            "--checkpoint": checkpoint != "last",
            "--mask-stability": mask_stability,
            "--out": out is not None,
        }
        _refuse(of_runs, "runs", "--model")
        _diagnose_model(model, text, {**given, "length": length, "download": download, "device": device}, page, as_json)
    else:
        _refuse({"--text": text is not None, "--length": length is not None, "--download": download}, "--model", "runs")
        options = {**given, "split": split, "checkpoint": checkpoint}
        _diagnose_runs(runs or [], options, mask_stability, device, out, page, as_json)


def _refuse(options: dict[str, bool], belongs: str, here: str) -> None:
    """Options that would be ignored are not: they were meant for something."""
    for option, is_given in options.items():
        if is_given:
            raise UsageError(f"{option} belongs to {belongs} and says nothing about {here}; leave it out")


def _diagnose_model(name: str, text: Path | None, options: dict[str, Any], page: Path | None, as_json: bool) -> None:
    if text is None:
        raise UsageError(f"--model {name} needs --text: a file to run it on")
    from semfocus.diagnostics.checkpoints import diagnose_checkpoint

    found = diagnose_checkpoint(name, text, **options)
    typer.echo(found.to_json() if as_json else str(found))
    if page is not None:
        typer.echo(f"\npage: {found.save(page)}", err=as_json)


def _diagnose_runs(
    names: list[str],
    options: dict[str, Any],
    mask_stability: bool,
    device: str,
    out: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    from semfocus.diagnostics.masks import measure_mask_stability
    from semfocus.diagnostics.runs import LAST, find_run, measure_run, tables, warnings_of
    from semfocus.training import Runtime

    place = Runtime(device=device).torch_device()
    found = [find_run(name, out) for name in dict.fromkeys(names)]
    measured: list[MeasuredRun] = []
    shaken: list[MaskStability] = []
    for run in found:
        with progress_bar(f"measuring {run.id}") as progress:
            measured.append(measure_run(run, **options, device=place, progress=progress))
        if mask_stability:
            at = options["checkpoint"] if options["checkpoint"] != "all" else LAST
            with progress_bar(f"shaking {run.id}") as progress:
                settings = options | {"checkpoint": at}
                shaken.append(measure_mask_stability(run, **settings, device=place, progress=progress))
    rows_of_table = tables(measured)
    if as_json:
        both = [
            {"run": run.run.id, "dispersion": run.measured.document}
            | ({"mask_stability": shaken[i].document} if shaken else {})
            for i, run in enumerate(measured)
        ]
        typer.echo(json.dumps({"runs": both, "table6": rows_of_table}, indent=2))
    else:
        _print_runs(measured, rows_of_table, shaken)
    for run in measured:
        asked, own = options.get("k"), run.measured.k
        if asked not in (None, own):
            typer.echo(f"{run.label}: measured with its own k = {own}, not with --k {asked}", err=as_json)
        for line in warnings_of(run):
            typer.echo(line, err=as_json)
    if page is not None:
        from semfocus.report.page.diagnosis import write_runs_page

        documents = [_document(run) for run in measured]
        pairs = zip(documents, shaken, strict=False)  # either all runs were shaken, or none
        stable = [document | {"measured": one.document} for document, one in pairs]
        typer.echo(f"\npage: {write_runs_page(documents, rows_of_table, stable, page)}", err=as_json)


def _document(run: MeasuredRun) -> dict[str, Any]:
    about = {"task": run.task, "mechanism": run.mechanism, "seed": run.config.seed}
    return about | {"checkpoints": run.now.document["checkpoints"]}


def _print_runs(measured: list[MeasuredRun], rows: list[dict[str, Any]], shaken: list[MaskStability]) -> None:
    from semfocus.report.terminal.tables import rich_table
    from semfocus.report.text import condition_table, newest_rows, norm_table

    for row in newest_rows(rows):
        console().print(rich_table(condition_table(row)))
        typer.echo("")
    console().print(rich_table(norm_table([_document(run) for run in measured])))
    typer.echo("")
    for run, stability in zip(measured, shaken, strict=False):
        pairs = zip(stability.noise, stability.kept, strict=True)
        epoch = max(checkpoint.epoch for checkpoint in run.now.checkpoints.values())
        said = ", ".join(f"{size:g}: {share:.1%}" for size, share in pairs if share is not None)
        said = said or "no query of finite scores drops a key"
        typer.echo(f"{run.label}, epoch {epoch:g}: kept keys that stay, by noise: {said}")
    for run in measured:
        typer.echo(f"stored with {run.run.path}")
