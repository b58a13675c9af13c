"""The rows of a cohort, one set for each member, on the device where they are learned from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.config import RunConfig
from semfocus.model import build_inputs
from semfocus.spec import Spec
from semfocus.tasks import Batch, Task


@dataclass(frozen=True)
class Rows:
    """Labelled rows of E members: tokens (E, N, L), valid_mask (E, N, L) or None without padding, labels (E, N)."""

    tokens: Tensor
    valid_mask: Tensor | None
    labels: Tensor

    @property
    def count(self) -> int:
        return self.labels.shape[1]

    def take(self, members: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Tokens (E, B, L) int64, valid_mask and labels (E, B) of the rows (E, B) of each member."""
        valid_mask = None if self.valid_mask is None else self.valid_mask[members, rows]
        return self.tokens[members, rows].long(), valid_mask, self.labels[members, rows].long()

    def only(self, members: list[int]) -> Rows:
        """The same for some of the members."""
        valid_mask = None if self.valid_mask is None else self.valid_mask[members]
        return Rows(self.tokens[members], valid_mask, self.labels[members])


def accumulator(device: torch.device) -> torch.dtype:
    """What to add up many numbers in: float64, but on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def load(config: RunConfig, task: Task) -> tuple[Batch, Batch]:
    """One member's training and held-out rows."""
    seed = task.data_seed(config.seed)
    train, heldout = config.rows(task)
    return task.sample(train, seed=seed, split="train"), task.sample(heldout, seed=seed, split="heldout")


def stack(batches: list[Batch], spec: Spec, device: torch.device) -> Rows:
    """The rows of all members, assembled as the model reads them, in the narrowest type that holds the ids."""
    narrow = torch.uint8 if spec.num_ids <= 256 else torch.int32
    tokens, valid_mask = [], []
    for batch in batches:
        rows, present = build_inputs(batch.tokens, batch.lengths, spec)
        tokens.append(rows.to(narrow))
        valid_mask.append(present)
    every = torch.stack(valid_mask)
    return Rows(
        torch.stack(tokens).to(device),
        None if bool(every.all()) else every.to(device),
        torch.stack([batch.labels for batch in batches]).to(torch.int32).to(device),
    )
