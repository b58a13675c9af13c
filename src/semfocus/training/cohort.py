"""Runs that train in lockstep: the parameters of E members are one matrix (E, P).

The random streams of a member (data, initialisation, order, dropout) depend on its own seed alone. Which cohort it
trains in changes its result by no more than rounding.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semfocus.config import RunConfig, TrainingConfig
from semfocus.model.encoder import Encoder
from semfocus.randomness import Stream, stream
from semfocus.spec import Spec, initial
from semfocus.tasks import Task
from semfocus.training import data
from semfocus.training.data import MappedRows, Rows
from semfocus.training.objective import Objective, Split, objective_of

MOMENTS = {"sgd": (), "adam": ("first_moment", "second_moment"), "adamw": ("first_moment", "second_moment")}


def spec_of(config: RunConfig, task: Task) -> Spec:
    """What shapes the model of this run; UsageError where task, objective and attention do not fit together."""
    objective = objective_of(task)
    return Spec(
        config.model,
        config.attention,
        task.vocab_size,
        task.num_classes,
        task.seq_len,
        is_causal=objective.is_causal,
        predicts_positions=objective.predicts_positions,
    )


def mixed_spec(spec: Spec, configs: list[RunConfig]) -> Spec:
    """The spec of members with these configurations, which may differ in attention as long as shapes agree."""
    runs = [(attention, len(list(run))) for attention, run in groupby(configs, key=lambda config: config.attention)]
    return replace(spec, attention=configs[0].attention, mixture=tuple(runs) if len(runs) > 1 else ())


def lr_factor(training: TrainingConfig, step: int, total: int) -> float:
    """What the learning rate is multiplied by at a step, which counts from 0, of `total`.

    Warm-up ends at the full rate; the last step of a schedule that falls is just above the final one.
    """
    warm = round(training.warmup * total)
    if step < warm:
        return (step + 1) / warm
    if training.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))
    elif training.schedule == "trapezoid":
        share = min(1.0, (total - step) / (training.cooldown * total))
    else:
        share = 1.0
    return training.final_lr + (1 - training.final_lr) * share


def dropout_seed(seed: int) -> int:
    """The 64-bit seed of a member's dropout stream."""
    digest = hashlib.sha256(f"{seed}/dropout".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _order_of_batches(draws: Stream, count: int, size: int) -> NDArray[np.int64]:
    """(count,) examples in batches that stay as they were drawn, in a random order; a last short one stays last."""
    whole = draws.permutation(count // size)[:, None] * size + np.arange(size)
    return np.concatenate([whole.reshape(-1), np.arange(count - count % size, count)])


@dataclass
class Cohort:
    """E members: their data, parameters and optimiser state."""

    configs: list[RunConfig]
    spec: Spec
    train: Rows | MappedRows
    heldout: Rows | MappedRows
    parameters: Tensor  # (E, P)
    moments: dict[str, Tensor]  # (E, P) each
    alive: Tensor  # (E,) bool: False once a loss or gradient was not finite
    died_at: Tensor  # (E,) int64: the step at which that happened, else -1
    seeds: Tensor  # (E,) int64: of dropout
    step: int = 0
    test: Rows | MappedRows | None = None  # where training.evaluate_test asks for it

    @staticmethod
    def begin(configs: list[RunConfig], tasks: list[Task], device: torch.device) -> Cohort:
        """Draw data and initial parameters."""
        spec, objective = mixed_spec(spec_of(configs[0], tasks[0]), configs), objective_of(tasks[0])
        opened = data.load_each(configs, tasks, data.opened)
        tests = [test for test in data.load_each(configs, tasks, data.open_test) if test is not None]
        parameters = torch.stack([initial(spec, config.seed) for config in configs]).to(device)
        members = len(configs)
        return Cohort(
            configs,
            spec,
            data.place([train for train, _ in opened], spec, device, objective),
            data.place([heldout for _, heldout in opened], spec, device, objective),
            parameters,
            {name: torch.zeros_like(parameters) for name in MOMENTS[configs[0].training.optimizer]},
            torch.ones(members, dtype=torch.bool, device=device),
            torch.full((members,), -1, dtype=torch.int64, device=device),
            torch.tensor([dropout_seed(config.seed) for config in configs], device=device),
            test=data.place(tests, spec, device, objective) if tests else None,
        )

    @property
    def members(self) -> int:
        return len(self.configs)

    @property
    def sets(self) -> dict[Split, Rows | MappedRows]:
        """What is evaluated, the training set first."""
        sets: dict[Split, Rows | MappedRows] = {"train": self.train, "heldout": self.heldout}
        return sets if self.test is None else {**sets, "test": self.test}

    @property
    def evaluated(self) -> dict[Split, int]:
        """How many examples of each set are evaluated, the first ones."""
        training = self.configs[0].training
        counts = {split: rows.count - training.drop_one_row for split, rows in self.sets.items()}
        return counts | {"train": min(training.evaluated_rows or counts["train"], counts["train"])}

    @property
    def objective(self) -> Objective:
        return self.train.objective

    @property
    def device(self) -> torch.device:
        return self.parameters.device

    @property
    def sum_dtype(self) -> torch.dtype:
        """The type in which many numbers are summed: float64, except on Apple's GPUs, which do not support it."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def steps_per_epoch(self) -> int:
        training = self.configs[0].training
        return -(-(self.train.count - training.drop_one_row) // training.batch_size)

    @property
    def total_steps(self) -> int:
        return self.configs[0].training.epochs * self.steps_per_epoch

    @property
    def spec_now(self) -> Spec:
        """The spec at this step of training: mechanisms may change on the way."""
        return self.spec.at(self.step / self.total_steps)

    def lrs(self, epoch: int) -> Tensor:
        """(E,) the learning rates of an epoch; epochs count from 0."""
        values = [config.training.lr * config.training.decay**epoch for config in self.configs]
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def lrs_at(self, step: int) -> Tensor:
        """(E,) the learning rates of one step."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        factors = self.lr_factors(epoch)
        return self.lrs(epoch) if factors is None else self.lrs(epoch) * factors[inside]

    def lr_factors(self, epoch: int) -> Tensor | None:
        """(steps,) what the learning rates of an epoch are multiplied by at each of its steps; None: by nothing."""
        training, per_epoch = self.configs[0].training, self.steps_per_epoch
        if training.schedule == "decay" and not training.warmup:
            return None
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        values = [lr_factor(training, step, self.total_steps) for step in steps]
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Indices (steps, E, B) of the examples of each step of an epoch, and their weights (steps, B).

        The last batch may be short: examples beyond its end have weight 0.
        """
        training = self.configs[0].training
        count = self.train.count - training.drop_one_row
        padded = self.steps_per_epoch * training.batch_size
        shuffled = np.zeros((self.members, padded), dtype=np.int64)
        for i, config in enumerate(self.configs):
            draws = stream(config.seed, f"order/{epoch}")
            if config.task.span is None:
                shuffled[i, :count] = draws.permutation(self.train.count)[:count]
            else:
                shuffled[i, :count] = _order_of_batches(draws, count, training.batch_size)
        batches = shuffled.reshape(self.members, -1, training.batch_size).swapaxes(0, 1)
        weights = (np.arange(padded) < count).astype(np.float32).reshape(-1, training.batch_size)
        indices = torch.from_numpy(np.ascontiguousarray(batches))
        return indices.to(self.device), torch.from_numpy(weights).to(self.device)

    def member(self, index: int) -> Encoder:
        """One member as an ordinary module, on the CPU."""
        return Encoder(mixed_spec(self.spec_now, [self.configs[index]]), self.parameters[index].detach().cpu())

    def tensors(self, index: int) -> dict[str, Tensor]:
        """The tensors of a checkpoint of this member."""
        return {"parameters": self.parameters[index], **{name: moment[index] for name, moment in self.moments.items()}}

    def restore(self, index: int, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self.parameters[index] = tensors["parameters"].to(self.device)
        for name, moment in self.moments.items():
            moment[index] = tensors[name].to(self.device)

    def only(self, members: list[int]) -> Cohort:
        """The same cohort with these members only."""
        return replace(
            self,
            configs=[self.configs[i] for i in members],
            spec=mixed_spec(self.spec, [self.configs[i] for i in members]),
            train=self.train.only(members),
            heldout=self.heldout.only(members),
            test=None if self.test is None else self.test.only(members),
            parameters=self.parameters[members],
            moments={name: moment[members] for name, moment in self.moments.items()},
            alive=self.alive[members],
            died_at=self.died_at[members],
            seeds=self.seeds[members],
        )
