"""Which keys a query keeps: small frozen values that can be hashed, compared, printed and named in a config.

    TopK(5)                       topk:5             the five keys with the largest scores
    TopK(8, sinks=4, window=16)   topk:8+4s+16w      ... besides the first four keys and the sixteen nearest
    Banded(9, globals=1)          banded:9+1g        a window of nine; the last token sees all and is seen by all

`keep` is the definition that the oracle uses and every backend is tested against. Query i of Lq stands at
position p = i + Lk - Lq, so that the last query and the last key share a position. Adding a mechanism is one
class and `@register_mechanism`; the values themselves do not import torch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from semfocus.errors import UsageError, unknown, whole_number

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.attention.places import Places


@dataclass(frozen=True)
class Mechanism(ABC):
    """What a query may look at. Its dataclass fields are whole numbers; the text form writes them by letter."""

    name: ClassVar[str]
    input_dependent: ClassVar[bool]
    draws: ClassVar[bool] = False  # whether it takes random numbers
    letters: ClassVar[dict[str, str]] = {}  # letter in the text form -> field

    @abstractmethod
    def keep(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        *,
        causal: bool = False,
        places: Places | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        """(..., Lq, Lk) bool: the keys each query keeps, never one outside `valid` or, if causal, after its position.

        `places` says which queries the rows of `scores` are (default: all of them); `seed` is for random choices.
        """

    def most(self, keys: int) -> int:
        """The most keys that a query can keep of this many."""
        return keys

    def _check_fields(self, size: str) -> None:
        """All fields are whole numbers: the size at least 1, extras at least 0."""
        for name in self.__match_args__:
            label = f"{type(self).__name__}.{name}"
            number = whole_number(label, getattr(self, name), at_least=int(name == size), at_most=2**63 - 1)
            object.__setattr__(self, name, number)

    def __str__(self) -> str:
        values: dict[str, int] = {name: getattr(self, name) for name in self.__match_args__}
        size = "".join(f":{value}" for name, value in values.items() if name not in self.letters.values())
        extras = "".join(f"+{values[name]}{letter}" for letter, name in self.letters.items() if values[name])
        return f"{self.name}{size}{extras}"


class Positional(Mechanism):
    """A pattern of positions alone: what it keeps does not depend on the input."""

    input_dependent = False

    @abstractmethod
    def pattern(self, places: Places, causal: bool) -> Tensor:
        """(Lq, Lk) bool, before causality and masks take keys away."""

    def keep(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        *,
        causal: bool = False,
        places: Places | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        from semfocus.attention.places import Places

        places = places or Places.of(scores)
        pattern = self.pattern(places, causal) & (scores.detach() != float("-inf"))
        return places.allowed(pattern, valid, causal)


@dataclass(frozen=True)
class Local(Positional):
    """A pattern of `width` keys a query, computable from its position.

    The last `globals` keys and queries are global: they see all and are seen by all.
    """

    letters = {"g": "globals"}

    width: int
    globals: int = 0

    def __post_init__(self) -> None:
        self._check_fields("width")

    def most(self, keys: int) -> int:
        return keys if self.globals else min(self.width, keys)

    @abstractmethod
    def indices(self, places: Places, causal: bool) -> Tensor:
        """(Lq, n) int64: the keys of each query that is not global, -1 for none; the pattern again, as a list."""


@dataclass(frozen=True)
class Selective(Mechanism):
    """Keeps the k keys of highest priority among the valid ones; ties go to the lowest index, NaN comes first."""

    k: int

    def __post_init__(self) -> None:
        self._check_fields("k")

    @abstractmethod
    def priority(self, scores: Tensor, places: Places, seed: Tensor | None) -> Tensor:
        """What ranks the keys; any float dtype, broadcastable to the scores."""

    def forced(self, places: Places, causal: bool) -> Tensor | None:
        """(Lq, Lk) bool: keys that are kept in addition and do not use up k."""
        return None

    def most(self, keys: int) -> int:
        return min(self.k, keys)

    def keep(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        *,
        causal: bool = False,
        places: Places | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        from semfocus.attention.places import Places
        from semfocus.attention.selection import keep_by_sorting

        places = places or Places.of(scores)
        scores = scores.detach()
        free, fixed = self.candidates(scores, valid, causal, places)
        chosen = keep_by_sorting(self.priority(scores, places, seed), free, self.k)
        return chosen if fixed is None else chosen | fixed

    def candidates(
        self, scores: Tensor, valid: Tensor | None, causal: bool, places: Places
    ) -> tuple[Tensor, Tensor | None]:
        """The keys to choose among, and those that are kept in any case (None if there are none)."""
        allowed = places.allowed(scores != float("-inf"), valid, causal)
        forced = self.forced(places, causal)
        return (allowed, None) if forced is None else (allowed & ~forced, allowed & forced)


M = TypeVar("M", bound=type[Mechanism])
_registered: dict[str, type[Mechanism]] = {}


def register_mechanism(cls: M) -> M:
    """Make a mechanism known under `cls.name` to configs, the command line and the conformance suite."""
    if _registered.setdefault(cls.name, cls) is not cls:
        raise UsageError(f"a mechanism called {cls.name!r} is registered already; choose another name")
    return cls


def mechanism_names() -> list[str]:
    """The names of all registered mechanisms."""
    return list(_registered)


def is_registered(mechanism: Mechanism) -> bool:
    """Whether the text form of this value leads back to it."""
    return _registered.get(mechanism.name) is type(mechanism)


def mechanism_class(name: str) -> type[Mechanism]:
    """The class registered under `name`."""
    if name not in _registered:
        raise unknown("mechanism", name, _registered)
    return _registered[name]


def parse_mechanism(text: str) -> Mechanism:
    """The value that prints as `text`: `parse_mechanism("topk:8+4s") == TopK(8, sinks=4)`."""
    found = re.fullmatch(r"\s*([a-z_0-9]+)(?::([^+]*))?((?:\+[^+]*)*)\s*", text, flags=re.IGNORECASE)
    if not found:
        raise UsageError(f"mechanism {text!r} must look like full, topk:5, banded:9+1g or topk:8+4s+16w")
    cls = mechanism_class(found[1].lower())
    # __match_args__ are the fields in order; torch.compile can read them, unlike `dataclasses.fields`.
    sizes = [name for name in cls.__match_args__ if name not in cls.letters.values()]
    values: dict[str, int] = {}
    if found[2] is not None:
        if not sizes:
            raise UsageError(f"mechanism {text!r}: {cls.name} takes no size; write {cls.name!r}")
        values[sizes[0]] = _number(text, found[2])
    elif sizes:
        raise UsageError(f"mechanism {text!r} needs its size {sizes[0]}; write for example '{cls.name}:5'")
    for extra in filter(None, found[3].split("+")):
        letter = extra.strip()[-1:]
        if letter not in cls.letters or cls.letters[letter] in values:
            allowed = ", ".join(f"{key} ({name})" for key, name in cls.letters.items()) or "none"
            raise UsageError(f"mechanism {text!r}: {extra!r} is not one of its extras, each at most once: {allowed}")
        values[cls.letters[letter]] = _number(text, extra.strip()[:-1])
    return cls(**values)


def _number(text: str, digits: str) -> int:
    if not re.fullmatch(r"\d+", digits.strip()):
        raise UsageError(f"mechanism {text!r}: {digits!r} must be a whole number")
    return int(digits)


@register_mechanism
@dataclass(frozen=True)
class Full(Positional):
    """Every key."""

    name = "full"

    def pattern(self, places: Places, causal: bool) -> Tensor:
        return places.key >= 0


@register_mechanism
@dataclass(frozen=True)
class Banded(Local):
    """The `width` keys around the query: (width - 1) // 2 to its left, the rest to its right; causal: the last ones.

    At the borders the window moves inward, so that it always holds min(width, keys) keys.
    """

    name = "banded"

    def pattern(self, places: Places, causal: bool) -> Tensor:
        return places.window(self.width, self.globals, causal) | places.touches_global(self.globals)

    def indices(self, places: Places, causal: bool) -> Tensor:
        return places.run(places.window_start(self.width, self.globals, causal), self.width, self.globals)


@register_mechanism
@dataclass(frozen=True)
class BlockLocal(Local):
    """The keys in the query's own aligned block of `width` positions (the last block may be short), and globals."""

    name = "block_local"

    def pattern(self, places: Places, causal: bool) -> Tensor:
        return places.block(self.width) | places.touches_global(self.globals)

    def indices(self, places: Places, causal: bool) -> Tensor:
        return places.run(places.position // self.width * self.width, self.width, self.globals)


@register_mechanism
@dataclass(frozen=True)
class TopK(Selective):
    """The k keys with the largest scores; `sinks` first and `window` nearest keys are kept besides."""

    name = "topk"
    input_dependent = True
    letters = {"s": "sinks", "w": "window"}

    sinks: int = 0
    window: int = 0

    def priority(self, scores: Tensor, places: Places, seed: Tensor | None) -> Tensor:
        return scores

    def forced(self, places: Places, causal: bool) -> Tensor | None:
        if not self.sinks and not self.window:
            return None
        sinks = (places.key < self.sinks).expand(places.queries, -1)
        return sinks | places.window(self.window, 0, causal) if self.window else sinks

    def most(self, keys: int) -> int:
        return min(self.k + self.sinks + self.window, keys)


@register_mechanism
@dataclass(frozen=True)
class BottomK(Selective):
    """The k keys with the smallest scores: a control that is as sparse as top-k and looks the wrong way."""

    name = "bottomk"
    input_dependent = True

    def priority(self, scores: Tensor, places: Places, seed: Tensor | None) -> Tensor:
        return -scores


@register_mechanism
@dataclass(frozen=True)
class RandomK(Selective):
    """k keys drawn without replacement: a control that is as sparse as top-k and does not look at all."""

    name = "randomk"
    input_dependent = False
    draws = True
    letters = {"r": "seed"}

    seed: int = 0

    def priority(self, scores: Tensor, places: Places, seed: Tensor | None) -> Tensor:
        import torch

        from semfocus.counters import random_order

        stream = torch.full((), self.seed, dtype=torch.int64, device=scores.device) if seed is None else seed
        return random_order(stream, places.row_ids(scores.shape[:-2], stream), places.key.to(torch.int32))
