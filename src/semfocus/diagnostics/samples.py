"""Text by a trained language model: a prompt, continued token by token.

    measure_sample(run).text                       what is stored already is read
    measure_sample(run, prompt="def main(")

Without a prompt it is the beginning of the held-out text, the same for all runs on a corpus. A seed decides the draws:
the same model, prompt and seed write the same text.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from semfocus.analysis.records import facts_of
from semfocus.diagnostics.lengths import newest_step
from semfocus.errors import CorruptData, UsageError, check_float, check_int, printable
from semfocus.measurements import Sample, keep, read
from semfocus.measurements.samples import LONGEST_TEXT
from semfocus.model.encoder import Encoder
from semfocus.randomness import Stream, stream
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks.corpora.task import CorpusTask
from semfocus.training.loading import config_of, load
from semfocus.training.runtime import Runtime, numerics

PROMPT_TOKENS, TOKENS, TEMPERATURE = 32, 200, 0.8
MOST_TOKENS = 5000


def can_write(run: RunDirectory) -> bool:
    """Whether a run has ended with a model that goes on with a text; its task is not built."""
    try:
        has_ended, fields = (run.status() or {}).get("state") == "done", run.config()
    except CorruptData:  # those who read its results say so
        return False
    return (
        has_ended
        and bool(run.checkpoint_steps())
        and fields.get("objective") == "next_token"
        and "corpus" in facts_of(fields)
    )


def measure_sample(
    run: str | Path | RunDirectory,
    prompt: str | None = None,
    tokens: int = TOKENS,
    seed: int = 0,
    temperature: float = TEMPERATURE,
    runtime: Runtime = Runtime(),
    *,
    out: Path | str | None = None,
) -> Sample:
    """Let the newest model of a run write `tokens` tokens; temperature 0 takes the likeliest each time."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    check_int("tokens", tokens, at_least=1, at_most=MOST_TOKENS)
    check_int("seed", seed, at_least=0)
    check_float("temperature", temperature, 0, 100)
    config = config_of(directory)
    task = config.task.build(directory.path.parent)
    if not isinstance(task, CorpusTask) or task.objective != "next_token":
        raise UsageError(
            f"run {directory.id} is of the task {config.task.name}, which writes no text; take one of text"
        )
    recorded = directory.config().get("data")
    if recorded is not None and recorded != task.fingerprint():
        raise UsageError(
            f"run {directory.id} was trained on another text or vocabulary than {task.source.title} gives now; put it "
            "back as it was"
        )
    asked = task.decode(task.streams.tokens["heldout"][:PROMPT_TOKENS].tolist()) if prompt is None else prompt
    given = task.parse(asked)
    if not len(given):
        raise UsageError(f"prompt = {printable(asked)!r} holds no token; give some text")
    settings = {
        "step": newest_step(directory), "prompt": asked, "tokens": tokens, "seed": seed,
        "temperature": float(temperature),
    }  # fmt: skip
    measured = read(directory, Sample, settings)
    if measured is None:
        device = runtime.torch_device()
        with numerics(config.precision, runtime.threads or runtime.num_threads()):
            ids = continued(load(directory).to(device), given.to(device), tokens, stream(seed, "sample"), temperature)
        text = task.decode(ids)[:LONGEST_TEXT]
        measured = keep(directory, Sample.from_payload(settings | {"text": text}))
    return measured


@torch.no_grad()
def continued(model: Encoder, prompt: Tensor, tokens: int, draws: Stream, temperature: float) -> list[int]:
    """The ids that the model writes behind a prompt (n,).

    It sees a row of its training at a time; what is further back is forgotten. The row has one shape throughout: a
    causal model learns nothing of the tokens behind the place that is read.
    """
    length = model.spec.seq_len
    row = prompt.new_zeros(length)
    seen = prompt[-length:]
    row[: len(seen)] = seen
    place, written = len(seen) - 1, []
    for chance in draws.uniform(tokens).tolist():
        logits = model(row.unsqueeze(0))[0, place].double().cpu()
        token = int(logits.argmax()) if temperature == 0 else _drawn(logits / temperature, chance)
        written.append(token)
        if place == length - 1:
            row, place = torch.roll(row, -1), place - 1
        place += 1
        row[place] = token
    return written


def _drawn(logits: Tensor, chance: float) -> int:
    """The token in whose part of the probabilities, one after the other, `chance` lies."""
    sums = logits.softmax(dim=0).cumsum(dim=0)
    return min(int(torch.searchsorted(sums, torch.tensor(chance, dtype=sums.dtype))), len(sums) - 1)
