"""The examples of a cohort, one set for each member, on the device that trains."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from semfocus.config import RunConfig
from semfocus.model.inputs import build_inputs
from semfocus.spec import Spec
from semfocus.tasks import Batch, Task, Windows
from semfocus.tasks.batch import Rows as WideRows
from semfocus.tasks.batch import Split, as_batch
from semfocus.training.objective import CLASSIFICATION, Objective

T = TypeVar("T")
Unread = Batch | Windows  # examples of a run, which are in memory or on the disk

TOKENS_A_PIECE = 2**22  # that are brought to a device at a time
SHARE_OF_MEMORY = 0.5  # of a GPU, free as training begins: beyond it a corpus stays on the disk


class Examples(NamedTuple):
    """What one step or evaluation takes: tokens (E, B, L), lengths (E, B) or None, targets (E, B, ...), all int64."""

    tokens: Tensor
    lengths: Tensor | None
    targets: Tensor

    def shared_by(self, members: int) -> Examples:
        """The examples of one member (E = 1) as those of `members` members, without a copy."""
        lengths = None if self.lengths is None else self.lengths.expand(members, -1)
        targets = self.targets.expand(members, *self.targets.shape[1:])
        return Examples(self.tokens.expand(members, -1, -1), lengths, targets)

    def cpu(self) -> Examples:
        return Examples(self.tokens.cpu(), None if self.lengths is None else self.lengths.cpu(), self.targets.cpu())


@dataclass(frozen=True)
class Rows:
    """N examples of each of E members, and the objective that the targets belong to."""

    tokens: Tensor  # (E, N, L), as `build_inputs` gives them
    lengths: Tensor | None  # (E, N); None: no example has padding
    targets: Tensor  # (E, N), or (E, N, L) where every position has one
    objective: Objective = CLASSIFICATION

    on_host = False  # a batch is taken on the device

    @property
    def count(self) -> int:
        return self.targets.shape[1]

    @property
    def device(self) -> torch.device:
        return self.targets.device

    def take(self, members: Tensor, indices: Tensor) -> Examples:
        """The examples `indices` (E, B) of each member."""
        lengths = None if self.lengths is None else self.lengths[members, indices]
        return Examples(self.tokens[members, indices].long(), lengths, _widened(self.targets[members, indices]))

    def every(self) -> Examples:
        """All examples of each member."""
        return Examples(self.tokens.long(), self.lengths, _widened(self.targets))

    def only(self, members: list[int]) -> Rows:
        """The examples of some of the members."""

        def chosen(tensor: Tensor) -> Tensor:  # what all members share is not copied
            return tensor[: len(members)] if tensor.stride(0) == 0 else tensor[members]

        lengths = None if self.lengths is None else chosen(self.lengths)
        return Rows(chosen(self.tokens), lengths, chosen(self.targets), self.objective)

    def between(self, first: int, last: int) -> Rows:
        """The examples `first` .. `last` - 1 of every member."""
        lengths = None if self.lengths is None else self.lengths[:, first:last]
        return Rows(self.tokens[:, first:last], lengths, self.targets[:, first:last], self.objective)


@dataclass(frozen=True)
class MappedRows:
    """The same of examples that lie in a stream on the disk, one set for all E members: read where a batch is taken.

    The host reads them, and waits for the device to say which: a captured graph cannot.
    """

    windows: Windows
    members: int
    spec: Spec
    device: torch.device
    objective: Objective

    on_host = True

    @property
    def count(self) -> int:
        return len(self.windows)

    def take(self, members: Tensor, indices: Tensor) -> Examples:
        """The examples `indices` (E, B) of each member."""
        tokens, lengths, targets = self._stacked(self.windows.rows(indices.flatten().cpu().numpy())).every()
        lengths = None if lengths is None else lengths.view(indices.shape)
        tokens, targets = (part[0].unflatten(0, indices.shape) for part in (tokens, targets))
        return Examples(tokens, lengths, targets)

    def every(self) -> Examples:
        """All examples of each member."""
        return self._stacked(self.windows.rows()).every().shared_by(self.members)

    def only(self, members: list[int]) -> MappedRows:
        """The examples of some of the members."""
        return replace(self, members=len(members))

    def between(self, first: int, last: int) -> MappedRows:
        """The examples `first` .. `last` - 1 of every member."""
        return replace(self, windows=self.windows.between(first, last))

    @property
    def fits(self) -> bool:
        """Whether the device may hold all of them; a CPU would only read the disk into memory."""
        if self.device.type == "cuda":
            most = SHARE_OF_MEMORY * torch.cuda.mem_get_info(self.device)[0]
            return self.count * self.spec.length * 8 < most  # tokens and targets of 32 bits
        return self.device.type != "cpu"

    def resident(self) -> Rows:
        """The same on the device, brought there piece by piece."""
        size = max(1, TOKENS_A_PIECE // self.spec.length)
        firsts = range(0, self.count, size)
        parts = (self._stacked(self.windows.between(first, first + size).rows()) for first in firsts)
        whole: list[Tensor] = []
        for i, part in enumerate(parts):
            pieces = [part.tokens, part.targets, *([] if part.lengths is None else [part.lengths])]
            whole = whole or [piece.new_empty(1, self.count, *piece.shape[2:]) for piece in pieces]
            for column, piece in zip(whole, pieces, strict=True):
                column[:, i * size : (i + 1) * size] = piece
        tokens, targets, *lengths = (column.expand(self.members, *column.shape[1:]) for column in whole)
        return Rows(tokens, lengths[0] if lengths else None, targets, self.objective)

    def _stacked(self, rows: WideRows) -> Rows:
        return stack([as_batch(rows)], self.spec, self.device, self.objective)


def load(config: RunConfig, task: Task) -> tuple[Batch, Batch]:
    """The training and held-out examples of one run, all in memory."""
    train, heldout = opened(config, task)
    return head(train), head(heldout)


def head(examples: Unread, count: int | None = None) -> Batch:
    """The first `count` examples, read; None: all of them."""
    if isinstance(examples, Windows):
        return as_batch(examples.between(0, count).rows())
    return Batch(examples.tokens[:count], examples.labels[:count], examples.lengths[:count])


def opened(config: RunConfig, task: Task) -> tuple[Unread, Unread]:
    """The training and held-out examples of one run; those of a corpus are not read yet."""
    seed = task.data_seed(config.seed)
    train, heldout = config.rows(task)
    span = config.task.span
    if span is None:
        return _unread(task, train, seed, "train"), _unread(task, heldout, seed, "heldout")
    size = config.training.batch_size
    batches = [
        task.sample(min(size, train - first), seed=_batch_seed(seed, first // size), lengths=span, per="batch")
        for first in range(0, train, size)
    ]
    return concatenated(batches), task.sample(heldout, seed=seed, split="heldout", lengths=span)


def _unread(task: Task, n: int, seed: int, split: Split) -> Unread:
    windows = task.windows(n, seed=seed, split=split)
    return task.sample(n, seed=seed, split=split) if windows is None else windows


def load_each(configs: Sequence[RunConfig], tasks: Sequence[Task], loaded: Callable[[RunConfig, Task], T]) -> list[T]:
    """What `loaded` gives for each run; runs with the same examples, as of a file, share one object."""
    known: dict[tuple[str, int, int], T] = {}
    keys = [
        (config.task.model_dump_json(), config.training.batch_size, task.data_seed(config.seed))
        for config, task in zip(configs, tasks, strict=True)
    ]
    for key, config, task in zip(keys, configs, tasks, strict=True):
        if key not in known:
            known[key] = loaded(config, task)
    return [known[key] for key in keys]


def _batch_seed(seed: int, number: int) -> int:
    """The seed of the examples of one training batch, where each batch has a length of its own."""
    return int.from_bytes(hashlib.sha256(f"{seed}/batch/{number}".encode()).digest()[:8], "big")


def concatenated(batches: list[Batch]) -> Batch:
    """The examples of all batches, one after the other."""
    columns = ([getattr(batch, name) for batch in batches] for name in ("tokens", "labels", "lengths"))
    return Batch(*(torch.cat(column) for column in columns))


def open_test(config: RunConfig, task: Task) -> Unread | None:
    """The test examples of one run, if it evaluates them."""
    if not config.training.evaluate_test:
        return None
    return _unread(task, config.test_rows(task), task.data_seed(config.seed), "test")


def place(
    examples: Sequence[Unread], spec: Spec, device: torch.device, objective: Objective = CLASSIFICATION
) -> Rows | MappedRows:
    """The examples of all members where they are taken from: on the device, or on the disk."""
    first = examples[0]
    if isinstance(first, Windows) and all(one is first for one in examples):
        mapped = MappedRows(first, len(examples), spec, device, objective)
        return mapped.resident() if mapped.fits else mapped
    read = {id(one): head(one) for one in examples}  # what members share is read once
    return stack([read[id(one)] for one in examples], spec, device, objective)


def stack(batches: list[Batch], spec: Spec, device: torch.device, objective: Objective = CLASSIFICATION) -> Rows:
    """The examples of all members as the model reads them, in the narrowest type that holds the ids.

    Where all members share one batch, it is on the device once.
    """
    members = len(batches)
    if all(batch is batches[0] for batch in batches):
        batches = batches[:1]
    tokens, lengths = [], []
    for batch in batches:
        ids, seen = build_inputs(batch.tokens, batch.lengths, spec)
        tokens.append(ids.to(_narrowest(spec.num_ids)))
        lengths.append(seen)
    has_padding = bool((torch.stack(lengths) < spec.padded_len + spec.alignment_padding).any())
    targets = _narrowed(torch.stack([objective.targets(batch) for batch in batches])).to(device)
    return Rows(
        torch.stack(tokens).to(device).expand(members, -1, -1),
        torch.stack(lengths).to(device).expand(members, -1) if has_padding else None,
        targets.expand(members, *targets.shape[1:]),
        objective,
    )


def _narrowest(num_ids: int) -> torch.dtype:
    if num_ids <= 2**8:
        return torch.uint8
    return torch.int16 if num_ids <= 2**15 else torch.int32


def _narrowed(targets: Tensor) -> Tensor:
    """Targets as they are kept: classes in 32 bits, numbers in float32."""
    return targets.float() if targets.is_floating_point() else targets.to(torch.int32)


def _widened(targets: Tensor) -> Tensor:
    """Targets as an objective takes them: classes as int64, numbers as they are."""
    return targets if targets.is_floating_point() else targets.long()
