"""The transformer: its attention, its layers, its positions."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

from semfocus.attention.normalisers import parse_normaliser
from semfocus.attention.plans import Plan, parse_plan
from semfocus.config.fields import Few, Part, Rate, Share, Width

POSITIONS = ("sine", "learned", "none", "alibi", "rope", "randomized")
RANGED = ("learned", "randomized")  # may say how many positions there are: learned:64, randomized:2048


class AttentionConfig(Part):
    """Which keys a query keeps, in which block and when (`attention.plans`), and how kept keys are weighted."""

    mechanism: str = "full"
    normaliser: str = "softmax"
    inverse_temperature: Rate = 1.0

    @field_validator("mechanism")
    @classmethod
    def _canonical(cls, text: str) -> str:
        return str(parse_plan(text))

    @field_validator("normaliser")
    @classmethod
    def _canonical_normaliser(cls, text: str) -> str:
        return str(parse_normaliser(text))

    @model_validator(mode="after")
    def _pair_has_a_meaning(self) -> AttentionConfig:
        for own in (mechanism.normaliser for mechanism in self.plan.mechanisms):
            if own is not None and self.normaliser not in ("softmax", str(own)):
                raise ValueError(
                    f"attention.mechanism = {self.mechanism} weighs keys by itself: leave attention.normaliser = "
                    f"{self.normaliser} out, or choose another mechanism"
                )
        return self

    @property
    def plan(self) -> Plan:
        """The mechanism of each block over training."""
        return parse_plan(self.mechanism)

    @property
    def globals(self) -> int:
        """The number of extra learned tokens that the mechanism needs."""
        return self.plan.final.num_globals  # the same for all mechanisms of a plan

    @property
    def size(self) -> int | None:
        """k or the width of the window; None for full attention, and where mechanisms change."""
        return None if self.plan.sole is None else self.plan.sole.size


class ModelConfig(Part):
    """The transformer; the deviations of the paper's code are options, all off by default."""

    blocks: Few = 5
    heads: Few = 1
    d_model: Width = 64
    d_mlp: Width = 64
    head_width: Literal["model", "split"] = "model"  # each head has d_model channels, or d_model / heads
    activation: Literal["relu", "gelu", "mish", "relu2", "swiglu"] = "relu"  # relu2: squared; swiglu: a gate beside it
    norm: Literal["pre", "post"] = "pre"
    pooling: Literal["mean", "cls"] = "mean"
    dropout: Share = 0.01
    padding_visible: bool = False  # padding is attended to, selected and pooled; global tokens are pooled too
    pad_to_multiple: bool = False  # sparse mechanisms pad sequences to a multiple of k; full attention does not
    dropout_in_evaluation: bool = False  # of attention weights
    first_norm_exact: bool = False  # epsilon 0 in the first attention's LayerNorm
    positions: str = "sine"  # sine, learned, none, alibi, rope, randomized; learned:64, randomized:2048: how many
    # What decoders of language have, and the paper's model has not.
    norm_function: Literal["layernorm", "rmsnorm"] = "layernorm"  # neither has parameters
    final_norm: bool = False  # one more before the head
    biases: bool = True  # of all linear layers
    tied_head: bool = False  # the head is the embedding: logits are products with the vectors of tokens
    init: Literal["paper", "normal"] = "paper"  # normal: std 0.02, what adds to the residual 1/sqrt(2 blocks) of it

    @field_validator("positions")
    @classmethod
    def _known_positions(cls, text: str) -> str:
        kind, colon, number = text.strip().lower().partition(":")
        if kind not in POSITIONS:
            raise ValueError(f"model.positions = {text!r} is not one of {', '.join(POSITIONS)}")
        if not colon:
            return kind
        if kind not in RANGED:
            raise ValueError(f"model.positions = {text!r}: {kind} positions take no number; write {kind!r}")
        if not (number.isascii() and number.isdigit() and 1 <= int(number) < 2**24):
            raise ValueError(
                f"model.positions = {text!r}: {number!r} must be a number of positions, for example {kind}:64"
            )
        return f"{kind}:{int(number)}"

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        if self.head_width == "split" and self.d_model % self.heads:
            raise ValueError(f"model.d_model = {self.d_model} is not a multiple of model.heads = {self.heads}")
        if self.position_kind == "rope" and self.head_dim % 2:
            raise ValueError(
                f"model.positions = rope turns pairs of channels; heads are {self.head_dim} wide: choose an even width"
            )
        return self

    @property
    def is_as_published(self) -> bool:
        """Whether layers, norms and head are of the kinds that the paper's model has."""
        is_plain = self.norm_function == "layernorm" and self.biases and self.activation not in ("relu2", "swiglu")
        return is_plain and not self.final_norm and not self.tied_head

    @property
    def position_kind(self) -> str:
        """One of POSITIONS."""
        return self.positions.partition(":")[0]

    @property
    def position_count(self) -> int | None:
        """How many positions are learned or drawn from, where it is given."""
        number = self.positions.partition(":")[2]
        return int(number) if number else None

    @property
    def head_dim(self) -> int:
        return self.d_model if self.head_width == "model" else self.d_model // self.heads
