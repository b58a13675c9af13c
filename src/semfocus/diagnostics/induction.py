"""Induction heads along training: which heads look from a token to what followed it when it came before.

    measure_induction(run).best_heads       the score of the best head at each kept checkpoint

    tokens    c a d b | c a d b             distinct random tokens, then the same again
    score     the weight from the second c to the first a, from the second a to the first d, ...

A head that does this for any tokens can copy what is repeated: the accuracy on the second half says whether the model
does. Tokens are those that occur in the run's held-out examples, each once a half; what they mean together, no model
can know. Each checkpoint is stored as soon as it is measured, so that an interrupted measurement goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from semfocus.attention.dense import dense
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.errors import UsageError, check_int
from semfocus.measurements import Induction, keep, read
from semfocus.model.encoder import Encoder
from semfocus.randomness import stream
from semfocus.store import RunDirectory, RunStore
from semfocus.training.data import head, opened
from semfocus.training.loading import config_of, load
from semfocus.training.objective import get_objective
from semfocus.training.runtime import Runtime, numerics

ROWS = 64
LONGEST = 64  # tokens of a half
FEWEST = 4  # distinct tokens, of which anything can be said


def measure_induction(
    run: str | Path | RunDirectory,
    rows: int = ROWS,
    runtime: Runtime = Runtime(),
    *,
    out: Path | str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Induction:
    """Measure every checkpoint of a run that is there; what is stored already is read."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    check_int("rows", rows, at_least=1)
    steps = sorted(directory.intact_steps())
    if not steps:
        raise UsageError(f"run {directory.id} has no checkpoint yet; train it first")
    config = config_of(directory)
    task = config.task.build(directory.path.parent)
    if not get_objective(task.objective).predicts_positions:
        raise UsageError(
            f"run {directory.id} learns {task.name}, which predicts no next token; induction is measured of models "
            "that do, such as those of the task text"
        )
    halves = repeated_halves(head(opened(config, task)[1]).tokens, task.seq_len // 2, rows)
    settings = {"rows": rows, "half": halves.shape[1]}
    measured = read(directory, Induction, settings)
    for done, step in enumerate(steps):
        on_progress(done, len(steps))
        if measured is None or step not in measured.points:
            model = load(directory, step).to(runtime.torch_device())
            with numerics(config.precision, runtime.threads or runtime.num_threads()):
                point = induction_scores(model, halves)
            point |= {"tokens": step * config.training.batch_size * task.seq_len}
            measured = keep(directory, Induction.from_payload({**settings, "points": {str(step): point}}))
    on_progress(len(steps), len(steps))
    assert measured is not None
    return measured


def repeated_halves(examples: Tensor, longest: int, rows: int) -> Tensor:
    """(rows, n) random tokens, distinct in a row, of those that occur in the examples."""
    known = examples.unique().numpy()
    half = min(longest, LONGEST, len(known))
    if half < FEWEST:
        raise UsageError(f"the examples have {half} distinct tokens or places a half row; induction needs {FEWEST}")
    draws = stream(0, "diagnostics/induction")
    chosen = np.stack([known[draws.permutation(len(known))[:half]] for _ in range(rows)])
    return torch.from_numpy(chosen.astype(np.int64))


@torch.no_grad()
def induction_scores(model: Encoder, halves: Tensor) -> dict[str, float | list[list[float]]]:
    """The score of every head, and loss and accuracy on the second half, of rows (N, n) that are repeated."""
    device = next(model.parameters()).device
    tokens = torch.cat([halves, halves], dim=1).to(device)  # (N, 2 n)
    half, count = halves.shape[1], len(halves)
    heads: list[list[float]] = []  # of each call, in the order of the layers

    def observe(inputs: AttentionInputs, grouped: bool) -> None:
        _, info = dense(inputs, want_info=True)
        assert info is not None
        weights = (info.ungrouped() if grouped else info).dense_weights(inputs.num_keys)  # (..., H, L, L)
        places = torch.arange(half - 1, device=device)
        scores = weights[..., half + places, places + 1]  # (..., H, n - 1): to the token after the first occurrence
        heads.append(scores.double().mean(-1).flatten(0, -2).mean(0).tolist())

    with observing(observe):
        logits = model(tokens, torch.full((count,), 2 * half, device=device))  # (N, 2 n, V)
    asked, right = logits[:, half:-1].double(), tokens[:, half + 1 :]
    loss = torch.nn.functional.cross_entropy(asked.flatten(0, 1), right.flatten())
    return {"heads": heads, "loss": loss.item(), "accuracy": (asked.argmax(-1) == right).double().mean().item()}
