"""What a batch's targets are, the loss, the metrics, and which of them means "learned".

    @register_objective
    class Regression(Objective):
        name = "regression"
        metrics = (LOSS, Metric("error", "absolute error", higher_is_better=False, bounds=(0, math.inf)))
        learned = Learned(metrics[1], 0.1)
        def targets(self, batch): ...
        def loss(self, logits, targets): ...
        def measurements(self, logits, targets): ...

A task names its objective: `Task.objective = "regression"`. Training, evaluation and the landscape take the loss from
here. Metrics are measured over both splits and recorded as `train_<name>` and `heldout_<name>`. Importing this module
does not import torch: analysis and reports ask for names and thresholds only.

Shapes: E members, B examples, L positions, C classes (of a token: the vocabulary).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from semfocus.errors import UsageError
from semfocus.registry import Registry
from semfocus.tasks import NO_TARGET, Batch, Task

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "heldout", "test"]
SPLITS: dict[Split, str] = {"train": "training", "heldout": "held-out"}  # measured always, with the words for them
ALL_SPLITS: dict[Split, str] = {**SPLITS, "test": "test"}  # the last one if `training.evaluate_test`


@dataclass(frozen=True)
class Metric:
    """A number of one example, whose mean over a split is recorded; or one that is counted over a whole split."""

    name: str
    label: str
    higher_is_better: bool
    bounds: tuple[float, float] = (-math.inf, math.inf)
    is_share: bool = False  # shown in percent
    is_counted: bool = False  # `Objective.from_counts` gives it, instead of a mean over examples

    def column(self, split: Split) -> str:
        """Its name in metrics.jsonl: `train_accuracy`."""
        return f"{split}_{self.name}"

    def text(self, split: Split) -> str:
        """Its name for people: `training accuracy`."""
        return f"{ALL_SPLITS[split]} {self.label}"

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than

    @property
    def worst(self) -> float:
        return self.bounds[0 if self.higher_is_better else 1]


LOSS = Metric("loss", "loss", higher_is_better=False, bounds=(0, math.inf))
ACCURACY = Metric("accuracy", "accuracy", higher_is_better=True, bounds=(0, 1), is_share=True)
BALANCED_ACCURACY = replace(ACCURACY, name="balanced_accuracy", label="balanced accuracy", is_counted=True)
MACRO_F1 = replace(ACCURACY, name="macro_f1", label="macro F1", is_counted=True)


@dataclass(frozen=True)
class Learned:
    """A run has learned once `metric` of `split` is at `threshold` or better."""

    metric: Metric = ACCURACY
    threshold: float = 0.95
    split: Split = "train"

    @property
    def column(self) -> str:
        return self.metric.column(self.split)

    @property
    def direction(self) -> Literal[">=", "<="]:
        return ">=" if self.metric.higher_is_better else "<="

    def reached(self, values: Any) -> Any:
        """Whether a value, or each value of an array, is at the threshold or better."""
        return values >= self.threshold if self.metric.higher_is_better else values <= self.threshold

    def at(self, level: float | None) -> Learned:
        """The same with the threshold `level`, if the metric is a share: `stop_accuracy` is one."""
        return self if level is None or not self.metric.is_share else replace(self, threshold=level)

    @property
    def label(self) -> str:
        """`training accuracy`"""
        return self.metric.text(self.split)

    def level(self, space: str = " ") -> str:
        """`95 %`, or where the metric is not a share `training loss 1.5`."""
        share = f"{100 * self.threshold:.0f}{space}%"
        return share if self.metric.is_share else f"{self.label} {self.threshold:g}"

    def text(self, space: str = " ") -> str:
        """`95 % training accuracy`, or `training loss 1.5`."""
        return f"{self.level(space)} {self.label}" if self.metric.is_share else self.level()


class Objective(ABC):
    """What a model is trained to do. Subclasses are stateless: one instance serves all runs."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, ACCURACY)
    learned: ClassVar[Learned] = Learned()
    is_causal: ClassVar[bool] = False  # position t must not see the positions after it
    evaluations: ClassVar[int | None] = None  # of a run of fewer epochs, in equal distances; None: one an epoch
    predicts_positions: ClassVar[bool] = False  # logits (E, B, L, C), one set a position, instead of (E, B, C)

    @abstractmethod
    def targets(self, batch: Batch) -> Tensor:
        """(n, ...) int: what the model is to predict of each example of a batch (n, L)."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(E, B): the loss of each example."""

    def measurements(self, logits: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """(E, B) each: the metrics beside the loss, by name."""
        return {}

    def count_sizes(self, num_classes: int) -> Mapping[str, int]:
        """What is counted over a split, by name, and how many numbers it is; by default nothing."""
        return {}

    def counts(self, logits: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """(E, B, K) each: the counts of each example."""
        return {}

    def from_counts(self, counts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """(...) each: the counted metrics, from counts (..., K) that are summed over a split."""
        return {}

    def check(self, task: Task) -> None:
        """Raise UsageError for a task that cannot have this objective; by default, every task can."""
        return

    def measure(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """(E, B) each: every metric of single examples, in the order of `metrics`."""
        declared = [metric for metric in self.metrics if not metric.is_counted]
        values = {LOSS.name: self.loss(logits, targets), **self.measurements(logits, targets)}
        for metric in declared:
            shape = None if metric.name not in values else tuple(values[metric.name].shape)
            if shape != targets.shape[:2]:
                problem = "does not return it" if shape is None else f"returns it with shape {shape}"
                raise UsageError(
                    f"objective {self.name!r} declares the metric {metric.name!r}, but its measurements() {problem}; "
                    f"return one value an example, {tuple(targets.shape[:2])}"
                )
        return {metric.name: values[metric.name] for metric in declared}

    @property
    def columns(self) -> dict[str, Metric]:
        """What an evaluation records, by its name in metrics.jsonl."""
        return {metric.column(split): metric for split in SPLITS for metric in self.metrics}

    @property
    def column_texts(self) -> dict[str, str]:
        """The same names with the words for people: `{"train_loss": "training loss", ...}`."""
        return {metric.column(split): metric.text(split) for split in SPLITS for metric in self.metrics}

    @property
    def test_columns(self) -> dict[str, Metric]:
        """What an evaluation records of the test split, where that is asked for."""
        return {metric.column("test"): metric for metric in self.metrics}


OBJECTIVES: Registry[type[Objective]] = Registry("objective")


def register_objective(cls: type[Objective]) -> type[Objective]:
    """Make an objective known under `cls.name`; usable as a class decorator."""
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        raise UsageError(f"{cls!r} cannot be registered as an objective; derive it from Objective")
    names = [metric.name for metric in cls.metrics]
    declared = f"it declares {', '.join(names) or 'none'}"
    if LOSS.name not in names:
        raise UsageError(f"objective {cls.__name__}: the metric 'loss' is missing ({declared}); add LOSS to metrics")
    if len(set(names)) < len(names):
        raise UsageError(f"objective {cls.__name__}: a metric is declared twice ({declared}); name each once")
    if cls.learned.metric not in cls.metrics:
        raise UsageError(
            f"objective {cls.__name__}: it is learned by the metric {cls.learned.metric.name!r}, which is missing "
            f"({declared}); add it to metrics, or choose one of them for learned"
        )
    if cls.learned.split not in SPLITS:
        raise UsageError(
            f"objective {cls.__name__}: learned.split = {cls.learned.split!r} is not one of train, heldout"
        )
    return OBJECTIVES.register(cls)


def get_objective(name: str) -> Objective:
    """The objective called `name`."""
    return _instance(OBJECTIVES.get(name))


@cache
def _instance(cls: type[Objective]) -> Objective:
    return cls()


def objective_names() -> list[str]:
    """The names of all objectives."""
    return OBJECTIVES.names()


def known_columns() -> dict[str, str]:
    """The columns of metrics.jsonl that some objective records, with the words for people."""
    objectives = [get_objective(name) for name in objective_names()]
    always = {name: text for objective in objectives for name, text in objective.column_texts.items()}
    tests = {name: metric.text("test") for each in objectives for name, metric in each.test_columns.items()}
    return always | tests


def is_share(column: str) -> bool:
    """Whether a column of metrics.jsonl holds shares, which are shown in percent."""
    objectives = [get_objective(known) for known in objective_names()]
    metrics = [{**objective.columns, **objective.test_columns}.get(column) for objective in objectives]
    return any(metric is not None and metric.is_share for metric in metrics)


def objective_of(task: Task) -> Objective:
    """The objective that a task names, checked against it."""
    objective = get_objective(task.objective)
    objective.check(task)
    return objective


@register_objective
class Classification(Objective):
    """One class an example: cross-entropy of logits (E, B, C) and labels (E, B)."""

    name = "classification"

    def targets(self, batch: Batch) -> Tensor:
        return batch.labels

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)

    def measurements(self, logits: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {ACCURACY.name: logits.argmax(dim=-1) == targets}


@register_objective
class NextToken(Objective):
    """The next token at every position: cross-entropy of logits (E, B, L, V) and labels (E, B, L).

    A task's labels are `next_tokens(tokens, lengths)`: position t has token t + 1, the last one and padding have
    NO_TARGET. A task may set more positions to NO_TARGET, e.g. a prompt. Loss and accuracy of an example are means over
    its targets.
    """

    name = "next_token"
    evaluations = 40  # a corpus is read once or a few times; a quarter and half of the training are among them
    is_causal = True
    predicts_positions = True

    def check(self, task: Task) -> None:
        if task.num_classes != task.vocab_size:
            raise UsageError(
                f"task {task.name}: num_classes = {task.num_classes}, but next_token predicts one of its "
                f"vocab_size = {task.vocab_size} ids; make num_classes the number of symbols"
            )

    def targets(self, batch: Batch) -> Tensor:
        labels = batch.labels
        if labels.shape != batch.tokens.shape:
            raise UsageError(
                f"next_token needs a label at every position: labels have shape {tuple(labels.shape)}, tokens "
                f"{tuple(batch.tokens.shape)}; return next_tokens(tokens, lengths) from the task"
            )
        empty = (labels == NO_TARGET).all(dim=-1)
        if bool(empty.any()):
            row = int(empty.nonzero()[0])
            raise UsageError(f"example {row} has no target: next_token needs at least two tokens an example")
        return labels

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        losses = cross_entropy(logits.flatten(0, 2), targets.flatten(), ignore_index=NO_TARGET, reduction="none")
        return _mean_over_targets(losses.view_as(targets), targets)

    def measurements(self, logits: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        right = (logits.argmax(dim=-1) == targets).to(logits.dtype)
        return {ACCURACY.name: _mean_over_targets(right, targets)}


def _mean_over_targets(values: Tensor, targets: Tensor) -> Tensor:
    """(E, B): the mean of values (E, B, L) where there is a target; values are 0 elsewhere."""
    return values.sum(dim=-1) / (targets != NO_TARGET).sum(dim=-1)


@register_objective
class BalancedClassification(Classification):
    """Classification where one class is much more frequent: every class counts the same.

    Balanced accuracy is the mean over classes of the share of their examples that are right; macro F1 is the mean over
    classes of 2 right / (examples + answers). Always naming the most frequent class has a balanced accuracy of 1 / C.
    """

    name = "balanced_classification"
    metrics = (LOSS, ACCURACY, BALANCED_ACCURACY, MACRO_F1)
    learned = Learned(BALANCED_ACCURACY)

    def count_sizes(self, num_classes: int) -> Mapping[str, int]:
        return dict.fromkeys(("examples", "answers", "right"), num_classes)

    def counts(self, logits: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        import torch

        classes = torch.arange(logits.shape[-1], device=logits.device)
        examples = targets.unsqueeze(-1) == classes  # (E, B, C)
        answers = logits.argmax(dim=-1, keepdim=True) == classes
        return {"examples": examples, "answers": answers, "right": examples & answers}

    def from_counts(self, counts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        examples, answers, right = counts["examples"], counts["answers"], counts["right"]
        occurs = examples > 0  # a class without examples has no share of them
        recall = right / examples.clamp(min=1)
        f1 = 2 * right / (examples + answers).clamp(min=1)
        seen = (examples + answers) > 0
        return {
            BALANCED_ACCURACY.name: recall.sum(dim=-1) / occurs.sum(dim=-1),
            MACRO_F1.name: f1.sum(dim=-1) / seen.sum(dim=-1),
        }


CLASSIFICATION = get_objective("classification")
