"""What shapes the paper's encoder: sizes, the columns of its parameters in a row, and the row a seed starts from.

spec = Spec(model_config, attention_config, vocab_size, num_classes, seq_len)
row = initial(spec, seed)                             (P,)
spec.layout.split(matrix)["blocks.0.o.weight"]        (E, inputs, outputs), a view of the columns of E rows
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.attention.mechanisms import Mechanism
from semfocus.attention.normalisers import Normaliser, parse_normaliser
from semfocus.config import AttentionConfig, ModelConfig
from semfocus.randomness import stream

DROPOUT_SITES_PER_BLOCK = 4  # dropout on attention weights, after attention, inside the MLP, after the MLP
ALIGNMENT, LONG = 8, 128  # positions that long rows are valid_mask up to a multiple of, and from which on they are long


@dataclass(frozen=True)
class Spec:
    """Everything that shapes the computation: the config's model and attention, and the task's sizes."""

    model: ModelConfig
    attention: AttentionConfig
    vocab_size: int
    num_classes: int
    seq_len: int  # of the task's rows, before anything is added
    # What follows from these, worked out once: a compiler that traces the model must not meet a parser.
    mechanism: Mechanism = field(init=False)
    normaliser: Normaliser = field(init=False)
    padded_len: int = field(init=False)
    extra_tokens: int = field(init=False)  # after the row: a CLS token if that is what is pooled, then the global ones
    alignment_padding: int = field(
        init=False
    )  # invisible positions between the two, so that long rows suit tensor cores
    length: int = field(init=False)  # L

    def __post_init__(self) -> None:
        mechanism, size = self.attention.value, self.attention.size
        padded = self.seq_len
        if self.model.pad_to_multiple and size is not None:
            padded = math.ceil(self.seq_len / size) * size
        extra = self.attention.globals + (self.model.pooling == "cls")
        alignment_padding = (
            -(padded + extra) % ALIGNMENT if padded + extra >= LONG and mechanism.ignores_trailing_padding else 0
        )
        for name, value in {
            "mechanism": mechanism,
            "normaliser": parse_normaliser(self.attention.normaliser),
            "padded_len": padded,
            "extra_tokens": extra,
            "alignment_padding": alignment_padding,
            "length": padded + alignment_padding + extra,
        }.items():
            object.__setattr__(self, name, value)

    @property
    def num_ids(self) -> int:
        return self.vocab_size + 1 + self.extra_tokens

    @property
    def num_dropout_sites(self) -> int:
        """How many places of a step draw dropout."""
        return 1 + DROPOUT_SITES_PER_BLOCK * self.model.blocks

    @property
    def is_stochastic(self) -> bool:
        """Whether a training step needs random numbers at all: for dropout, or to choose keys."""
        return self.model.dropout > 0 or self.mechanism.is_stochastic

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and columns of the parameters within a member's row."""

    shapes: dict[str, tuple[int, ...]]

    @staticmethod
    def of(spec: Spec) -> Layout:
        model = spec.model
        d, m, inner = model.d_model, model.d_mlp, model.heads * model.head_dim
        shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.num_ids, d)}
        for i in range(model.blocks):
            for name, (rows, columns) in {
                "qkv": (d, 3 * inner),
                "o": (inner, d),
                "mlp_in": (d, m),
                "mlp_out": (m, d),
            }.items():
                shapes[f"blocks.{i}.{name}.weight"] = (rows, columns)
                shapes[f"blocks.{i}.{name}.bias"] = (columns,)
        shapes["readout.weight"] = (d, spec.num_classes)
        shapes["readout.bias"] = (spec.num_classes,)
        return Layout(shapes)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The first column of each parameter: a multiple of 32, so that tensor cores can load it straight."""
        found, place = {}, 0
        for name, shape in self.shapes.items():
            found[name] = place
            place += _aligned(math.prod(shape))
        return found

    @cached_property
    def size(self) -> int:
        """P, the columns of a member's row; the few between parameters stay zero."""
        last, shape = list(self.shapes.items())[-1]
        return self.offsets[last] + _aligned(math.prod(shape))

    @cached_property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

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
    """(P,) the parameters a seed starts from: one stream per parameter, so that an extra token shifts nothing else.

    Embedding and read-out uniform in +-0.1, read-out bias 0, linear layers uniform in +-1/sqrt(inputs).
    """
    parts = []
    for name, shape in spec.layout.shapes.items():
        size = math.prod(shape)
        if name == "readout.bias":
            parts.append(torch.zeros(1, size))
            continue
        inputs = spec.layout.shapes[name.replace(".bias", ".weight")][0]
        bound = 0.1 if name in ("embedding", "readout.weight") else inputs**-0.5
        uniform = torch.from_numpy(stream(seed, f"init/{name}").uniform(size))
        parts.append(((2 * uniform - 1) * bound).float().unsqueeze(0))
    return spec.layout.join(parts)[0]
