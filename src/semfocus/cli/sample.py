"""`semfocus sample`: text by trained language models."""

from __future__ import annotations

from typing import Annotated

import typer

from semfocus.cli.shared import Device, Out, Threads, say


def sample_command(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or the beginnings of their ids.")],
    prompt: Annotated[
        str | None, typer.Option(help="What to go on with. Default: the beginning of the held-out text.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 200,
    seed: Annotated[int, typer.Option(help="The seed of the draws: the same seed writes the same text.")] = 0,
    temperature: Annotated[
        float, typer.Option(help="Below 1 likely tokens are favoured; 0 takes the likeliest.")
    ] = 0.8,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Let language models write, and keep the text with the run: pages show it.

    \b
    semfocus sample 1f0c
    semfocus sample 1f0c --prompt "def main(" --temperature 0
    """
    from semfocus.diagnostics.samples import measure_sample
    from semfocus.store import RunStore
    from semfocus.training import Runtime
    from semfocus.training.loading import config_of

    runtime = Runtime(device=device, threads=threads)
    for name in runs:
        run = RunStore(out).find(name)
        own = measure_sample(run, prompt, tokens, seed, temperature, runtime)
        say(f"{run.id}: {config_of(run).attention.mechanism}, after {own.prompt!r}")
        say(f"{own.text}\n")
