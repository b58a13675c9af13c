"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

RunsDirectory = Annotated[
    Path | None, typer.Argument(help="The directory of runs. Default: SEMFOCUS_RUNS, else ./runs.")
]
Out = Annotated[Path | None, typer.Option(help="Where runs live. Default: SEMFOCUS_RUNS, else ./runs.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; with the same number results repeat to the bit.")]
Compile = Annotated[
    Literal["auto", "on", "off"], typer.Option(help="Compile the model; auto: where it pays, always on a GPU.")
]
Jobs = Annotated[
    int | None, typer.Option(help="Mechanisms to train at a time, in processes of their own. Default: one a core.")
]
Keep = Annotated[
    str, typer.Option(help="Epochs whose checkpoints stay: 0,1,5 (0: before training), or ladder for 0,1,2,5 to 500.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change any field of the configuration, e.g. training.lr=0.3.")
]
ExecutorName = Annotated[
    str, typer.Option("--executor", help="Who trains: auto, serial, processes, or one that a plugin registers.")
]
Track = Annotated[
    list[str] | None, typer.Option(help="Follow in a tracker: tensorboard:DIR, wandb:PROJECT or trackio:PROJECT.")
]
