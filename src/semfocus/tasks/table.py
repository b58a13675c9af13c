"""Tasks over a finite set of labelled rows: the common part of tasks over files and arrays.

    task.size("train")                             the number of rows of a split
    task.sample(100, seed=0, split="heldout")      100 of them, none twice
    task.report                                    rows read, skipped and truncated; unknown tokens; width

The rows are fixed. A seed decides only which rows of a split are drawn, and in which order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, UsageError, unknown
from semfocus.randomness import Stream
from semfocus.tasks.base import Task
from semfocus.tasks.batch import SPLITS, DrawRequest, Rows, Span, Split, within
from semfocus.tasks.rows import Item, Origin, Shares, number_classes
from semfocus.tasks.tokenisers import Tokeniser

if TYPE_CHECKING:
    import torch

Keep = Literal["start", "end"]
Metrics = Literal["accuracy", "balanced"]
SHARED_SEED = 0
UNBALANCED = 1.5  # the most frequent class has this many times its even share: 75 % of two classes
MOST_CLASSES_NAMED = 20  # in the facts


class DataWarning(UserWarning):
    """Some rows of a user's data are left out."""


@dataclass(frozen=True, kw_only=True)
class TableOptions(Shares):
    """The options of every task over given rows."""

    metrics: Metrics = "accuracy"  # "balanced": balanced accuracy and macro F1 too, and learned by the former

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metrics not in get_args(Metrics):
            raise unknown("metrics", self.metrics, get_args(Metrics))


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a user's rows were read."""

    rows_read: int
    rows: Mapping[str, int]  # by split
    rows_skipped: int  # rows without a token
    rows_truncated: int
    unknown_share: float  # of the tokens of held-out rows
    tokenizer: str
    width: int
    vocabulary: int  # symbols, the unknown one included


@dataclass(frozen=True, eq=False)
class Table:
    """N labelled rows of different lengths, concatenated into one array, and the rows of each split."""

    ids: NDArray[np.int32]  # (sum of lengths,)
    lengths: NDArray[np.int64]  # (N,)
    labels: NDArray[np.int64]  # (N,)
    members: Mapping[Split, NDArray[np.int64]]  # the indices of each split's rows
    class_names: tuple[str, ...]
    width: int

    def gather(self, chosen: NDArray[np.int64], pad_id: int) -> Rows:
        """The rows with the indices `chosen` (n,), padded to the width."""
        lengths = self.lengths[chosen]
        starts = (np.cumsum(self.lengths) - self.lengths)[chosen]
        inside = within(lengths, self.width)
        tokens = np.full(inside.shape, pad_id, dtype=np.int64)
        tokens[inside] = self.ids[(starts[:, None] + np.arange(self.width))[inside]]
        return Rows(tokens, self.labels[chosen], lengths)


@dataclass(frozen=True, kw_only=True)
class TableTask(Task):
    """A task over given rows; `settings` holds its options, `digest` is the hash of its data."""

    title: str = field(compare=False)  # the name of the data in messages
    digest: str
    settings: TableOptions
    table: Table = field(compare=False, repr=False)
    tokeniser: Tokeniser = field(compare=False, repr=False)
    report: Report = field(compare=False, repr=False)

    @property
    def objective(self) -> str:  # type: ignore[override]
        return "balanced_classification" if self.settings.metrics == "balanced" else "classification"

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.tokeniser.symbols

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.table.class_names

    @property
    def seq_len(self) -> int:
        return self.table.width

    @property
    def options(self) -> dict[str, Any]:
        return dataclasses.asdict(self.settings)

    @property
    def baselines(self) -> dict[str, float]:
        """Accuracies without learning: chance, and that of always naming the train split's most frequent class.

        The latter is that of the split in which this class is more frequent: train or heldout.
        """
        shares = self._majority_shares()
        return {"chance": 1 / self.num_classes, "majority": max(shares["train"], shares["heldout"])}

    @property
    def is_unbalanced(self) -> bool:
        """Whether accuracy says little, because one class is much more frequent than the others."""
        return self.baselines["majority"] * self.num_classes >= min(UNBALANCED, self.num_classes)

    @property
    def facts(self) -> dict[str, Any]:
        counts = {split: self._class_counts(split) for split in SPLITS}
        names = self.class_names if self.num_classes <= MOST_CLASSES_NAMED else ()
        majority = int(counts["train"].argmax())
        return {
            "rows": dict(self.report.rows),
            "skipped": self.report.rows_skipped,
            "cut": self.report.rows_truncated,
            "unknown_share": self.report.unknown_share,
            "tokenizer": self.report.tokenizer,
            "seq_len": self.seq_len,
            "vocab_size": self.vocab_size,
            "num_classes": self.num_classes,
            "classes": {name: [int(counts[split][i]) for split in SPLITS] for i, name in enumerate(names)},
            "majority_class": self.class_names[majority],
            "majority_share": self._majority_shares(),
            "baselines": self.baselines,
            **({"untaught": untaught} if (untaught := self._untaught_share()) else {}),
        }

    def _untaught_share(self) -> float:
        """The share of held-out rows whose class no train row has: no model can be right on them but by chance."""
        is_taught = self._class_counts("train") > 0
        return float((~is_taught[self.table.labels[self.table.members["heldout"]]]).mean())

    def _class_counts(self, split: Split) -> NDArray[np.int64]:
        return np.bincount(self.table.labels[self.table.members[split]], minlength=self.num_classes)

    def _majority_shares(self) -> dict[str, float]:
        """The share of the train split's most frequent class in each split that has rows."""
        most = int(self._class_counts("train").argmax())
        counts = {split: self._class_counts(split) for split in SPLITS}
        return {split: float(each[most] / each.sum()) for split, each in counts.items() if each.sum()}

    def data_seed(self, run_seed: int) -> int:
        """One seed for all runs: they share the data, and differ only in initialisation and order."""
        return SHARED_SEED

    def size(self, split: Split) -> int:
        return len(self.table.members[split])

    def fingerprint(self) -> dict[str, Any]:
        """It depends on the content, not on the path: two copies of a file are one task."""
        symbols = hashlib.sha256(json.dumps(self.symbols).encode()).hexdigest()
        # Without its default, a later option leaves the ids of earlier runs as they are.
        options = {name: value for name, value in self.options.items() if (name, value) != ("metrics", "accuracy")}
        return {**super().fingerprint(), "options": options, "sha256": self.digest, "symbols_sha256": symbols}

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        members = self.table.members[request.split]
        if request.n > len(members):
            raise UsageError(
                f"n = {request.n} is more than the {len(members)} rows of split {request.split!r} of {self.title}"
            )
        return self.table.gather(members[rng.permutation(len(members))[: request.n]], self.pad_id)

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        raise UsageError(
            f"{self.title} has no rule that labels a row, only the labels it came with; "
            f"read them from the labels of a sample"
        )

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        ids = np.asarray(row).astype(np.int64)
        ids = ids[: int(self._content_lengths(ids[None])[0]) if length is None else length]
        if ((ids < 0) | (ids >= self.vocab_size)).any():
            raise UsageError(f"a row of {self.title} holds ids from 0 to {self.vocab_size - 1}, not {ids.tolist()}")
        return self.tokeniser.decode(ids.tolist())

    def parse(self, text: str) -> torch.Tensor:
        """The ids of a text by the task's own tokeniser; unknown pieces become the unknown symbol."""
        import torch

        return torch.tensor(self.tokeniser.parse(text), dtype=torch.int64)

    def _checked_span(self, lengths: Span) -> Span:
        raise UsageError(f"lengths = {lengths!r}: the rows of {self.title} have the lengths they have; leave it out")


def tabulate(
    origin: Origin,
    items: Sequence[Item],
    encoded: Sequence[NDArray[np.int32]],
    splits: Sequence[Split],
    *,
    shares: Shares,
    tokeniser: Tokeniser,
    width: int,
    keep: Keep = "start",
    class_names: Sequence[str] | None = None,
    stacklevel: int = 6,
) -> tuple[Table, Report]:
    """The table of these rows, truncated to `width`, without those that have no tokens; and its report.

    `stacklevel` leads a warning to the caller of get_task or Task.from_arrays.
    """
    kept = [i for i, ids in enumerate(encoded) if len(ids)]
    if not kept:
        raise DataError(f"none of the {len(items)} rows of {origin.name} holds a single token")
    names, labels = number_classes(origin, [items[i] for i in kept], class_names)
    members = {split: np.flatnonzero([splits[i] == split for i in kept]) for split in SPLITS}
    _check_members(origin, members, shares)
    if len(np.unique(labels[members["train"]])) < 2:
        raise DataError(
            f"{origin.name}: all {len(members['train'])} rows of its train split have the label "
            f"{names[labels[members['train'][0]]]!r}; lower {_shares(origin)}, or add rows"
        )
    _warn_of_skipped(origin, items, encoded, stacklevel)
    rows = [encoded[i][:width] if keep == "start" else encoded[i][-width:] for i in kept]
    heldout = np.concatenate([rows[i] for i in members["heldout"]])
    unknown = 0.0 if tokeniser.unknown_id is None else float((heldout == tokeniser.unknown_id).mean())
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    table = Table(np.concatenate(rows), lengths, labels, members, names, width)
    return table, Report(
        rows_read=len(items),
        rows={split: len(rows_of) for split, rows_of in members.items()},
        rows_skipped=len(items) - len(kept),
        rows_truncated=sum(len(encoded[i]) > width for i in kept),
        unknown_share=unknown,
        tokenizer=tokeniser.name,
        width=width,
        vocabulary=len(tokeniser.symbols),
    )


def _shares(origin: Origin) -> str:
    return f"heldout_share or test_share, as in {origin.typed('heldout_share', 0.1)}"


def _check_members(origin: Origin, members: Mapping[Split, NDArray[np.int64]], shares: Shares) -> None:
    total = sum(len(rows) for rows in members.values())
    for split, rows in members.items():
        if len(rows) or (split == "test" and shares.test_share == 0):
            continue
        advice = (
            f"lower {_shares(origin)}"
            if split == "train"
            else f"raise {split}_share, as in {origin.typed(f'{split}_share', 0.3)}"
        )
        held = f"heldout_share = {shares.heldout_share}, test_share = {shares.test_share}"
        raise DataError(
            f"{origin.name}: none of its {total} rows falls into the split {split!r} ({held}); "
            f"{advice}, or add rows (equal rows count once: a row's content decides its split)"
        )


def _warn_of_skipped(
    origin: Origin, items: Sequence[Item], encoded: Sequence[NDArray[np.int32]], stacklevel: int
) -> None:
    empty = [item.number for item, ids in zip(items, encoded, strict=True) if not len(ids)]
    if empty:
        warnings.warn(
            f"{origin.name}: {len(empty)} of {len(items)} rows tokenise to nothing and were skipped "
            f"(the first: {origin.unit} {empty[0]})",
            DataWarning,
            stacklevel=stacklevel,
        )
