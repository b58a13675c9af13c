"""What a task is: something that can draw rows of token ids with one class each, and can label any row.

    task = get_task("parity", length=8)
    batch = task.sample(3, seed=7, split="train")

    batch.tokens    0 1 1 0 1 0 0 1      ids 0 .. vocab_size-1, then pad_id up to the task's width
    batch.labels    0                    one class a row
    batch.lengths   8                    what stands beyond a row's length is padding, whatever its id

Generators work in numpy; torch appears only at the border, so that listing tasks does not import it.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_int
from semfocus.randomness import Stream, stream
from semfocus.tasks import cache as disk

if TYPE_CHECKING:
    import torch

Split = Literal["train", "heldout", "test"]
SPLITS: tuple[Split, ...] = ("train", "heldout", "test")
Span = tuple[int, int]
Per = Literal["row", "batch"]
NO_TARGET = -100  # the label of a position where nothing is to be predicted, as torch has it
Progress = Callable[[int, int], None]  # rows done, rows wanted


_OLD_NAMES = {"num_symbols": "vocab_size", "width": "seq_len"}  # of a task's properties, before 0.2


class Rows(NamedTuple):
    """A batch while it is still numpy: tokens (n, width), labels (n,), lengths (n,), all int64."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows as torch tensors: tokens (n, L), labels (n,), lengths (n,), all int64."""

    tokens: torch.Tensor
    labels: torch.Tensor
    lengths: torch.Tensor

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A source of labelled rows. Its dataclass fields are its options; everything else follows from them."""

    name: ClassVar[str]
    summary: ClassVar[str]
    generator_version: ClassVar[int] = 1  # raise it when the same seed starts to give other rows
    objective: ClassVar[str] = "classification"  # or "next_token", or one registered with `register_objective`
    # How many examples a run takes where rows can be drawn without end; None: the configuration must say.
    default_train_rows: ClassVar[int | None] = 5000
    default_heldout_rows: ClassVar[int | None] = 2000
    published_baselines: ClassVar[Mapping[str, float]] = {}  # for the default options
    cached_by_default: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in _OLD_NAMES.items():
            if old in vars(cls) and new not in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is now {cls.__name__}.{new}", DeprecationWarning, stacklevel=2)
                setattr(cls, new, property(lambda self, old=old: getattr(self, old)))

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """The text of each id, used by render and parse; a generator writes `symbols = ("0", "1")`."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """How many classes there are; a generator writes `num_classes = 2`."""

    @property
    def vocab_size(self) -> int:
        """How many ids rows are made of; `pad_id` comes right after them."""
        return len(self.symbols)

    @property
    def pad_id(self) -> int:
        """The id that fills positions beyond a row's length."""
        return self.vocab_size

    @property
    @abstractmethod
    def seq_len(self) -> int:
        """L, the number of columns of every batch: fixed by the options, not by the sample."""

    @property
    def num_symbols(self) -> int:
        """The old name of `vocab_size`."""
        warnings.warn("Task.num_symbols is now Task.vocab_size", DeprecationWarning, stacklevel=2)
        return self.vocab_size

    @property
    def width(self) -> int:
        """The old name of `seq_len`."""
        warnings.warn("Task.width is now Task.seq_len", DeprecationWarning, stacklevel=2)
        return self.seq_len

    @property
    def class_names(self) -> tuple[str, ...]:
        """How each class is called."""
        return tuple(str(i) for i in range(self.num_classes))

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, as `get_task` takes them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    @property
    def baselines(self) -> dict[str, float]:
        """Accuracies that need no learning: chance, majority class, the easy shortcut.

        The last two are known for the published options only; for others just chance is given.
        """
        chance = {"chance": 1 / self.num_classes}
        is_published = all(
            getattr(self, field.name) == field.default for field in dataclasses.fields(self) if field.init
        )
        return chance | dict(self.published_baselines) if is_published else chance

    def data_seed(self, run_seed: int) -> int:
        """The seed that a run draws its data with: its own, unless all runs share one data set."""
        return run_seed

    def size(self, split: Split) -> int | None:
        """How many rows a split holds; None when rows can be drawn without end."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        """What defines the rows this task gives, as plain JSON values: part of a run's identity."""
        return {"task": self.name, "version": self.generator_version, "options": self.options}

    def sample(
        self,
        n: int,
        *,
        seed: int,
        split: Split = "train",
        lengths: Span | None = None,
        per: Per = "row",
        cache: bool | None = None,
        progress: Progress | None = None,
    ) -> Batch:
        """Draw `n` labelled rows; seed and split name independent streams, and the same call gives the same rows.

        `lengths=(1, 40)` draws a length uniformly from that range, both ends included, for each row or
        (`per="batch"`) once for all. `cache` keeps the rows on disk (default: only where drawing is slow).
        """
        n, seed = check_int("n", n, at_least=0), check_int("seed", seed)
        if split not in SPLITS:
            raise UsageError(f"split = {split!r} is not one of {', '.join(SPLITS)}")
        if per not in ("row", "batch"):
            raise UsageError(f"per = {per!r} is not one of row, batch")
        span = None if lengths is None else self._checked_span(lengths)

        def draw() -> Rows:
            rng = stream(seed, f"tasks/{self.name}/{split}")
            return self.draw(n, span, per, rng, seed=seed, split=split, progress=progress)

        if cache if cache is not None else self.cached_by_default:
            key = {**self.fingerprint(), "seed": seed, "split": split, "n": n, "lengths": span, "per": per}
            rows = Rows(*disk.remember(key, draw, shape=(n, self.seq_len)))
        else:
            rows = draw()
        return as_batch(rows)

    @abstractmethod
    def draw(
        self,
        n: int,
        span: Span | None,
        per: Per,
        rng: Stream,
        *,
        seed: int,
        split: Split,
        progress: Progress | None,
    ) -> Rows:
        """Draw rows; the arguments have been checked."""

    def label(self, tokens: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """The class of each row, computed from its tokens alone, by a rule that shares no code with the generator.

        Without `lengths` a row ends where its trailing padding begins.
        """
        import torch

        rows = np.asarray(tokens)
        if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "iu":
            raise UsageError(f"tokens must be integers of shape (n, L), not {rows.dtype} {rows.shape}")
        ends = self._content_lengths(rows) if lengths is None else np.asarray(lengths)
        whole = ends.dtype.kind in "iu" and ends.shape == rows.shape[:1]
        if not whole or (ends < 1).any() or (ends > rows.shape[1]).any():
            raise UsageError(f"lengths must be {rows.shape[0]} integers from 1 to {rows.shape[1]}")
        rows = rows.astype(np.int64)
        illegal = ((rows < 0) | (rows >= self.vocab_size)) & within(ends, rows.shape[1])
        illegal &= ~self._filler(rows, ends)
        if illegal.any():
            i, j = np.argwhere(illegal)[0]
            raise UsageError(
                f"row {i} has the id {rows[i, j]} at position {j}; {self.name} uses 0 .. {self.vocab_size - 1}"
            )
        return torch.from_numpy(self.label_rows(rows, ends.astype(np.int64)))

    @abstractmethod
    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """`label`, in numpy, with checked arguments."""

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        """A row as people write it, without its padding: `0110`, `[MAX 2 [MIN 7 4 ] 3 ]`."""
        ids = np.asarray(row).astype(np.int64)
        if length is None:
            length = int(self._content_lengths(ids[None])[0])
        texts = (*self.symbols, "#")
        if ((ids < 0) | (ids >= len(texts))).any():
            raise UsageError(f"{ids.tolist()} is not a row of {self.name}, whose ids are 0 .. {len(texts) - 1}")
        return self._joint().join(texts[i] for i in ids[:length])

    def render_label(self, label: int | Sequence[int]) -> str:
        """A label as people write it: the name of its class, or the symbols of those positions that have a target."""
        if isinstance(label, int):
            return self.class_names[label]
        return self._joint().join(self.symbols[i] for i in label if i != NO_TARGET)

    def parse(self, text: str) -> torch.Tensor:
        """The ids of a row written as `render` writes it; spaces between one-character symbols do not matter."""
        import torch

        pieces = list("".join(text.split())) if self._joint() == "" else text.split()
        ids = {symbol: i for i, symbol in enumerate((*self.symbols, "#"))}
        for place, piece in enumerate(pieces):
            if piece not in ids:
                raise UsageError(f"{piece!r} at place {place} is not a symbol of {self.name}: {' '.join(self.symbols)}")
        return torch.tensor([ids[piece] for piece in pieces], dtype=torch.int64)

    @staticmethod
    def from_arrays(tokens: Any, labels: Any, **options: Any) -> Task:
        """A task over rows that are already in memory; see `semfocus.tasks.arrays.ArrayTask.build`."""
        from semfocus.tasks.arrays import ArrayTask

        return ArrayTask.build(tokens, labels, **options)

    def _joint(self) -> str:
        return "" if all(len(symbol) == 1 for symbol in self.symbols) else " "

    def _content_lengths(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        filled = tokens != self.pad_id
        return tokens.shape[1] - np.argmax(filled[:, ::-1], axis=1)

    def _filler(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where `pad_id` stands for something inside a row (missing_duplicate completes odd rows with it)."""
        return np.zeros(tokens.shape, dtype=bool)

    def _checked_span(self, lengths: Span) -> Span:
        try:
            low, high = (check_int("lengths", bound) for bound in lengths)
        except (TypeError, ValueError) as error:
            raise UsageError(f"lengths = {lengths!r} must be two integers (shortest, longest)") from error
        if not 1 <= low <= high <= self.seq_len:
            raise UsageError(
                f"lengths = ({low}, {high}) must satisfy 1 <= shortest <= longest <= {self.seq_len}, "
                f"the width that the options of {self.name} fix"
            )
        return low, high


@dataclass(frozen=True, kw_only=True)
class LengthTask(Task):
    """A task whose rows can have any length from `shortest` on; subclasses write `generate` and `label_rows`."""

    shortest: ClassVar[int] = 1

    length: int = 40

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_int("length", self.length))
        if self.length < self.shortest:
            raise UsageError(f"length = {self.length} is too short for {self.name}; choose length >= {self.shortest}")

    @property
    def seq_len(self) -> int:
        return self.length

    @abstractmethod
    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens (n, width) and labels (n,) for rows of these lengths; what stands beyond a length is overwritten."""

    def draw(
        self,
        n: int,
        span: Span | None,
        per: Per,
        rng: Stream,
        *,
        seed: int,
        split: Split,
        progress: Progress | None,
    ) -> Rows:
        low, high = span or (self.length, self.length)
        if low < self.shortest:
            raise UsageError(f"lengths = ({low}, {high}): {self.name} needs at least {self.shortest} tokens a row")
        lengths = low + rng.integers(high - low + 1, n if per == "row" else 1)
        lengths = np.broadcast_to(lengths, (n,)).copy()
        tokens, labels = self.generate(lengths, rng)
        tokens[~within(lengths, self.seq_len)] = self.pad_id
        return Rows(tokens, labels, lengths)


def within(lengths: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """(n, width): True where a position lies inside its row."""
    return np.arange(width) < lengths[:, None]


def next_tokens(tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n, L) the labels of a `next_token` task: token t + 1 at position t, NO_TARGET at the last one and in padding.

    a b c #  ->  b c -100 -100
    """
    labels = np.full_like(tokens, NO_TARGET)
    labels[:, :-1] = np.where(within(lengths - 1, tokens.shape[1] - 1), tokens[:, 1:], NO_TARGET)
    return labels


def as_batch(rows: Rows) -> Batch:
    """The same rows as torch tensors."""
    import torch

    return Batch(*(torch.from_numpy(np.ascontiguousarray(column)) for column in rows))
