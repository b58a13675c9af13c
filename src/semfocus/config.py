"""The configuration of a run: one frozen, strict, validated value. Its id is the hash of all that decides the result.

    RunConfig(task=TaskConfig(name="even_pairs"), attention=AttentionConfig(mechanism="topk:5"), seed=153476998)

Device, threads, the cadence of evaluations and kept checkpoints are not part of it: they do not change the result.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from semfocus.attention.normalisers import parse_normaliser
from semfocus.attention.plans import Plan, parse_plan
from semfocus.errors import CorruptData, UsageError
from semfocus.tasks import SPLITS, Task, get_task, task_names
from semfocus.tasks.registry import get_stored_task, task_class
from semfocus.tasks.stored import is_stored, stored_path

FORMAT = 1  # of `RunConfig.identity`: increase it when the same config gives another result
POSITIONS = ("sine", "learned", "none", "alibi", "rope", "randomized")
RANGED = ("learned", "randomized")  # may say how many positions there are: learned:64, randomized:2048
OLD_NAMES = {"until": "stop_accuracy"}  # of training's fields, before 0.2
# Fields that came later. At their defaults they are not written, so that runs keep their ids.
LATER = {
    "patience_on": "training", "evaluate_test": False, "tuned": "", "lengths": None, "positions": "sine",
    "norm_function": "layernorm", "final_norm": False, "biases": True, "tied_head": False, "init": "paper",
    "schedule": "decay", "warmup": 0.0, "final_lr": 0.0, "cooldown": 0.3, "beta2": 0.999, "evaluated_rows": None,
}  # fmt: skip

MAX_TOKENS = 2**28  # of one split: two gigabytes while it is drawn
Positive = Annotated[int, Field(ge=1, lt=2**31)]
# Larger than any model here, and small enough that an untrusted config cannot exhaust the memory.
Few = Annotated[int, Field(ge=1, le=1024)]
Width = Annotated[int, Field(ge=1, le=2**16)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=3e38, allow_inf_nan=False)]  # what a float32 holds


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_serializer(mode="wrap")
    def _without_later(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = handler(self)
        return {name: value for name, value in fields.items() if name not in LATER or value != LATER[name]}


class TaskConfig(_Part):
    """What is learned: a task's name or a data file, its options, and the number of examples (None: all of a file).

    With `lengths` (`1-40`) each training batch has one length drawn from that span, and each held-out example its own;
    without, every example has the length that the options give.
    """

    name: str
    options: dict[str, Any] = {}
    train_rows: Positive | None = 5000
    heldout_rows: Positive | None = 2000
    lengths: str | None = None

    @field_validator("lengths")
    @classmethod
    def _known_span(cls, text: str | None) -> str | None:
        if text is None:
            return None
        match = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text, flags=re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"task.lengths = {text!r} must be a shortest and a longest length, for example 1-40")
        return f"{int(match[1])}-{int(match[2])}"

    @property
    def span(self) -> tuple[int, int] | None:
        """The shortest and the longest length of an example, where lengths are drawn."""
        if self.lengths is None:
            return None
        low, _, high = self.lengths.partition("-")
        return int(low), int(high)

    @field_validator("options")
    @classmethod
    def _no_name(cls, options: dict[str, Any]) -> dict[str, Any]:
        if "name" in options:
            raise ValueError("task.options cannot hold a name: write it as task.name")
        return options

    @staticmethod
    def with_default_rows(name: str, options: dict[str, Any] | None = None) -> TaskConfig:
        """All examples of a file or a finite task; of any other task, its default numbers of examples."""
        rows: dict[str, int | None] = {"train_rows": None, "heldout_rows": None}
        if name in task_names():
            cls = task_class(name)
            is_endless = cls.size is Task.size or all(
                get_task(name, **options or {}).size(split) is None for split in SPLITS
            )
            if is_endless:
                rows = {"train_rows": cls.default_train_rows, "heldout_rows": cls.default_heldout_rows}
        return TaskConfig(
            name=name, options=options or {}, train_rows=rows["train_rows"], heldout_rows=rows["heldout_rows"]
        )

    def build(self, root: Path | None = None) -> Task:
        """The task itself; data that were given from memory lie in the store at `root`."""
        if is_stored(self.name):
            return get_stored_task(stored_path(self.name, root), **self.options)
        return get_task(self.name, **self.options)


class AttentionConfig(_Part):
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


class ModelConfig(_Part):
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
    positions: str = "sine"  # one of POSITIONS; learned:64 and randomized:2048 say how many there are
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


class TrainingConfig(_Part):
    """How it learns. A run ends early at `stop_accuracy`, or after `patience` epochs without a gain.

    The learning rate rises linearly over the share `warmup` of all steps. Then, by `schedule`: `decay` multiplies it
    once an epoch by `decay`; `cosine` lowers it to the share `final_lr` of itself; `trapezoid` keeps it, and lowers it
    linearly to that share over the last share `cooldown`.

    Both concern the metric by which the task's objective is learned: training accuracy in classification; patience
    may watch the loss on held-out examples instead, and results are then those of the best such epoch. An objective
    that is learned by another quantity than a share stops at its own threshold if `stop_accuracy` is given.
    """

    epochs: Positive = 100
    batch_size: Positive = 25
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Rate = 0.1
    decay: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = (
        0.9995  # factor of the learning rate, once an epoch
    )
    clip: Rate | None = 0.5  # the largest norm of the gradient over all parameters
    schedule: Literal["decay", "cosine", "trapezoid"] = "decay"
    warmup: Share = 0.0
    final_lr: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    cooldown: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.3
    beta2: Share = 0.999  # of Adam: how slowly it forgets the squares of gradients
    weight_decay: Annotated[float, Field(ge=0, le=3e38, allow_inf_nan=False)] = 0.0
    drop_one_row: bool = False  # omit one shuffled training example an epoch, and the last one in evaluation
    stop_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    patience: Positive | None = None
    patience_on: Literal["training", "validation"] = "training"  # validation: the loss on held-out examples
    evaluate_test: bool = False  # the test split too, at each evaluation; nothing is decided by it
    evaluated_rows: Positive | None = None  # of the training examples, how many evaluations take; None: all
    tuned: Annotated[str, Field(max_length=200)] = ""  # how the learning rate was chosen; empty: it was given

    @model_validator(mode="after")
    def _schedule_fits(self) -> TrainingConfig:
        if self.schedule != "decay" and self.decay != 1:
            raise ValueError(
                f"training.schedule = {self.schedule} has a course of its own: set training.decay = 1, not {self.decay}"
            )
        if self.schedule == "trapezoid" and self.warmup + self.cooldown > 1:
            raise ValueError(
                f"training.warmup = {self.warmup} and training.cooldown = {self.cooldown} are more than all of the "
                "training; choose shares whose sum is at most 1"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "until" in fields and "stop_accuracy" not in fields:
            warnings.warn("training.until is now training.stop_accuracy", FutureWarning, stacklevel=2)
            return {OLD_NAMES.get(name, name): value for name, value in fields.items()}
        return fields


class RunConfig(_Part):
    """One run."""

    task: TaskConfig
    attention: AttentionConfig = AttentionConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"  # bf16: products in 16 bits, weights and sums in 32
    label: str = ""  # a name for people; not part of the identity

    def check(self, task: Task) -> None:
        """The checks that need the task itself: k against the sequence length, examples against the sizes of splits."""
        self._check_attention(task)
        self._check_lengths(task)
        for field, split in (("train_rows", "train"), ("heldout_rows", "heldout")):
            wanted, available = getattr(self.task, field), task.size(split)
            if wanted is None and available is None:
                raise UsageError(f"task.{field} must be given: {self.task.name} can draw rows without end")
            if wanted is not None and available is not None and wanted > available:
                raise UsageError(
                    f"task.{field} = {wanted} exceeds the {available} rows of the {split} split; choose fewer"
                )
            if (wanted or available or 0) * task.seq_len > MAX_TOKENS:
                raise UsageError(
                    f"task.{field} = {wanted or available} rows of {task.seq_len} tokens are more than {MAX_TOKENS} "
                    "tokens, the most that a run may hold; choose fewer rows or shorter ones"
                )
            if self.training.drop_one_row and (wanted or available) == 1:
                raise UsageError(f"training.drop_one_row leaves nothing of task.{field} = 1; choose two rows or more")

        if self.training.evaluate_test and task.size("test") == 0:
            raise UsageError("training.evaluate_test needs rows of a test split; choose test_share above 0")

    def _check_attention(self, task: Task) -> None:
        plan = self.attention.plan
        plan.of_blocks(self.model.blocks, task.seq_len)
        for mechanism in plan.mechanisms:
            size, kind = mechanism.size, mechanism.size_name
            if size is not None and size > task.seq_len:
                raise UsageError(
                    f"attention.mechanism = {plan}: {kind} = {size} exceeds the sequence length {task.seq_len} of "
                    f"task {self.task.name}; choose {kind} <= {task.seq_len}"
                )
            reason = mechanism.refuses(task.seq_len, task.seq_len)
            if reason is not None:
                raise UsageError(f"attention.mechanism = {plan}: {reason}")

    def _check_lengths(self, task: Task) -> None:
        if self.task.span is None:
            return
        if task.size("train") is not None:
            raise UsageError(
                f"task.lengths = {self.task.lengths}: the examples of {self.task.name} have lengths of their own; "
                "leave it out"
            )
        if self.training.drop_one_row:
            raise UsageError("training.drop_one_row breaks up batches of one length; leave it or task.lengths out")
        task.sample(1, seed=0, lengths=self.task.span)

    def test_rows(self, task: Task) -> int:
        """The number of test examples of a run that evaluates them: all of them, or as many as are held out."""
        return task.size("test") or self.rows(task)[1]

    def rows(self, task: Task) -> tuple[int, int]:
        """The numbers of training and held-out examples of the run."""
        train, heldout = self.task.train_rows, self.task.heldout_rows
        return train or task.size("train") or 0, heldout or task.size("heldout") or 0

    def identity(self, task: Task) -> dict[str, Any]:
        """All that decides the result, as plain JSON: a file's content instead of its path, no label."""
        fields = self.model_dump(mode="json", exclude={"label": True, "task": {"name", "options"}})
        for old, new in OLD_NAMES.items():  # the identity keeps its names, so that runs keep their ids
            fields["training"][old] = fields["training"].pop(new)
        return {"format": FORMAT, **fields, "data": task.fingerprint()}

    def run_id(self, task: Task) -> str:
        """Sixteen hexadecimal digits; the name of the run's directory."""
        return _hash_of(self.identity(task))


def recorded_run_id(document: Mapping[str, Any]) -> str | None:
    """The id of the run whose config.json holds these fields; None where they are not those of a run.

    Neither the task nor a plugin is needed: the document has the fingerprint of the data and every field by which the
    id was computed.
    """
    if not RunConfig.model_fields.keys() <= document.keys() or "data" not in document:
        return None
    fields = {name: document[name] for name in RunConfig.model_fields if name != "label"}
    if not isinstance(fields["task"], dict) or not isinstance(fields["training"], dict):
        return None
    fields["task"] = {name: value for name, value in fields["task"].items() if name not in ("name", "options")}
    old_names = {new: old for old, new in OLD_NAMES.items()}
    fields["training"] = {old_names.get(name, name): value for name, value in fields["training"].items()}
    return _hash_of({"format": FORMAT, **fields, "data": document["data"]})


def check_recorded_id(document: Mapping[str, Any], run_id: str, is_sealed: bool) -> None:
    """Raise CorruptData where the fields of a config.json do not come to the id of their run.

    `is_sealed` says that the document's own checksum is right. Only then may it lack fields that an id is made of.
    """
    recorded = recorded_run_id(document)
    if recorded is None and not is_sealed:
        raise CorruptData(f"config.json lacks fields that the id of run {run_id} is made of; it was edited or damaged")
    if recorded not in (None, run_id):
        raise CorruptData(
            f"config.json is not what run {run_id} was named after ({recorded}); it was edited or damaged"
        )


def _hash_of(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
