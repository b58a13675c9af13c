"""One run: all its parts, and its id, the hash of all that decides the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from semfocus.config.fields import Part
from semfocus.config.model import AttentionConfig, ModelConfig
from semfocus.config.task import TaskConfig
from semfocus.config.training import OLD_NAMES, TrainingConfig
from semfocus.errors import CorruptData, UsageError
from semfocus.tasks import Task

FORMAT = 1  # of `RunConfig.identity`: increase it when the same config gives another result
MAX_TOKENS = 2**28  # of one split: two gigabytes while it is drawn


class RunConfig(Part):
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
