"""`semfocus tasks`: list, show and export tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semfocus.cli.shared import assignments, console, progress_bar, say
from semfocus.errors import UsageError

app = typer.Typer(help="The tasks that models learn: list, look at and export them.", rich_markup_mode=None)

TaskName = Annotated[
    str, typer.Argument(help="A task's name (see `semfocus tasks`) or a .csv, .tsv, .jsonl, .parquet file.")
]
Seed = Annotated[int, typer.Option(help="The seed of the rows; the same seed gives the same rows on every machine.")]
SplitName = Annotated[
    Literal["train", "heldout", "test"],
    typer.Option(help="The split to draw: train, heldout or test, of independent rows."),
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Set an option of the task, e.g. --option length=60. Repeatable.")
]


@app.callback(invoke_without_command=True)
def list_tasks(context: typer.Context) -> None:
    """List the tasks, a line each."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from semfocus.tasks import get_task, task_names

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("task", "width", "symbols", "classes", "question"):
        numeric = title in ("width", "symbols", "classes")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=title == "task")
    for name in task_names():
        task = get_task(name)
        # Of a text that is not read for this.
        sizes = ("-",) * 3 if task.reads_files else (task.seq_len, task.vocab_size, task.num_classes)
        table.add_row(name, *map(str, sizes), task.summary)
    console().print(table)
    say("\nLook at one: semfocus tasks show listops --n 3 --seed 0")


@app.command("show")
def show_task(
    name: TaskName,
    n: Annotated[int, typer.Option(help="How many rows to draw.")] = 5,
    seed: Seed = 0,
    split: SplitName = "train",
    options: Options = None,
) -> None:
    """Print a few examples in readable form, with their classes and the accuracies that need no learning.

    \b
    semfocus tasks show parity
    semfocus tasks show reviews.csv --n 10
    """
    from semfocus.report.text import facts_text
    from semfocus.tasks import get_task

    task = get_task(name, **assignments(options))
    batch = task.sample(n, seed=seed, split=split)
    say(f"{task.name}: {task.summary}")
    say(f"width {task.seq_len}, {task.vocab_size} symbols, {task.num_classes} classes\n")
    for tokens, label, length in zip(batch.tokens, batch.labels.tolist(), batch.lengths.tolist(), strict=True):
        say(f"{task.render(tokens, length)}  ->  {task.render_label(label)}")
    baselines = ", ".join(f"{kind} {accuracy:.1%}" for kind, accuracy in task.baselines.items())
    say(f"\naccuracy without learning: {baselines}")
    for line in facts_text(task.facts):
        say(line)


@app.command("export")
def export_task(
    out: Annotated[Path, typer.Option(help="The file to write; its suffix is the format: .jsonl, .tsv or .parquet.")],
    name: Annotated[str | None, typer.Argument(help="A task's name or a data file.")] = None,
    n: Annotated[int, typer.Option(help="How many rows to draw.")] = 5000,
    seed: Seed = 0,
    split: SplitName = "train",
    options: Options = None,
    manifest: Annotated[Path | None, typer.Option(help="Make the rows of an earlier export's manifest again.")] = None,
) -> None:
    """Write examples to a file, and beside it a manifest from which the same file can be made again.

    \b
    semfocus tasks export parity --n 1000 --out parity.jsonl
    semfocus tasks export --manifest parity.jsonl.manifest.json --out again.jsonl
    """
    from semfocus.tasks.export import Recipe, export, export_again

    if (name is None) == (manifest is None):
        raise UsageError("give either a task's name or --manifest FILE")
    with progress_bar("drawing rows") as progress:
        if manifest is not None:
            written = export_again(manifest, out, progress)
        else:
            recipe = Recipe(task=str(name), options=assignments(options), n=n, seed=seed, split=split)
            written = export(recipe, out, progress)
    say(f"wrote {out} and {written}")
