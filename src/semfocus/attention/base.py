"""What a mechanism is: the base classes, and what a mechanism sees when it chooses keys.

A mechanism is a frozen dataclass whose fields are numbers. Three base classes:

    Mechanism      define `choose`: any rule over scores, queries, keys and positions
    ScoreRanked    define `priority`: the k keys of highest priority are kept
    Positional     define `pattern`: the kept keys follow from positions alone

Backends ask a mechanism by its attributes, never by its type. The defaults are safe: a backend that relies on a
claim which a mechanism does not make is not used for it. Nothing here imports torch when it is imported.

Shapes: Lq queries, Lk keys, D head width; leading dimensions (...) broadcast together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from semfocus.errors import UsageError, check_float, check_int

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.attention.positions import Positions
    from semfocus.attention.weights import LayerSizes, Learned, Normaliser

LARGEST = 2**63 - 1
LARGEST_MARKED = 1e6  # a number of this size plus a score is still finite in float32
# Claims that fast paths rely on. A subclass may choose other keys, so it does not inherit them: it claims them anew.
NOT_INHERITED = (
    "keeps_all", "keeps_blocks", "score_order", "ignores_trailing_padding", "counts_from_start", "variant_of",
)  # fmt: skip
DEFINITIONS = ("choose", "always_kept", "pattern", "indices")
VOIDABLE = ("is_ranked", "is_local", "max_kept", "max_listed", "uses_positions", "depends_on_input")
NEVER = 10**6  # older than any class


@dataclass(frozen=True)
class SelectionInputs:
    """What a mechanism sees when it chooses keys. The choice is a constant for the gradient."""

    scores: Tensor  # (..., Lq, Lk), scaled, with the float mask added; -inf counts as masked
    positions: Positions  # which queries these are
    valid: Tensor | None = None  # bool, broadcastable to the scores: keys that mask and lengths leave
    causal: bool = False
    seed: Tensor | None = None  # for random choices
    vectors: tuple[Tensor, Tensor] | None = None  # queries and keys
    learned: Mapping[str, Tensor] | None = None  # parameters of a layer, by name

    @property
    def queries(self) -> Tensor:
        """(..., Lq, D) in the dtype of the scores."""
        return self._vectors()[0].detach()

    @property
    def keys(self) -> Tensor:
        """(..., Lk, D) in the dtype of the scores."""
        return self._vectors()[1].detach()

    @property
    def allowed(self) -> Tensor:
        """(..., Lq, Lk) bool: the keys that each query may keep."""
        return self.positions.allowed(self.scores != float("-inf"), self.valid, self.causal)

    @property
    def valid_queries(self) -> Tensor | None:
        """(..., Lq, 1) bool: the queries that are no padding, where it can be told; None where all may count.

        In self-attention, query i stands at key i: where mask or lengths hide that key from all, both are padding.
        """
        where = self.positions
        if self.valid is None or not where.total == where.keys == where.queries:
            return None
        return self.valid.any(dim=-2, keepdim=True).transpose(-1, -2)

    def seed_or(self, own: int) -> Tensor:
        """The seed of the call, or else a mechanism's own."""
        import torch

        if self.seed is not None:
            return self.seed
        return torch.full((), own, dtype=torch.int64, device=self.scores.device)

    def _vectors(self) -> tuple[Tensor, Tensor]:
        if self.vectors is None:
            raise UsageError("this mechanism chooses by queries and keys; pass queries= and keys= to keep")
        return self.vectors


@dataclass(frozen=True)
class Ranking:
    """Of the candidates, the k of highest priority are kept; `always_kept` in addition."""

    priority: Tensor  # broadcastable to the candidates; ties go to the lowest index, NaN comes first
    candidates: Tensor  # (..., Lq, Lk) bool
    always_kept: Tensor | None  # (..., Lq, Lk) bool
    k: int


@dataclass(frozen=True)
class Mechanism(ABC):
    """Which keys a query keeps."""

    name: ClassVar[str]
    suffixes: ClassVar[dict[str, str]] = {}  # letter in the text form -> field, a whole number: topk:8+4s
    marks: ClassVar[dict[str, str]] = {}  # sign in the text form -> field, any number from 0 on: topk:5~0.1
    variant_of: ClassVar[str | None] = None  # the mechanism whose name a text form with one of the marks begins with
    size_name: ClassVar[str | None] = None  # the field that says how many keys a query keeps, if one does

    depends_on_input: ClassVar[bool] = True
    is_stochastic: ClassVar[bool] = False  # takes random numbers
    is_ranked: ClassVar[bool] = False  # has a `ranking`
    is_local: ClassVar[bool] = False  # has `indices`: the keys of a query that is not global follow from its position

    learns: ClassVar[tuple[str, ...]] = ()  # vectors of each head that a call may bring along

    keeps_all: ClassVar[bool] = False  # every allowed key
    keeps_blocks: ClassVar[bool] = False  # the query's aligned block of `size` keys, and global tokens
    score_order: ClassVar[Literal["largest", "smallest"] | None] = None  # ranks exactly by score

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        for claim in NOT_INHERITED:
            if claim not in own:
                setattr(cls, claim, vars(Mechanism)[claim])
        # A definition that is newer than a claim about it, in this class or in a mixin, makes the claim void.
        age = {name: _age(cls, name) for name in (*DEFINITIONS, *VOIDABLE)}
        if age["choose"] < age["is_ranked"]:
            cls.is_ranked = False
        if age["choose"] < age["is_local"] or age["pattern"] < age["indices"]:
            cls.is_local = False
        chosen = min(age["choose"], age["always_kept"], age["pattern"] if not cls.is_local else NEVER)
        for claim in ("max_kept", "max_listed"):
            if chosen < age[claim]:
                setattr(cls, claim, vars(Mechanism)[claim])
        if min(age["choose"], age["pattern"]) < age["uses_positions"]:
            cls.uses_positions = vars(Mechanism)["uses_positions"]
        if age["choose"] < age["depends_on_input"]:
            cls.depends_on_input = True

    def __post_init__(self) -> None:
        """All fields but marked ones are whole numbers: the size at least 1, the others at least 0."""
        for name in self.__match_args__:
            field, value = f"{type(self).__name__}.{name}", getattr(self, name)
            if name in self.marks.values():
                number = check_float(field, value, 0.0, LARGEST_MARKED)
            else:
                number = check_int(field, value, int(name not in self.suffixes.values()), LARGEST)
            object.__setattr__(self, name, number)

    def keep(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        *,
        causal: bool = False,
        positions: Positions | None = None,
        seed: Tensor | None = None,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """(..., Lq, Lk) bool: the keys each query keeps, never one outside `valid` or, if causal, after its position.

        `positions` says which queries these are (default: all of them); `seed` is for random choices; `queries`
        (..., Lq, D) and `keys` (..., Lk, D) are for mechanisms that look at them.
        """
        from semfocus.attention.positions import Positions

        vectors = None if queries is None or keys is None else (queries, keys)
        where = positions or Positions.of(scores)
        return self.choose(SelectionInputs(scores.detach(), where, valid, causal, seed, vectors))

    @abstractmethod
    def choose(self, inputs: SelectionInputs) -> Tensor:
        """(..., Lq, Lk) bool, never outside `inputs.allowed`: the definition, which every backend is tested against."""

    def ranking(self, inputs: SelectionInputs) -> Ranking:
        """The same choice as a ranking of the keys, where `is_ranked`."""
        raise TypeError(f"{self} does not choose keys by a priority")

    def indices(self, positions: Positions, causal: bool) -> Tensor:
        """(Lq, n) int64, where `is_local`: the keys of each query that is not global, -1 for none.

        For the positions that are taken by default; where others are given, `pattern` says what is kept.
        """
        raise TypeError(f"{self} does not give its keys by position")

    def learned(self, sizes: LayerSizes) -> Mapping[str, Learned]:
        """The parameters that a layer of these sizes has for this mechanism, by name."""
        return {}

    def gaps(
        self, learned: Mapping[str, Tensor], queries: Tensor, keys: Tensor, valid: Tensor | None
    ) -> dict[str, Tensor]:
        """How far averaged parameters are from what they follow in training, by name.

        Queries and keys are (*own, B, H, L, D), where parameters are (*own, *shape); `valid` (*own, B, 1, Lk) leaves
        padding out.
        """
        return {}

    @property
    def normaliser(self) -> Normaliser | None:
        """The normaliser that belongs to this mechanism, which then goes with no other; None: it goes with all."""
        return None

    def refuses(self, queries: int, keys: int) -> str | None:
        """Why it cannot choose among so many keys; None if it can."""
        return None

    @property
    def size(self) -> int | None:
        """k, or the width of a window or block; None where no field says how many keys a query keeps."""
        return None if self.size_name is None else getattr(self, self.size_name)

    @property
    def num_globals(self) -> int:
        """The last so many tokens see all and are seen by all."""
        return 0

    @property
    def num_sinks(self) -> int:
        """The first so many keys are kept in addition."""
        return 0

    @property
    def num_nearest(self) -> int:
        """So many keys nearest to the query are kept in addition."""
        return 0

    @property
    def keeps_largest(self) -> int | None:
        """k if a query keeps exactly the k allowed keys with the largest scores."""
        by_score_alone = self.score_order == "largest" and not self.num_sinks and not self.num_nearest
        return self.size if by_score_alone else None

    @property
    def serves_causal(self) -> bool:
        """Whether `causal=True` has a meaning."""
        return True

    @property
    def uses_positions(self) -> bool:
        """Whether what is kept depends on where queries and keys stand."""
        return True

    @property
    def counts_from_start(self) -> bool:
        """Whether the first key matters, and not only the distance to the query."""
        return True

    @property
    def ignores_trailing_padding(self) -> bool:
        """Whether masked keys behind the others change nothing. A window that counts from the end would move."""
        return False

    def max_kept(self, keys: int) -> int:
        """The most of `keys` that a query can keep."""
        return keys

    def max_listed(self, keys: int) -> int:
        """The most of `keys` that a query can keep which is not global."""
        return self.max_kept(keys)

    def __str__(self) -> str:
        values: dict[str, float] = {name: getattr(self, name) for name in self.__match_args__}
        size = "".join(f":{values[name]}" for name in size_fields(type(self)))
        marked = "".join(f"{mark}{repr(values[name]).removesuffix('.0')}" for mark, name in self.marks.items())
        defaults = {name: getattr(type(self), name, 0) for name in self.suffixes.values()}
        extras = "".join(
            f"+{values[name]}{letter}" for letter, name in self.suffixes.items() if values[name] != defaults[name]
        )
        return f"{self.variant_of or self.name}{size}{marked}{extras}"


def size_fields(cls: type[Mechanism]) -> list[str]:
    """The fields that neither a letter nor a mark names in the text form: none, or the size."""
    # __match_args__ are the fields in order; torch.compile can read them, unlike `dataclasses.fields`.
    return [name for name in cls.__match_args__ if name not in (*cls.suffixes.values(), *cls.marks.values())]


def _age(cls: type, name: str) -> int:
    """How far up the method resolution order an attribute is defined: 0 is the class itself."""
    return next((age for age, base in enumerate(cls.__mro__) if name in vars(base)), NEVER)


class Positional(Mechanism):
    """A pattern of positions alone: what it keeps does not depend on the input."""

    depends_on_input = False

    @abstractmethod
    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        """Bool, broadcastable to (..., Lq, Lk), before causality and masks take keys away."""

    def choose(self, inputs: SelectionInputs) -> Tensor:
        pattern = self.pattern(inputs.positions, inputs.causal) & (inputs.scores != float("-inf"))
        return inputs.positions.allowed(pattern, inputs.valid, inputs.causal)


@dataclass(frozen=True)
class Local(Positional):
    """A pattern of `width` keys a query, computable from its position: `indices` lists it.

    The last `globals` keys and queries are global: they see all and are seen by all.
    """

    suffixes = {"g": "globals"}
    size_name = "width"
    is_local = True

    width: int
    globals: int = 0

    @property
    def num_globals(self) -> int:
        return self.globals

    @property
    def serves_causal(self) -> bool:
        return not self.globals

    def max_kept(self, keys: int) -> int:
        return keys if self.globals else min(self.width, keys)

    def max_listed(self, keys: int) -> int:
        return min(self.width + self.globals, keys)

    @abstractmethod
    def indices(self, positions: Positions, causal: bool) -> Tensor:
        """(Lq, n) int64: the pattern as a list of keys for each query that is not global, -1 for none."""


@dataclass(frozen=True)
class ScoreRanked(Mechanism):
    """Keeps the k keys of highest priority among the allowed ones; ties go to the lowest index, NaN comes first."""

    size_name = "k"
    is_ranked = True

    k: int

    @abstractmethod
    def priority(self, inputs: SelectionInputs) -> Tensor:
        """What ranks the keys; any float dtype, broadcastable to the scores."""

    def always_kept(self, positions: Positions, causal: bool) -> Tensor | None:
        """Bool, broadcastable to (..., Lq, Lk): keys that are kept in addition and do not use up k."""
        return None

    @property
    def uses_positions(self) -> bool:
        import torch

        from semfocus.attention.positions import Positions

        by_score = self.score_order is not None  # otherwise the priority may depend on positions
        return not by_score or self.always_kept(Positions(1, 1, torch.device("cpu"), 0, 1), True) is not None

    def max_kept(self, keys: int) -> int:
        return min(self.k, keys)

    def choose(self, inputs: SelectionInputs) -> Tensor:
        from semfocus.attention.selection import topk_mask_by_sorting

        ranking = self.ranking(inputs)
        chosen = topk_mask_by_sorting(ranking.priority, ranking.candidates, ranking.k)
        return chosen if ranking.always_kept is None else chosen | ranking.always_kept

    def ranking(self, inputs: SelectionInputs) -> Ranking:
        allowed = inputs.allowed
        fixed = self.always_kept(inputs.positions, inputs.causal)
        candidates, always_kept = (allowed, None) if fixed is None else (allowed & ~fixed, allowed & fixed)
        priority = self.priority(inputs)
        if not priority.is_floating_point():
            raise TypeError(f"{self}: priority has dtype {priority.dtype}; return a floating type: priority.float()")
        return Ranking(priority, candidates, always_kept, self.k)
