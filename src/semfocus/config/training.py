"""How a model learns."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from semfocus.config.fields import Part, Positive, Rate, Share

OLD_NAMES = {"until": "stop_accuracy"}  # of training's fields, before 0.2


class TrainingConfig(Part):
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
