"""`semfocus show-attention`: which keys a trained model keeps in one example."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semfocus.cli.shared import Out, name_figures, say


def show_attention_command(
    run: Annotated[str, typer.Argument(help="A run directory, or the beginning of its id.")],
    row: Annotated[int, typer.Option(help="Which example; they count from 0.")] = 0,
    split: Annotated[Literal["train", "heldout"], typer.Option(help="Of which examples.")] = "heldout",
    out: Out = None,
    figures: Annotated[Path | None, typer.Option(help="Where it goes. Default: figures/ beside the runs.")] = None,
) -> None:
    """Draw what a trained model attends to in one example: layer by head, the keys that are kept in colour.

    \b
    semfocus show-attention 1f0c --row 3
    semfocus show-attention 1f0c --row 0 --split train --figures pictures
    """
    from semfocus.diagnostics.shown_attention import attention_of
    from semfocus.report.figures.attention import write_attention_figure
    from semfocus.store import FIGURES, RunStore

    shown = attention_of(run, row, split, out)
    kept = (shown.weights != 0).sum(axis=-1).mean()
    say(f"{shown.title}: {len(shown.tokens)} tokens, {kept:.3g} keys kept by a query on average")
    directory = figures or RunStore(out).root / FIGURES
    name_figures(write_attention_figure(shown.weights, shown.tokens, shown.title, directory, shown.stem))
