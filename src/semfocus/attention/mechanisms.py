"""Which keys a query keeps: small frozen values that can be hashed, compared, printed and named in a config.

    TopK(5)                       topk:5             the five keys with the largest scores
    TopK(8, sinks=4, window=16)   topk:8+4s+16w      ... besides the first four keys and the sixteen nearest
    Banded(9, globals=1)          banded:9+1g        a window of nine; the last token sees all and is seen by all

`keep` is the definition that the oracle uses and every backend is tested against. Query i of Lq stands at
position p = i + Lk - Lq, so that the last query and the last key share a position. Adding a mechanism is one
class with its own `choose` (or what `choose` of `ScoreRanked` or `Positional` is made of) and `@register_mechanism`;
the values themselves do not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from semfocus.attention.registry import is_registered as is_registered
from semfocus.attention.registry import mechanism_class as mechanism_class
from semfocus.attention.registry import mechanism_names as mechanism_names
from semfocus.attention.registry import parse_mechanism as parse_mechanism
from semfocus.attention.registry import register_mechanism as register_mechanism
from semfocus.errors import check_int

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.attention.positions import Positions


@dataclass(frozen=True)
class Mechanism(ABC):
    """What a query may look at. Its dataclass fields are whole numbers; the text form writes them by letter."""

    name: ClassVar[str]
    depends_on_input: ClassVar[bool]
    is_stochastic: ClassVar[bool] = False  # whether it takes random numbers
    suffixes: ClassVar[dict[str, str]] = {}  # letter in the text form -> field

    def keep(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        *,
        causal: bool = False,
        positions: Positions | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        """(..., Lq, Lk) bool: the keys each query keeps, never one outside `valid` or, if causal, after its position.

        `places` says which queries the rows of `scores` are (default: all of them); `seed` is for random choices.
        """
        from semfocus.attention.positions import Positions

        return self.choose(scores.detach(), valid, causal, positions or Positions.of(scores), seed)

    @abstractmethod
    def choose(
        self, scores: Tensor, valid: Tensor | None, causal: bool, positions: Positions, seed: Tensor | None
    ) -> Tensor:
        """What `keep` says: each mechanism's own part of it. A score of -inf counts as masked."""

    def max_kept(self, keys: int) -> int:
        """The most keys that a query can keep of this many."""
        return keys

    def _check_fields(self, size: str) -> None:
        """All fields are whole numbers: the size at least 1, extras at least 0."""
        for name in self.__match_args__:
            label = f"{type(self).__name__}.{name}"
            number = check_int(label, getattr(self, name), at_least=int(name == size), at_most=2**63 - 1)
            object.__setattr__(self, name, number)

    def __str__(self) -> str:
        values: dict[str, int] = {name: getattr(self, name) for name in self.__match_args__}
        size = "".join(f":{value}" for name, value in values.items() if name not in self.suffixes.values())
        extras = "".join(f"+{values[name]}{letter}" for letter, name in self.suffixes.items() if values[name])
        return f"{self.name}{size}{extras}"


class Positional(Mechanism):
    """A pattern of positions alone: what it keeps does not depend on the input."""

    depends_on_input = False

    @abstractmethod
    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        """(Lq, Lk) bool, before causality and masks take keys away."""

    def choose(
        self, scores: Tensor, valid: Tensor | None, causal: bool, positions: Positions, seed: Tensor | None
    ) -> Tensor:
        return positions.allowed(self.pattern(positions, causal) & (scores != float("-inf")), valid, causal)


@dataclass(frozen=True)
class Local(Positional):
    """A pattern of `width` keys a query, computable from its position.

    The last `globals` keys and queries are global: they see all and are seen by all.
    """

    suffixes = {"g": "globals"}

    width: int
    globals: int = 0

    def __post_init__(self) -> None:
        self._check_fields("width")

    def max_kept(self, keys: int) -> int:
        return keys if self.globals else min(self.width, keys)

    @abstractmethod
    def indices(self, positions: Positions, causal: bool) -> Tensor:
        """(Lq, n) int64: the keys of each query that is not global, -1 for none; the pattern again, as a list."""


@dataclass(frozen=True)
class ScoreRanked(Mechanism):
    """Keeps the k keys of highest priority among the valid ones; ties go to the lowest index, NaN comes first."""

    k: int

    def __post_init__(self) -> None:
        self._check_fields("k")

    @abstractmethod
    def priority(self, scores: Tensor, positions: Positions, seed: Tensor | None) -> Tensor:
        """What ranks the keys; any float dtype, broadcastable to the scores."""

    def always_kept(self, positions: Positions, causal: bool) -> Tensor | None:
        """(Lq, Lk) bool: keys that are kept in addition and do not use up k."""
        return None

    def max_kept(self, keys: int) -> int:
        return min(self.k, keys)

    def choose(
        self, scores: Tensor, valid: Tensor | None, causal: bool, positions: Positions, seed: Tensor | None
    ) -> Tensor:
        from semfocus.attention.selection import topk_mask_by_sorting

        free, fixed = self.candidates(scores, valid, causal, positions)
        chosen = topk_mask_by_sorting(self.priority(scores, positions, seed), free, self.k)
        return chosen if fixed is None else chosen | fixed

    def candidates(
        self, scores: Tensor, valid: Tensor | None, causal: bool, positions: Positions
    ) -> tuple[Tensor, Tensor | None]:
        """The keys to choose among, and those that are kept in any case (None if there are none)."""
        allowed = positions.allowed(scores != float("-inf"), valid, causal)
        always_kept = self.always_kept(positions, causal)
        return (allowed, None) if always_kept is None else (allowed & ~always_kept, allowed & always_kept)


@register_mechanism
@dataclass(frozen=True)
class Full(Positional):
    """Every key."""

    name = "full"

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.key >= 0


@register_mechanism
@dataclass(frozen=True)
class Banded(Local):
    """The `width` keys around the query: (width - 1) // 2 to its left, the rest to its right; causal: the last ones.

    At the borders the window moves inward, so that it always holds min(width, keys) keys.
    """

    name = "banded"

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.window(self.width, self.globals, causal) | positions.touches_global(self.globals)

    def indices(self, positions: Positions, causal: bool) -> Tensor:
        return positions.run(positions.window_start(self.width, self.globals, causal), self.width, self.globals)


@register_mechanism
@dataclass(frozen=True)
class BlockLocal(Local):
    """The keys in the query's own aligned block of `width` positions (the last block may be short), and globals."""

    name = "block_local"

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.block(self.width) | positions.touches_global(self.globals)

    def indices(self, positions: Positions, causal: bool) -> Tensor:
        return positions.run(positions.position // self.width * self.width, self.width, self.globals)


@register_mechanism
@dataclass(frozen=True)
class TopK(ScoreRanked):
    """The k keys with the largest scores; `sinks` first and `window` nearest keys are kept besides."""

    name = "topk"
    depends_on_input = True
    suffixes = {"s": "sinks", "w": "window"}

    sinks: int = 0
    window: int = 0

    def priority(self, scores: Tensor, positions: Positions, seed: Tensor | None) -> Tensor:
        return scores

    def always_kept(self, positions: Positions, causal: bool) -> Tensor | None:
        if not self.sinks and not self.window:
            return None
        sinks = (positions.key < self.sinks).expand(positions.queries, -1)
        return sinks | positions.window(self.window, 0, causal) if self.window else sinks

    def max_kept(self, keys: int) -> int:
        return min(self.k + self.sinks + self.window, keys)


@register_mechanism
@dataclass(frozen=True)
class BottomK(ScoreRanked):
    """The k keys with the smallest scores: a control that is as sparse as top-k and looks the wrong way."""

    name = "bottomk"
    depends_on_input = True

    def priority(self, scores: Tensor, positions: Positions, seed: Tensor | None) -> Tensor:
        return -scores


@register_mechanism
@dataclass(frozen=True)
class RandomK(ScoreRanked):
    """k keys drawn without replacement: a control that is as sparse as top-k and does not look at all."""

    name = "randomk"
    depends_on_input = False
    is_stochastic = True
    suffixes = {"r": "seed"}

    seed: int = 0

    def priority(self, scores: Tensor, positions: Positions, seed: Tensor | None) -> Tensor:
        import torch

        from semfocus.counter_rng import random_order

        stream = torch.full((), self.seed, dtype=torch.int64, device=scores.device) if seed is None else seed
        return random_order(stream, positions.row_ids(scores.shape[:-2], stream), positions.key.to(torch.int32))


@register_mechanism
@dataclass(frozen=True)
class RandomKWithReplacement(Mechanism):
    """k draws with replacement, so that a query keeps k keys or fewer: the random-k of the paper's code, a quirk."""

    name = "randomk_replaced"
    depends_on_input = False
    is_stochastic = True
    suffixes = {"r": "seed"}

    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_fields("k")

    def max_kept(self, keys: int) -> int:
        return min(self.k, keys)

    def choose(
        self, scores: Tensor, valid: Tensor | None, causal: bool, positions: Positions, seed: Tensor | None
    ) -> Tensor:
        import torch

        from semfocus.counter_rng import random_bits

        allowed = positions.allowed(scores != float("-inf"), valid, causal)
        stream = torch.full((), self.seed, dtype=torch.int64, device=scores.device) if seed is None else seed
        draws = torch.arange(self.k, dtype=torch.int32, device=scores.device)
        bits = random_bits(stream, positions.row_ids(scores.shape[:-2], stream), draws)
        rank = allowed.cumsum(dim=-1)  # 1 for the first key that may be drawn, 2 for the second, ...
        drawn = (((bits >> 8) & 0xFFFFFF).long() * allowed.sum(dim=-1, keepdim=True) >> 24) + 1
        return allowed & (rank.unsqueeze(-1) == drawn.unsqueeze(-2)).any(dim=-1)
