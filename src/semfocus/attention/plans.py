"""Which mechanism each block of a model has, and when in training: a plan.

    topk:8                         one mechanism, in every block, always
    2*full/topk:8                  full attention in the first two blocks, top-8 in all others
    topk:8>full@0.3                k grows from 8 to all keys over the first 30 % of training
    topk:8@0.1>topk:32@0.3>full    top-8 for the first 10 %, top-32 until 30 %, then full attention

`attend` and a layer of one's own take a mechanism; plans are for whole models in training.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from semfocus.attention.mechanisms import Full, Mechanism, parse_mechanism
from semfocus.errors import UsageError

MAX_BLOCKS = 1024
_EXAMPLES = "write for example topk:8>full@0.3, topk:8@0.1>topk:32@0.3>full or 2*full/topk:8"


@dataclass(frozen=True)
class Stage:
    """A mechanism, until a share of training is done; None: to the end."""

    mechanism: Mechanism
    until: float | None = None

    def __str__(self) -> str:
        return str(self.mechanism) if self.until is None else f"{self.mechanism}@{_digits(self.until)}"


class Course(ABC):
    """What a block has over training."""

    @property
    @abstractmethod
    def named(self) -> tuple[Mechanism, ...]:
        """The mechanisms of the text form, in order."""

    @abstractmethod
    def stages(self, keys: int) -> tuple[Stage, ...]:
        """The mechanisms one after the other, where a query has so many keys; the last one has no end."""

    def at(self, done: float, keys: int) -> Mechanism:
        """The mechanism once this share of training is done."""
        return next(stage.mechanism for stage in self.stages(keys) if stage.until is None or done < stage.until)


@dataclass(frozen=True)
class Steps(Course):
    """One mechanism after the other; a single one stays throughout."""

    given: tuple[Stage, ...]

    @property
    def named(self) -> tuple[Mechanism, ...]:
        return tuple(stage.mechanism for stage in self.given)

    def stages(self, keys: int) -> tuple[Stage, ...]:
        return self.given

    def __str__(self) -> str:
        return ">".join(map(str, self.given))


@dataclass(frozen=True)
class Growth(Course):
    """A size that grows, or shrinks, to the last mechanism's: it doubles at equal distances of training.

    Doubling keeps the stages few: on a GPU each has a training step of its own, compiled and captured.
    """

    first: Mechanism
    last: Mechanism
    share: float

    @property
    def named(self) -> tuple[Mechanism, ...]:
        return self.first, self.last

    def stages(self, keys: int) -> tuple[Stage, ...]:
        start, end = (min(one.size or keys, keys) for one in self.named)  # full attention has no size: it keeps all
        count = max(1, round(abs(math.log2(end / start))))
        sized = self.last if self.first.size is None else self.first
        sizes = [max(1, round(start * 2.0 ** (i if end > start else -i))) for i in range(1, count)]
        grown = [self.first, *(_with_size(sized, size) for size in sizes)]
        ends = [self.share * (i + 1) / count for i in range(count)]
        return (*(Stage(one, until) for one, until in zip(grown, ends, strict=True)), Stage(self.last))

    def __str__(self) -> str:
        return f"{self.first}>{self.last}@{_digits(self.share)}"


@dataclass(frozen=True)
class Part:
    """So many blocks, None for all that are left, and what they have."""

    blocks: int | None
    course: Course

    def __str__(self) -> str:
        return str(self.course) if self.blocks is None else f"{self.blocks}*{self.course}"


@dataclass(frozen=True)
class Plan:
    """The mechanisms of all blocks, first to last."""

    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return "/".join(map(str, self.parts))

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Those that the text names, each once."""
        return tuple(dict.fromkeys(one for part in self.parts for one in part.course.named))

    @property
    def sole(self) -> Mechanism | None:
        """The one mechanism of all blocks at all times, if there is only one."""
        return self.mechanisms[0] if len(self.mechanisms) == 1 else None

    @property
    def final(self) -> Mechanism:
        """What the last block has once training has ended."""
        return self.parts[-1].course.named[-1]

    def of_blocks(self, blocks: int, keys: int, done: float = 1.0) -> tuple[Mechanism, ...]:
        """The mechanism of each block once the share `done` of training is done, where a query has so many keys."""
        own = [part.course.at(done, keys) for part in self.parts]
        return tuple(one for one, count in zip(own, self._counts(blocks), strict=True) for _ in range(count))

    def turns(self, keys: int) -> list[float]:
        """The shares of training after which a block's mechanism changes."""
        stages = [stage for part in self.parts for stage in part.course.stages(keys)]
        return sorted({stage.until for stage in stages if stage.until is not None})

    def _counts(self, blocks: int) -> list[int]:
        given = sum(part.blocks or 0 for part in self.parts)
        rest = any(part.blocks is None for part in self.parts)
        if given + rest > blocks or (given < blocks and not rest):
            wanted = f"{given} and at least one more" if rest else str(given)
            raise UsageError(
                f"attention.mechanism = {self} is for {wanted} blocks, and model.blocks = {blocks}; leave the number "
                "of one part out, as in 2*full/topk:8, or change them"
            )
        return [blocks - given if part.blocks is None else part.blocks for part in self.parts]


def parse_plan(text: str) -> Plan:
    """The plan that prints as `text`; a mechanism's text is the plan that has it in every block, always."""
    plan = Plan(tuple(_part(text, piece) for piece in text.split("/")))
    if sum(part.blocks is None for part in plan.parts) > 1:
        raise UsageError(
            f"mechanism {text!r}: only one part of a plan may leave its number of blocks open; begin the others with "
            f"one, such as 2*; {_EXAMPLES}"
        )
    if len({one.num_globals for one in plan.mechanisms}) > 1:
        raise UsageError(f"mechanism {text!r}: all mechanisms of a plan need the same number of global tokens")
    return plan


def _part(text: str, piece: str) -> Part:
    count, star, body = piece.partition("*")
    if not star:
        return Part(None, _course(text, piece))
    if not re.fullmatch(r"\s*\d{1,9}\s*", count, flags=re.ASCII) or not 1 <= int(count) <= MAX_BLOCKS:
        raise UsageError(
            f"mechanism {text!r}: {count.strip()!r} must be a number of blocks, 1 to {MAX_BLOCKS}; {_EXAMPLES}"
        )
    return Part(int(count), _course(text, body))


def _course(text: str, body: str) -> Course:
    stages = []
    for piece in body.split(">"):
        name, at, number = piece.partition("@")
        if not name.strip() and name != text:
            raise UsageError(f"mechanism {text!r} lacks a mechanism before or after a sign; {_EXAMPLES}")
        stages.append(Stage(parse_mechanism(name), _share(text, number) if at else None))
    ends = [stage.until for stage in stages]
    if len(stages) == 2 and ends[0] is None and ends[1] is not None:
        return _growth(text, stages[0].mechanism, stages[1].mechanism, ends[1])
    given = [end for end in ends[:-1] if end is not None]
    if ends[-1] is not None or len(given) < len(stages) - 1:
        raise UsageError(
            f"mechanism {text!r} does not say when each mechanism gives way to the next: give a share of training, "
            f"@0.3, to all but the last; {_EXAMPLES}"
        )
    if 1.0 in given:
        raise UsageError(
            f"mechanism {text!r}: a stage until @1 never ends, and the next one never begins; choose a share below 1"
        )
    if given != sorted(set(given)):
        raise UsageError(f"mechanism {text!r}: the shares of training must grow from stage to stage; {_EXAMPLES}")
    return Steps(tuple(stages))


def _growth(text: str, first: Mechanism, last: Mechanism, share: float) -> Growth:
    if first == last:
        raise UsageError(f"mechanism {text!r} grows from {first} to itself; write {first}")
    sized = [one for one in (first, last) if one.size_name is not None]
    is_one_kind = len(sized) == 2 and type(first) is type(last) and _with_size(first, 1) == _with_size(last, 1)
    if not is_one_kind and not (len(sized) == 1 and Full() in (first, last)):
        raise UsageError(
            f"mechanism {text!r}: a size grows between two mechanisms of one kind, or to full attention, not from "
            f"{first} to {last}; for a change at once write {first}@{_digits(share)}>{last}"
        )
    return Growth(first, last, share)


def _digits(share: float) -> str:
    return repr(share).removesuffix(".0")


def _with_size(mechanism: Mechanism, size: int) -> Mechanism:
    return replace(mechanism, **{str(mechanism.size_name): size})


def _share(text: str, number: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UsageError(
            f"mechanism {text!r}: @{number.strip()} must be a share of training, above 0 and at most 1: later, it "
            f"would never end; {_EXAMPLES}"
        )
    return share
