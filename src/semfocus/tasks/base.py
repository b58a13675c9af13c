"""What a task is: it draws sequences of token ids with one label each, and can label any sequence.

    task = get_task("parity", length=8)
    batch = task.sample(3, seed=7, split="train")

    batch.tokens    0 1 1 0 1 0 0 1      ids 0 .. vocab_size-1, then pad_id up to the task's seq_len
    batch.labels    0                    one class a sequence (or one a position, see `Task.objective`)
    batch.lengths   8                    positions from the length on are padding, whatever their id

Generators work in numpy. torch is imported only where a batch becomes tensors: listing tasks does not need it.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_int
from semfocus.randomness import Stream, stream
from semfocus.tasks import cache as disk
from semfocus.tasks.baselines import measured
from semfocus.tasks.batch import (
    NO_TARGET,
    Batch,
    DrawRequest,
    Per,
    Progress,
    Rows,
    Span,
    Split,
    Windows,
    as_batch,
    within,
)

if TYPE_CHECKING:
    import torch

MAX_LENGTH = 2**20
_OLD_NAMES = {"num_symbols": "vocab_size", "width": "seq_len"}  # of a task's properties, before 0.2


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A source of labelled sequences. Its dataclass fields are its options, and decide everything else."""

    name: ClassVar[str]
    summary: ClassVar[str]
    generator_version: ClassVar[int] = 1  # increase it when the same seed gives other examples
    objective: ClassVar[str] = "classification"  # or "next_token", or one registered with `register_objective`
    # How many examples a run takes of a task without a fixed size; None: the configuration must say.
    default_train_rows: ClassVar[int | None] = 5000
    default_heldout_rows: ClassVar[int | None] = 2000
    published_baselines: ClassVar[Mapping[str, float]] = {}  # for the default options
    cached_by_default: ClassVar[bool] = False
    language_size: ClassVar[str | None] = None  # the size of its models by default, see `decoders.SIZES`; None: no text
    reads_files: ClassVar[bool] = False  # its options may name files, which a foreign run directory must not open
    other_spellings: ClassVar[Mapping[str, str]] = {}  # of options

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in _OLD_NAMES.items():
            if old in vars(cls) and new not in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is now {cls.__name__}.{new}", DeprecationWarning, stacklevel=2)
                setattr(cls, new, property(lambda self, old=old: getattr(self, old)))

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """The text of each id, for `render` and `parse`; a subclass may write `symbols = ("0", "1")`."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """The number of classes; a subclass may write `num_classes = 2`."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids; `pad_id` is the next one."""
        return len(self.symbols)

    @property
    def pad_id(self) -> int:
        """The id of positions beyond a sequence's length."""
        return self.vocab_size

    @property
    @abstractmethod
    def seq_len(self) -> int:
        """L, the number of columns of every batch; the options decide it, not the drawn examples."""

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
        """The name of each class."""
        return tuple(str(i) for i in range(self.num_classes))

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, as `get_task` takes them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    @property
    def baselines(self) -> dict[str, float]:
        """Accuracies without learning: chance, the majority class, the easy shortcut.

        For the published options they are the published ones; for other options, and tasks that publish none, they are
        measured (`semfocus.tasks.baselines`), and those no better than chance left out.
        """
        chance = {"chance": 1 / self.num_classes}
        if self.published_baselines and all(
            getattr(self, field.name) == field.default for field in dataclasses.fields(self) if field.init
        ):
            return chance | dict(self.published_baselines)
        return chance | measured(self)

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth knowing of given data, as plain JSON values, kept with every run; empty of a generator."""
        return {}

    def data_seed(self, run_seed: int) -> int:
        """The seed of a run's data: the run's own seed, unless all runs share one data set."""
        return run_seed

    def size(self, split: Split) -> int | None:
        """The number of examples of a split; None when examples are drawn without limit."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        """What defines the examples of this task, as plain JSON values; it is part of a run's identity."""
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
        """Draw `n` labelled examples. Seed and split name independent streams; the same call gives the same examples.

        `lengths=(1, 40)` draws a length uniformly from that range, both ends included, for each example or
        (`per="batch"`) once for all. `cache` stores the examples on disk (default: only tasks that draw slowly).
        """
        span = None if lengths is None else self._checked_span(lengths)
        request = DrawRequest(n=n, seed=seed, split=split, lengths=span, per=per, progress=progress)

        def draw() -> Rows:
            return self.draw(request, self._draws(request))

        if cache if cache is not None else self.cached_by_default:
            own = {"seed": request.seed, "split": split, "n": request.n, "lengths": span, "per": per}
            rows = Rows(*disk.remember({**self.fingerprint(), **own}, draw, shape=(request.n, self.seq_len)))
        else:
            rows = draw()
        return as_batch(rows)

    def windows(self, n: int, *, seed: int, split: Split = "train") -> Windows | None:
        """The examples of `sample`, not read yet; None of a task whose examples do not lie in a stream on disk."""
        return None

    def _draws(self, request: DrawRequest) -> Stream:
        """The random numbers of a request."""
        return stream(request.seed, f"tasks/{self.name}/{request.split}")

    @abstractmethod
    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        """Draw the requested examples from `rng`."""

    def label(self, tokens: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """The label of each example of `tokens` (n, L), by a rule that shares no code with the generator.

        Without `lengths` (n,) an example ends where its trailing padding begins.
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
        """`label` in numpy, with checked arguments: tokens (n, L) and lengths (n,) to labels (n,) or (n, L)."""

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        """One example as text, without its padding: `0110`, `[MAX 2 [MIN 7 4 ] 3 ]`."""
        ids = np.asarray(row).astype(np.int64)
        if length is None:
            length = int(self._content_lengths(ids[None])[0])
        texts = (*self.symbols, "#")
        if ((ids < 0) | (ids >= len(texts))).any():
            raise UsageError(f"{ids.tolist()} is not a row of {self.name}, whose ids are 0 .. {len(texts) - 1}")
        return self._joint().join(texts[i] for i in ids[:length])

    def render_label(self, label: int | Sequence[int]) -> str:
        """A label as text: the name of its class, or the symbols of the positions that have a target."""
        if isinstance(label, int):
            return self.class_names[label]
        return self._joint().join(self.symbols[i] for i in label if i != NO_TARGET)

    def parse(self, text: str) -> torch.Tensor:
        """The ids of an example, the inverse of `render`; spaces between one-character symbols are ignored."""
        import torch

        pieces = list("".join(text.split())) if self._joint() == "" else text.split()
        ids = {symbol: i for i, symbol in enumerate((*self.symbols, "#"))}
        for place, piece in enumerate(pieces):
            if piece not in ids:
                raise UsageError(f"{piece!r} at place {place} is not a symbol of {self.name}: {' '.join(self.symbols)}")
        return torch.tensor([ids[piece] for piece in pieces], dtype=torch.int64)

    @staticmethod
    def from_arrays(tokens: Any, labels: Any, **options: Any) -> Task:
        """A task over arrays in memory; see `semfocus.tasks.arrays.ArrayTask.build`."""
        from semfocus.tasks.arrays import ArrayTask

        return ArrayTask.build(tokens, labels, **options)

    def _joint(self) -> str:
        return "" if all(len(symbol) == 1 for symbol in self.symbols) else " "

    def _content_lengths(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        is_token = tokens != self.pad_id
        return tokens.shape[1] - np.argmax(is_token[:, ::-1], axis=1)

    def _filler(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n, L) where `pad_id` is content, not padding: missing_duplicate ends examples of odd length with it."""
        return np.zeros(tokens.shape, dtype=bool)

    def _checked_span(self, lengths: Span) -> Span:
        try:
            low, high = (check_int("lengths", bound) for bound in lengths)
        except (TypeError, ValueError) as error:
            raise UsageError(f"lengths = {lengths!r} must be two integers (shortest, longest)") from error
        most, what = self._longest
        if not 1 <= low <= high <= most:
            raise UsageError(
                f"lengths = ({low}, {high}) must satisfy 1 <= shortest <= longest <= {most}, {what} that follows from "
                f"the options of {self.name}"
            )
        return low, high

    @property
    def _longest(self) -> tuple[int, str]:
        """The largest of the lengths that `sample` may be asked for, and what it is."""
        return self.seq_len, "the seq_len"


@dataclass(frozen=True, kw_only=True)
class LengthTask(Task):
    """A task of sequences of any length from `shortest` on; subclasses write `generate` and `label_rows`."""

    shortest: ClassVar[int] = 1

    length: int = 40

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_int("length", self.length))
        if self.length > MAX_LENGTH:
            raise UsageError(f"length = {self.length} exceeds {MAX_LENGTH}, the most that a row may have; choose fewer")
        if self.length < self.shortest:
            raise UsageError(f"length = {self.length} is too short for {self.name}; choose length >= {self.shortest}")

    @property
    def seq_len(self) -> int:
        return self.length

    @abstractmethod
    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw tokens (n, L) and labels of these lengths (n,); tokens beyond a length are overwritten by padding."""

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        low, high = request.lengths or (self.length, self.length)
        if low < self.shortest:
            raise UsageError(f"lengths = ({low}, {high}): {self.name} needs at least {self.shortest} tokens a row")
        lengths = low + request.choose(high - low + 1, rng)
        tokens, labels = self.generate(lengths, rng)
        tokens[~within(lengths, self.seq_len)] = self.pad_id
        return Rows(tokens, labels, lengths)
