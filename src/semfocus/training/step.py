"""One training step of a whole cohort: forward, backward, each member's own clip, update.

Losses of members are summed, so that one backward pass gives each member its own gradient. A member whose loss or
gradient is not finite is set aside before its update; nothing here waits for the device to say so.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from semfocus import counter_rng
from semfocus.model import EAGER, ForwardFns, forward
from semfocus.training.cohort import Cohort
from semfocus.training.data import accumulator

BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8


class TrainStep:
    """Holds a cohort's parameters as leaves and makes steps; on a GPU a step is one captured graph."""

    def __init__(self, cohort: Cohort, parts: ForwardFns = EAGER) -> None:
        self.cohort = cohort
        self.parts = parts
        compiled = parts is not EAGER
        self.update = torch.compile(self._update, dynamic=False) if compiled else self._update
        on_gpu = compiled and cohort.device.type == "cuda"  # not on a CPU: see `ForwardFns.compiled`
        self.fold_in = torch.compile(counter_rng.fold_in, dynamic=False) if on_gpu else counter_rng.fold_in
        self.training = cohort.configs[0].training
        self.members = torch.arange(cohort.members, device=cohort.device).unsqueeze(-1)
        # Views of the one matrix, so that an update of the matrix is an update of them all.
        views = cohort.spec.layout.split(cohort.parameters)
        self.leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        batch = self.training.batch_size
        self.rows = torch.zeros(cohort.steps_per_epoch, cohort.members, batch, dtype=torch.int64, device=cohort.device)
        self.weights = torch.ones(cohort.steps_per_epoch, batch, device=cohort.device)
        self.lrs = torch.zeros(cohort.members, device=cohort.device)
        self.index = torch.zeros(1, dtype=torch.int64, device=cohort.device)  # of the step within its epoch
        self.count = torch.zeros((), dtype=torch.int64, device=cohort.device)  # of all steps so far
        self.graph: torch.cuda.CUDAGraph | None = None

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Load an epoch's order and learning lrs, and stand before its step `first`."""
        rows, weights = self.cohort.order(epoch)
        self.rows.copy_(rows)
        self.weights.copy_(weights)
        self.lrs.copy_(self.cohort.lrs(epoch))
        self.index.fill_(first)
        self.count.fill_(self.cohort.step)

    def run(self, steps: int) -> None:
        """Make this many steps of the epoch."""
        if self.cohort.device.type == "cuda" and self.graph is None and steps:
            self._capture()
        for _ in range(steps):
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()
        self.cohort.step += steps

    def step(self) -> None:
        """The step itself: only work on the device, nothing read back."""
        cohort = self.cohort
        rows = self.rows.index_select(0, self.index)[0]
        weights = self.weights.index_select(0, self.index)[0]
        tokens, valid_mask, labels = cohort.train.take(self.members, rows)
        seeds = (
            self.fold_in(cohort.seeds, self.count, cohort.spec.num_dropout_sites) if cohort.spec.is_stochastic else None
        )
        with torch.enable_grad():
            logits = forward(self.leaves, tokens, valid_mask, cohort.spec, seeds, self.parts)
            losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            loss = (losses.view_as(labels) * weights).sum(dim=1) / weights.sum()
            gradients = torch.autograd.grad(loss.sum(), list(self.leaves.values()))
        with torch.no_grad():
            self.update(loss.detach(), gradients)
            self.index += 1
            self.count += 1

    def _update(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        """Each member's own clip and update; members whose numbers are not finite stay as they are from now on."""
        cohort, clip = self.cohort, self.training.clip
        flat = cohort.spec.layout.join(gradients)
        norm = torch.linalg.vector_norm(flat, dim=1)
        healthy = cohort.alive & loss.isfinite() & norm.isfinite()
        cohort.died_at.copy_(torch.where(cohort.alive & ~healthy, self.count, cohort.died_at))
        cohort.alive.copy_(healthy)
        if clip is not None:
            flat = flat * (clip / norm.clamp(min=clip)).unsqueeze(1)
        cohort.parameters.add_(torch.where(healthy.unsqueeze(1), self._change(flat), 0.0))

    def _change(self, gradient: Tensor) -> Tensor:
        """(E, P) what the optimiser adds."""
        training, lrs = self.training, self.lrs.unsqueeze(1)
        parameters = self.cohort.parameters
        if training.optimizer != "adamw" and training.weight_decay:
            gradient = gradient + training.weight_decay * parameters
        if training.optimizer == "sgd":
            return -lrs * gradient
        first, second = self.cohort.moments["first_moment"], self.cohort.moments["second_moment"]
        healthy = self.cohort.alive.unsqueeze(1)
        first.copy_(torch.where(healthy, BETAS[0] * first + (1 - BETAS[0]) * gradient, first))
        second.copy_(torch.where(healthy, BETAS[1] * second + (1 - BETAS[1]) * gradient.square(), second))
        steps = (self.count + 1).to(accumulator(self.count.device))
        # 1 - beta^steps, without the difference: at the first steps it would cost float32 half of its digits.
        shares = [-torch.expm1(steps * math.log(beta)) for beta in BETAS]
        corrected = first / shares[0].float()
        spread = (second / shares[1].float()).sqrt()
        change = -lrs * corrected / (spread + ADAM_EPSILON)
        return change - lrs * training.weight_decay * parameters if training.optimizer == "adamw" else change

    def _capture(self) -> None:
        """Record a step as a CUDA graph. Warming up must not train: everything that a step changes is put back."""
        cohort = self.cohort
        changed = [cohort.parameters, *cohort.moments.values(), cohort.alive, cohort.died_at, self.index, self.count]
        saved = [tensor.clone() for tensor in changed]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.index.zero_()
                self.step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        for tensor, value in zip(changed, saved, strict=True):
            tensor.copy_(value)
        self.graph = graph  # `self` also holds the compiled parts: a graph does not keep its code alive
