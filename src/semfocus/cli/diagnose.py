"""`semfocus diagnose`: how trained runs, or anybody's model, attend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.shared import console, progress_bar, say
from semfocus.errors import UsageError

if TYPE_CHECKING:
    from semfocus.diagnostics.runs import RunsDiagnosis


def diagnose_command(
    runs: Annotated[list[str] | None, typer.Argument(help="The runs: directories, or the beginnings of ids.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Diagnose a Hugging Face checkpoint instead of runs: a folder, or a name in the cache."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="A text file to run the model on, with --model.")] = None,
    k: Annotated[
        int | None, typer.Option(help="How many keys to keep. Default: 5, and 8 for a model; a top-k run has its own.")
    ] = None,
    split: Annotated[Literal["train", "heldout"], typer.Option(help="The rows of a run to measure on.")] = "train",
    rows: Annotated[
        int | None, typer.Option(help="How many rows of a run (default 1000) or windows of text (64); 0 means all.")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="Which checkpoint to measure: last, all, or a kept epoch such as 20.")
    ] = "last",
    mask_stability: Annotated[
        bool,
        typer.Option("--mask-stability", help="Add noise to the inputs as well, to see whether the kept keys stay."),
    ] = False,
    length: Annotated[
        int | None, typer.Option(help="The tokens of a window, with --model. Default: 128, or fewer.")
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Go on where some of the attention cannot be observed, with --model."),
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch a model that is not on this machine, with --model.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or mps.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="The directory in which runs are kept. Default: SEMFOCUS_RUNS, else ./runs.")
    ] = None,
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
        options = {**given, "length": length, "download": download, "partial": partial, "device": device}
        _diagnose_model(model, text, options, page, as_json)
    else:
        foreign = {"--text": text is not None, "--length": length is not None, "--download": download}
        _refuse({**foreign, "--partial": partial}, "--model", "runs")
        options = {**given, "split": split, "checkpoint": checkpoint, "mask_stability": mask_stability, "out": out}
        _diagnose_runs(runs or [], options, device, page, as_json)


def _refuse(options: dict[str, bool], belongs: str, here: str) -> None:
    """Refuse options that would have no effect."""
    for option, is_given in options.items():
        if is_given:
            raise UsageError(f"{option} belongs to {belongs} and says nothing about {here}; leave it out")


def _diagnose_model(name: str, text: Path | None, options: dict[str, Any], page: Path | None, as_json: bool) -> None:
    if text is None:
        raise UsageError(f"--model {name} needs --text: a file to run it on")
    from semfocus.diagnostics.checkpoints import diagnose_checkpoint

    diagnosis = diagnose_checkpoint(name, text, **options)
    say(diagnosis.to_json() if as_json else str(diagnosis))
    if page is not None:
        say(f"\npage: {diagnosis.save(page)}", err=as_json)


def _diagnose_runs(names: list[str], options: dict[str, Any], device: str, page: Path | None, as_json: bool) -> None:
    from semfocus.diagnostics.runs import diagnose_runs
    from semfocus.training import Runtime

    place = Runtime(device=device).torch_device()
    diagnosis = diagnose_runs(names, **options, device=place, progress_bar=progress_bar)
    if as_json:
        say(diagnosis.to_json())
    else:
        _print_runs(diagnosis)
    for line in diagnosis.warnings():
        say(line, err=as_json)
    if page is not None:
        say(f"\npage: {diagnosis.save(page)}", err=as_json)


def _print_runs(diagnosis: RunsDiagnosis) -> None:
    from semfocus.report.terminal.tables import rich_table

    for table in diagnosis.tables():
        console().print(rich_table(table))
        say("")
    for line in diagnosis.mask_lines():
        say(line)
    for run in diagnosis.runs:
        say(f"stored with {run.run.path}")
