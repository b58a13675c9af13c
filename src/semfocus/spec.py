"""What shapes the paper's transformer: sizes, the columns of its parameters in a row, and the row a seed starts from.

spec = Spec(model_config, attention_config, vocab_size, num_classes, seq_len)
row = initial(spec, seed)                             (P,)
spec.layout.split(matrix)["blocks.0.o.weight"]        (E, inputs, outputs), a view of columns of the matrix (E, P)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.attention.learned import learned_by, starting_value
from semfocus.attention.mechanisms import Mechanism
from semfocus.attention.normalisers import Normaliser, parse_normaliser
from semfocus.attention.pairs import own_normaliser
from semfocus.attention.plans import Plan
from semfocus.attention.weights import LayerSizes, Learned
from semfocus.config import AttentionConfig, ModelConfig
from semfocus.errors import UsageError
from semfocus.randomness import stream

DROPOUT_SITES_PER_BLOCK = 4  # dropout on attention weights, after attention, inside the MLP, after the MLP
DEFAULT_RANGE = 2048  # of randomized positions, as in the paper that proposed them
ALIGNMENT, LONG = 8, 128  # sequences of at least LONG positions are padded to a multiple of ALIGNMENT


@dataclass(frozen=True)
class Spec:
    """Everything that shapes the computation: model and attention of the config, sizes of the task, and its objective.

    L = `length` = `padded_len` + `alignment_padding` + `extra_tokens`, in this order.
    """

    model: ModelConfig
    attention: AttentionConfig
    vocab_size: int
    num_classes: int
    seq_len: int  # of the task
    is_causal: bool = False
    predicts_positions: bool = False  # logits at every position, instead of one set a sequence
    # Of a cohort whose members differ in attention: each attention, with how many consecutive members have it.
    mixture: tuple[tuple[AttentionConfig, int], ...] = ()
    done: float = 1.0  # the share of training after which mechanisms are as this spec has them, see `at`
    # Derived once, because a compiler that traces the model cannot trace a parser.
    plan: Plan = field(init=False)
    mechanism: Mechanism = field(init=False)  # of all blocks; where these differ, see `of_block`, of the last one
    normaliser: Normaliser = field(init=False)
    padded_len: int = field(init=False)  # seq_len, or the next multiple of k (model.pad_to_multiple)
    alignment_padding: int = field(init=False)  # invisible positions that make long sequences suit tensor cores
    extra_tokens: int = field(init=False)  # a CLS token if that is pooled, then the global tokens
    length: int = field(init=False)
    learned: tuple[tuple[str, Learned], ...] = field(init=False)  # by each block's attention, by name
    # The spec of each attention of the mixture, and the members that have it; without a mixture, this one and all.
    by_attention: tuple[tuple[Spec, slice], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        plan, size = self.attention.plan, self.attention.size
        mechanism = plan.of_blocks(self.model.blocks, self.seq_len, self.done)[-1]
        self._check_objective()
        padded = self.seq_len
        if self.model.pad_to_multiple and size is not None:
            padded = math.ceil(self.seq_len / size) * size
        extra = self.attention.globals + (self.model.pooling == "cls")
        is_aligned = padded + extra >= LONG and all(each.ignores_trailing_padding for each in plan.mechanisms)
        alignment_padding = -(padded + extra) % ALIGNMENT if is_aligned else 0
        normaliser = own_normaliser(mechanism, parse_normaliser(self.attention.normaliser), self.is_causal)
        for name, value in {
            "plan": plan,
            "mechanism": mechanism,
            "normaliser": normaliser,
            "learned": self._learned(plan, parse_normaliser(self.attention.normaliser)),
            "padded_len": padded,
            "alignment_padding": alignment_padding,
            "extra_tokens": extra,
            "length": padded + alignment_padding + extra,
        }.items():
            object.__setattr__(self, name, value)
        self._check_positions()
        object.__setattr__(self, "by_attention", self._by_attention())
        lengths = {(part.padded_len, part.alignment_padding, part.extra_tokens) for part, _ in self.by_attention}
        if len(lengths) > 1:
            raise ValueError(f"members of one cohort must have sequences of one shape, not {sorted(lengths)}")

    def _learned(self, plan: Plan, normaliser: Normaliser) -> tuple[tuple[str, Learned], ...]:
        """What each block's attention learns, the same in all blocks and at all times."""
        sizes = LayerSizes(self.model.d_model, self.model.heads, self.model.head_dim)
        parts = {
            each: learned_by(each, own_normaliser(each, normaliser, self.is_causal), sizes) for each in plan.mechanisms
        }
        first, *others = parts
        for other in others:
            if parts[other] != parts[first]:
                raise UsageError(
                    f"attention.mechanism = {plan}: {first} and {other} learn different parameters; choose mechanisms "
                    "that learn the same, or nothing"
                )
        return tuple(parts[first].items())

    def at(self, done: float) -> Spec:
        """The spec once this share of training is done; the same one until a mechanism changes."""
        turns = self.plan.turns(self.seq_len)
        last = max((turn for turn in turns if turn <= done), default=0.0)
        return self if not turns or last == self.done else replace(self, done=last)

    def of_block(self, i: int) -> Spec:
        """The spec of one block, whose mechanism is the only one."""
        return self if self.plan.sole is not None else self._blocks[i]

    @cached_property
    def _blocks(self) -> tuple[Spec, ...]:
        mechanisms = self.plan.of_blocks(self.model.blocks, self.seq_len, self.done)
        own = {
            each: replace(self, attention=self.attention.model_copy(update={"mechanism": str(each)}), done=1.0)
            for each in mechanisms
        }
        return tuple(own[each] for each in mechanisms)

    def _by_attention(self) -> tuple[tuple[Spec, slice], ...]:
        if not self.mixture:
            return ((self, slice(None)),)
        parts, first = [], 0
        for attention, count in self.mixture:
            parts.append((replace(self, attention=attention, mixture=()), slice(first, first + count)))
            first += count
        return tuple(parts)

    def _check_positions(self) -> None:
        if self.model.position_kind in ("learned", "randomized") and self.num_positions > self.position_range:
            raise UsageError(
                f"model.positions = {self.model.positions}: sequences have {self.num_positions} positions; write "
                f"{self.model.position_kind}:{self.num_positions} or more"
            )

    def _check_objective(self) -> None:
        if self.is_causal and not parse_normaliser(self.attention.normaliser).serves_causal:
            raise UsageError(
                f"attention.normaliser = {self.attention.normaliser} sums over queries, and the task's objective is "
                "causal: a query would learn of later ones; choose another, for example softmax"
            )
        if self.is_causal and self.attention.globals:
            raise UsageError(
                f"attention.mechanism = {self.attention.mechanism}: global tokens see the whole sequence, which a "
                "causal objective forbids; choose the mechanism without global tokens"
            )
        if self.model.tied_head and self.num_classes > self.vocab_size:
            raise UsageError(
                f"model.tied_head predicts one of the {self.vocab_size} tokens, and the task has {self.num_classes} "
                "classes; leave it out"
            )
        if self.predicts_positions and self.model.pooling == "cls":
            raise UsageError(
                "model.pooling = cls pools one vector a sequence, but the task's objective predicts every position; "
                "choose model.pooling = mean, which is then not used"
            )

    @property
    def num_ids(self) -> int:
        return self.vocab_size + 1 + self.extra_tokens

    @property
    def num_positions(self) -> int:
        """How many positions tokens stand at: alignment padding has none of its own."""
        return self.padded_len + self.extra_tokens

    @property
    def position_range(self) -> int:
        """The positions that are learned, or that randomized ones are drawn from."""
        default = DEFAULT_RANGE if self.model.position_kind == "randomized" else self.num_positions
        return self.model.position_count or default

    @property
    def num_dropout_sites(self) -> int:
        """How many seeds of a member a training step needs."""
        return 1 + DROPOUT_SITES_PER_BLOCK * self.model.blocks

    @property
    def is_stochastic(self) -> bool:
        """Whether a training step needs random numbers: for dropout, to choose keys, or to draw positions."""
        drawn = self.model.dropout > 0 or self.model.position_kind == "randomized"
        return drawn or any(part.chooses_at_random for part, _ in self.by_attention)

    @property
    def chooses_at_random(self) -> bool:
        """Whether a mechanism chooses keys by random numbers."""
        return any(each.is_stochastic for each in self.plan.mechanisms)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and columns of the parameters in a member's row."""

    shapes: dict[str, tuple[int, ...]]
    averages: dict[str, float] = field(default_factory=dict)  # the rates of those that follow a moving average

    @staticmethod
    def of(spec: Spec) -> Layout:
        model = spec.model
        d, m, inner = model.d_model, model.d_mlp, model.heads * model.head_dim
        shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.num_ids, d)}
        if model.position_kind == "learned":
            shapes["positions"] = (spec.position_range, d)
        for i in range(model.blocks):
            for name, (inputs, outputs) in {
                "qkv": (d, 3 * inner),
                "o": (inner, d),
                "mlp_in": (d, 2 * m if model.activation == "swiglu" else m),
                "mlp_out": (m, d),
            }.items():
                shapes[f"blocks.{i}.{name}.weight"] = (inputs, outputs)
                if model.biases:
                    shapes[f"blocks.{i}.{name}.bias"] = (outputs,)
            shapes |= {f"blocks.{i}.attention.{name}": part.shape for name, part in spec.learned}
        if not model.tied_head:
            shapes["readout.weight"] = (d, spec.num_classes)
        if model.biases:
            shapes["readout.bias"] = (spec.num_classes,)
        averages = {
            f"blocks.{i}.attention.{name}": part.average
            for i in range(model.blocks)
            for name, part in spec.learned
            if part.average is not None
        }
        return Layout(shapes, averages)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The first column of each parameter: a multiple of 32, so that tensor cores can load it directly."""
        offsets, offset = {}, 0
        for name, shape in self.shapes.items():
            offsets[name] = offset
            offset += _aligned(math.prod(shape))
        return offsets

    @cached_property
    def size(self) -> int:
        """P, the columns of a member's row. Columns between parameters stay zero."""
        last, shape = list(self.shapes.items())[-1]
        return self.offsets[last] + _aligned(math.prod(shape))

    @cached_property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def rates(self) -> Tensor | None:
        """(P,) the rates of the columns that follow a moving average, 0 for others; None where there are none."""
        if not self.averages:
            return None
        parts = (torch.full((1, math.prod(shape)), self.averages.get(name, 0.0)) for name, shape in self.shapes.items())
        return self.join(parts)[0]

    def split(self, matrix: Tensor) -> dict[str, Tensor]:
        """Views (E, *shape) of a matrix (E, P), by name."""
        return {
            name: matrix[:, self.offsets[name] : self.offsets[name] + math.prod(shape)].unflatten(-1, shape)
            for name, shape in self.shapes.items()
        }

    def join(self, parts: Iterable[Tensor]) -> Tensor:
        """The matrix (E, P) of parameters, or gradients, given in the layout's order."""
        columns = []
        for part in parts:
            flat = part.flatten(1)
            missing = _aligned(flat.shape[1]) - flat.shape[1]
            columns.append(functional.pad(flat, (0, missing)) if missing else flat)
        return torch.cat(columns, dim=1)


def _aligned(size: int) -> int:
    return -(-size // 32) * 32


def initial(spec: Spec, seed: int) -> Tensor:
    """(P,) the parameters a seed starts from: one stream per parameter, so that an extra token changes no other.

    Embedding and head are uniform in +-0.1, the head's bias is 0, linear layers are uniform in +-1/sqrt(inputs); with
    `model.init` = normal as in `_normal_start`. What attention learns starts as its mechanism or normaliser says.
    """
    parts, learned = [], dict(spec.learned)
    for name, shape in spec.layout.shapes.items():
        size = math.prod(shape)
        own = learned.get(name.rpartition(".")[2]) if ".attention." in name else None
        if own is not None:
            draws = stream(seed, f"init/{name}")
            parts.append(starting_value(own, lambda count, draws=draws: torch.from_numpy(draws.uniform(count)))[None])
            continue
        if spec.model.init == "normal" and name != "positions":
            parts.append(_normal_start(name, size, spec, seed).unsqueeze(0))
            continue
        if name == "positions":  # as large as sines
            uniform = torch.from_numpy(stream(seed, f"init/{name}").uniform(size))
            parts.append((2 * uniform - 1).float().unsqueeze(0))
            continue
        if name == "readout.bias":
            parts.append(torch.zeros(1, size))
            continue
        inputs = spec.layout.shapes[name.replace(".bias", ".weight")][0]
        bound = 0.1 if name in ("embedding", "readout.weight") else inputs**-0.5
        uniform = torch.from_numpy(stream(seed, f"init/{name}").uniform(size))
        parts.append(((2 * uniform - 1) * bound).float().unsqueeze(0))
    return spec.layout.join(parts)[0]


def _normal_start(name: str, size: int, spec: Spec, seed: int) -> Tensor:
    """(size,) as decoders of language start (Radford et al. 2019): normal with std 0.02, biases 0.

    Layers that add to the residual are smaller by the square root of their number, so that its variance does not grow
    with depth. The embedding is multiplied by sqrt(d) on the way in.
    """
    if name.endswith(".bias"):
        return torch.zeros(size)
    std = 0.02
    if name.endswith((".o.weight", ".mlp_out.weight")):
        std /= math.sqrt(2 * spec.model.blocks)
    uniform = torch.from_numpy(stream(seed, f"init/{name}").uniform(size)).clamp(2.0**-54, 1 - 2.0**-53)
    return (torch.special.ndtri(uniform) * std).float()
