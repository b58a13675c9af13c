"""One training step of a whole cohort: forward, backward, each member's own clip, update.

The losses of the members are summed, so that one backward pass gives each member its own gradient. A member whose loss
or gradient is not finite is not updated any more; nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from semfocus.model.forward import hidden
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.head import head_parameters
from semfocus.training.cohort import Cohort

BETA1, ADAM_EPSILON = 0.9, 1e-8
SEED_STRIDE = 0x9E3779B97F4A7C15 - 2**64  # parts of a batch draw dropout of their own: examples count from 0 in each


def autocast(cohort: Cohort) -> torch.autocast:
    """Products in 16 bits, where the runs ask for it; weights are cast anew each time, since a captured step must."""
    is_asked = cohort.configs[0].precision == "bf16"
    return torch.autocast(cohort.device.type, torch.bfloat16, enabled=is_asked, cache_enabled=False)


def _int64(number: int) -> int:
    """The number as 64 bits hold it: what is too large wraps."""
    return (number + 2**63) % 2**64 - 2**63


class TrainStep:
    """Holds a cohort's parameters as leaves of autograd and makes steps; on a GPU a step is one captured graph."""

    def __init__(self, cohort: Cohort, parts: ForwardFns = EAGER, micro_batch: int | None = None) -> None:
        """`micro_batch` examples at a time are in memory, and their gradients are added up; None: the whole batch."""
        self.cohort = cohort
        self.micro_batch = micro_batch or cohort.configs[0].training.batch_size
        self.spec = cohort.spec_now
        self.parts = parts
        self.training = cohort.configs[0].training
        self.update = self._chosen_update()
        self.members = torch.arange(cohort.members, device=cohort.device).unsqueeze(-1)
        # Views of the matrix: an update of the matrix updates them.
        views = cohort.spec.layout.split(cohort.parameters)
        self.leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        batch = self.training.batch_size
        shape = cohort.steps_per_epoch, cohort.members, batch
        self.order = torch.zeros(shape, dtype=torch.int64, device=cohort.device)
        self.weights = torch.ones(cohort.steps_per_epoch, batch, device=cohort.device)
        self.lrs = torch.zeros(cohort.members, device=cohort.device)  # of the epoch
        factors = cohort.lr_factors(0)
        self.lr_factors = factors  # (steps,) of each step of the epoch; None: all 1
        self.step_lrs = self.lrs if factors is None else torch.zeros_like(self.lrs)
        self.index = torch.zeros(1, dtype=torch.int64, device=cohort.device)  # of the step within its epoch
        self.count = torch.zeros((), dtype=torch.int64, device=cohort.device)  # of all steps so far
        rates = cohort.spec.layout.rates()
        self.rates = None if rates is None else rates.to(cohort.device)  # (P,) of moving averages
        self.graph: torch.cuda.CUDAGraph | None = None
        self.prepared: tuple[int, tuple[Tensor, Tensor]] | None = None  # an epoch that has not begun, and its order

    def prepare_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch ahead of its beginning."""
        self.prepared = epoch, self.cohort.order(epoch)

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Load the order and the learning rates of an epoch; `first` is the step in it to begin with."""
        prepared, self.prepared = self.prepared, None
        order, weights = prepared[1] if prepared and prepared[0] == epoch else self.cohort.order(epoch)
        self.order.copy_(order)
        self.weights.copy_(weights)
        self.lrs.copy_(self.cohort.lrs(epoch))
        factors = self.cohort.lr_factors(epoch)
        if self.lr_factors is not None and factors is not None:
            self.lr_factors.copy_(factors)
        self.index.fill_(first)
        self.count.fill_(self.cohort.step)

    def run(self, steps: int) -> None:
        """Make this many steps of the epoch."""
        for _ in range(steps):
            self._follow_plan()
            if self.cohort.device.type == "cuda" and self.graph is None and not self.cohort.train.on_host:
                self._capture()
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()
            self.cohort.step += 1

    def _follow_plan(self) -> None:
        """Take the mechanisms of this step; a graph of the former ones is dropped."""
        spec = self.cohort.spec_now
        if spec is not self.spec and spec != self.spec:
            self.spec, self.graph = spec, None

    def step(self) -> None:
        """One step: work on the device only, nothing is read back."""
        indices = self.order.index_select(0, self.index)[0]  # (E, B)
        weights = self.weights.index_select(0, self.index)[0]
        seeds, size, total = self.seeds(), self.micro_batch, weights.sum()
        loss, gradients = self._gradients(indices[:, :size], weights[:size], total, seeds)
        for first in range(size, indices.shape[1], size):
            part = slice(first, first + size)
            own_seeds = None if seeds is None else seeds + _int64(first * SEED_STRIDE)
            own_loss, own = self._gradients(indices[:, part], weights[part], total, own_seeds)
            loss = loss + own_loss
            torch._foreach_add_(gradients, own)  # in few kernels
        with torch.no_grad():
            if self.lr_factors is not None:
                torch.mul(self.lrs, self.lr_factors.index_select(0, self.index), out=self.step_lrs)
            self.update(loss, gradients)
            self.index += 1
            self.count += 1

    def _gradients(
        self, indices: Tensor, weights: Tensor, total: Tensor, seeds: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The losses (E,) of examples (E, B), summed with weights (B,) over `total`, and their gradients."""
        cohort = self.cohort
        tokens, lengths, targets = cohort.train.take(self.members, indices)
        with torch.enable_grad():
            with autocast(cohort):
                x = hidden(self.leaves, tokens, lengths, self.spec, seeds, self.parts)
                own = *head_parameters(self.leaves, self.spec), self.spec, cohort.objective.loss
                loss = self.parts.head_loss(x, lengths, *own, targets, weights, total)  # (E,)
            return loss.detach(), torch.autograd.grad(loss.sum(), list(self.leaves.values()))

    def seeds(self) -> Tensor | None:
        """(sites, E) the dropout seeds of this step; None where nothing is random.

        The model takes seeds for the sign of a training step, in which averaged parameters follow what they see.
        """
        spec = self.cohort.spec
        if not spec.is_stochastic and not spec.layout.averages:
            return None
        return self.parts.fold_in(self.cohort.seeds, self.count, spec.num_dropout_sites)

    def _chosen_update(self) -> Callable[[Tensor, tuple[Tensor, ...]], None]:
        """The update by fused kernels where they have it, else compiled where the model is."""
        fused = self.parts.sgd_update
        if fused is not None and self.training.optimizer == "sgd" and not self.training.weight_decay:
            return partial(self._fused_update, fused)
        return self._update if self.parts is EAGER else torch.compile(self._update, dynamic=False)

    def _fused_update(self, fused: Callable[..., None], loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        cohort = self.cohort
        fused(
            cohort.parameters, cohort.spec.layout.join(gradients), loss, self.step_lrs, cohort.alive, cohort.died_at,
            self.count, self.training.clip,
        )  # fmt: skip

    def _update(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        """Clip and update each member on its own; one whose loss or gradient is not finite is frozen."""
        cohort, clip = self.cohort, self.training.clip
        flat = cohort.spec.layout.join(gradients)
        averaged = None
        if self.rates is not None:  # their "gradients" are gaps to a mean: a step of their own, beside the optimiser's
            averaged = self.rates > 0, -self.rates * flat
            flat = torch.where(averaged[0], 0.0, flat)
        norm = torch.linalg.vector_norm(flat, dim=1)
        healthy = cohort.alive & loss.isfinite() & norm.isfinite()
        cohort.died_at.copy_(torch.where(cohort.alive & ~healthy, self.count, cohort.died_at))
        cohort.alive.copy_(healthy)
        if clip is not None:
            flat = flat * (clip / norm.clamp(min=clip)).unsqueeze(1)
        change = self._change(flat)
        if averaged is not None:
            change = torch.where(*averaged, change)
        cohort.parameters.add_(torch.where(healthy.unsqueeze(1), change, 0.0))

    def _change(self, gradient: Tensor) -> Tensor:
        """(E, P): what the optimiser adds to the parameters."""
        training, lrs = self.training, self.step_lrs.unsqueeze(1)
        betas = BETA1, training.beta2
        parameters = self.cohort.parameters
        if training.optimizer != "adamw" and training.weight_decay:
            gradient = gradient + training.weight_decay * parameters
        if training.optimizer == "sgd":
            return -lrs * gradient
        first, second = self.cohort.moments["first_moment"], self.cohort.moments["second_moment"]
        healthy = self.cohort.alive.unsqueeze(1)
        first.copy_(torch.where(healthy, betas[0] * first + (1 - betas[0]) * gradient, first))
        second.copy_(torch.where(healthy, betas[1] * second + (1 - betas[1]) * gradient.square(), second))
        steps = (self.count + 1).to(self.cohort.sum_dtype)
        # 1 - beta^steps by expm1: at the first steps the difference would lose half of float32's digits.
        shares = [-torch.expm1(steps * math.log(beta)) for beta in betas]
        corrected = first / shares[0].float()
        spread = (second / shares[1].float()).sqrt()
        change = -lrs * corrected / (spread + ADAM_EPSILON)
        return change - lrs * training.weight_decay * parameters if training.optimizer == "adamw" else change

    def _capture(self) -> None:
        """Record a step as a CUDA graph. Warming up must not train: everything that a step changes is restored."""
        cohort = self.cohort
        changed = [cohort.parameters, *cohort.moments.values(), cohort.alive, cohort.died_at, self.index, self.count]
        saved = [tensor.clone() for tensor in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.index.zero_()
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        for tensor, value in zip(changed, saved, strict=True):
            tensor.copy_(value)
        self.graph = graph  # `self` also keeps the compiled functions alive, which a graph does not
