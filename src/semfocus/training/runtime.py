"""Where and how to run: device, threads, cadences. None of it changes the result beyond rounding; all is recorded."""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from semfocus.config import TrainingConfig
from semfocus.errors import UsageError, check_float, check_int
from semfocus.fused import fused_parts, refuses
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.spec import Spec

log = logging.getLogger(__name__)

# Compiling takes about fifteen seconds on a CPU: it pays from this many FLOP on.
MIN_FLOP_TO_COMPILE = 2e13
MAX_THREADS = 256  # that are accepted from a run directory
EVALUATED_APART = 100  # epochs after which evaluations are one epoch further apart
GPU_JOBS = 4  # cohorts at a time: while one is evaluated, recorded or compiled, the others keep the GPU busy
MAX_MIXED_LENGTH = 64  # positions: up to here the fused kernels of all mechanisms are of one kind
LADDER = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # epochs whose checkpoints show the course of a training


@dataclass(frozen=True)
class Evaluations:
    """The steps at which to evaluate; the last is one of them.

    With an interval, every so many steps, counted from the start to avoid drift. Without, after each of the first
    hundred epochs, every second of the next hundred, every third after that: an evaluation costs a third of an epoch's
    training, and the epoch at which a run reaches a goal is exact to a hundredth.
    """

    per_epoch: int
    last: int
    interval: float | None = None

    def next_after(self, step: int) -> int:
        """The first step after `step` at which to evaluate."""
        if self.interval is None:
            return min(_next_epoch(step // self.per_epoch) * self.per_epoch, self.last)
        count = int(step / self.interval)
        while round(count * self.interval) <= step:
            count += 1
        return min(round(count * self.interval), self.last)

    def count(self) -> int:
        """How many there are."""
        if self.interval is not None:
            return math.ceil(self.last / self.interval)
        count, epoch, last = 0, 0, -(-self.last // self.per_epoch)
        while epoch < last:
            count, epoch = count + 1, _next_epoch(epoch)
        return count

    def is_due(self, step: int) -> bool:
        return self.next_after(step - 1) == step


def _next_epoch(epoch: int) -> int:
    """The first epoch after this one to evaluate: every n-th of the n-th hundred, and its last."""
    hundreds, beyond = divmod(epoch, EVALUATED_APART)
    every = hundreds + 1
    return hundreds * EVALUATED_APART + min((beyond // every + 1) * every, EVALUATED_APART)


@dataclass(frozen=True)
class Runtime:
    """Device, threads and cadences of a training session."""

    device: str = "auto"
    threads: int | None = None
    compile: Literal["auto", "on", "off"] = "auto"
    evaluate_every: float | None = None  # epochs; None: each at first, fewer later (`Evaluations`)
    checkpoint_seconds: float = 30.0
    keep_epochs: tuple[int, ...] = ()  # checkpoints to keep, for measurements; 0: initialisation
    keep_shares: tuple[float, ...] = ()  # the same by the share of training, where an epoch is long; 1: the end
    cohort_size: int | None = None
    jobs: int | None = 1  # cohorts at a time; None: one a core, each in its own process, or `GPU_JOBS` on a GPU
    micro_batch: int | None = None  # examples of a batch in memory at a time; None: all
    fit_memory: bool = False  # where a run alone does not fit into memory, halve that and try again
    mix: bool | None = None  # mechanisms of one shape in one cohort; None: on a GPU, which few members do not fill

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_int("threads", self.threads, at_least=1)
        if self.cohort_size is not None:
            check_int("cohort_size", self.cohort_size, at_least=1)
        if self.jobs is not None:
            check_int("jobs", self.jobs, at_least=1)
        if self.micro_batch is not None:
            check_int("micro_batch", self.micro_batch, at_least=1)
        if self.evaluate_every is not None and not 0 < self.evaluate_every < float("inf"):
            raise UsageError(f"evaluate_every = {self.evaluate_every!r} must be a positive number of epochs")
        if self.compile not in ("auto", "on", "off"):
            raise UsageError(f"compile = {self.compile!r} is not one of auto, on, off")
        if not self.checkpoint_seconds >= 0:
            raise UsageError(f"checkpoint_seconds = {self.checkpoint_seconds!r} must be zero or more")
        for epoch in self.keep_epochs:
            check_int("keep_epochs", epoch, at_least=0)
        for share in self.keep_shares:
            check_float("keep_shares", share, 0, 1)

    def torch_device(self) -> torch.device:
        """The device, or an error if this machine does not have it."""
        available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if self.device == "auto":
            return torch.device("cuda" if available["cuda"] else "cpu")
        kind, colon, number = self.device.partition(":")
        if kind not in available or (colon and not number.isdecimal()):
            raise UsageError(f"device = {self.device!r} is not one of auto, cpu, cuda, mps")
        if not available[kind]:
            there = ", ".join(name for name, present in available.items() if present)
            raise UsageError(f"device = {self.device!r} is not there on this machine; there is: {there}")
        return torch.device(self.device)

    def num_threads(self) -> int:
        """As given, or one for each idle core, at most 4: more threads than idle cores are far slower."""
        return self.threads or max(1, min(_cores() - round(os.getloadavg()[0]), 4))

    def evaluations(self, steps_per_epoch: int, steps: int, count: int | None = None) -> Evaluations:
        """When to evaluate a run of this many steps; at most once a step, at least once.

        Where no cadence is given, as `Evaluations` does by itself; a run of fewer epochs than `count` gets so many
        evaluations, in equal distances.
        """
        if self.evaluate_every is None:
            is_short = count is not None and steps < count * steps_per_epoch
            return Evaluations(steps_per_epoch, steps, max(1.0, steps / count) if count and is_short else None)
        return Evaluations(steps_per_epoch, steps, min(max(1.0, self.evaluate_every * steps_per_epoch), steps))

    def kept_steps(self, steps_per_epoch: int, steps: int) -> tuple[int, ...]:
        """The steps of a run of so many whose checkpoints stay, in order."""
        kept = {epoch * steps_per_epoch for epoch in self.keep_epochs}
        kept |= {round(share * steps) for share in self.keep_shares}
        return tuple(sorted(step for step in kept if step <= steps))

    def num_jobs(self) -> int:
        """How many cohorts to train at a time."""
        return self.jobs or {"cpu": _cores(), "cuda": GPU_JOBS}.get(self.torch_device().type, 1)

    def mixing_key(self, spec: Spec, device: str | None = None) -> tuple[object, ...]:
        """What members of one cohort must share beside their sizes: attention itself where it cannot be mixed.

        Long sequences fill a GPU with one mechanism. Random choices of keys need seeds that others do not, and a
        mechanism that fused kernels refuse would deny them to all. Learned parameters of attention make other rows.
        """
        where = self.torch_device() if device is None else torch.device(device)
        may_mix = where.type == "cuda" if self.mix is None else self.mix
        is_plain = spec.plan.sole is not None and not spec.chooses_at_random and not spec.learned
        if not may_mix or not is_plain or spec.length > MAX_MIXED_LENGTH:
            return (spec.attention,)
        if where.type == "cuda" and not torch.cuda.is_available():  # of machines that a driver has never seen
            where = torch.device("meta")
        return spec.padded_len, spec.alignment_padding, spec.extra_tokens, refuses(spec, where) is None

    def as_before(self, status: Mapping[str, Any] | None) -> Runtime:
        """With the threads and the compile choice of a run's first session, unless given: they decide the last bits.

        Checkpoints that the run was to keep are kept still.
        """
        status = status or {}
        parted = status.get("micro_batch")
        threads, compiled, kept = status.get("threads"), status.get("compiled"), status.get("kept_epochs")
        device, restored = self.torch_device(), self
        if isinstance(kept, list) and all(type(epoch) is int and epoch >= 0 for epoch in kept):
            restored = replace(restored, keep_epochs=tuple(sorted({*self.keep_epochs, *kept})))
        shares = status.get("kept_shares")
        if isinstance(shares, list) and all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
            restored = replace(restored, keep_shares=tuple(sorted({*self.keep_shares, *map(float, shares)})))
        if self.micro_batch is None and type(parted) is int and parted >= 1:
            restored = replace(restored, micro_batch=parted)
        if self.threads is None and type(threads) is int and 1 <= threads <= MAX_THREADS:
            restored = replace(restored, threads=threads)
        if self.compile == "auto" and type(compiled) is bool and status.get("device") == device.type:
            restored = replace(restored, compile="on" if compiled and _can_compile(device) else "off")
        return restored

    def compiles(self, spec: Spec, training: TrainingConfig) -> bool:
        """Whether torch's compiler has a part in a training step on a GPU."""
        return self.compile != "off" and (
            refuses(spec, self.torch_device()) is not None or training.optimizer != "sgd" or training.weight_decay > 0
        )

    def parts(self, spec: Spec, examples: int, device: torch.device) -> ForwardFns:
        """The model's functions: eager, or compiled if that is asked for or pays for training on this many examples.

        On a GPU it always pays, and fused kernels replace the compiler where they can. On a CPU it pays for full
        attention without random numbers: blocks with dropout stay eager, and sparse attention gained nothing
        (docs/engine.md).
        """
        worth = _worth_compiling(spec, examples, device)
        if self.compile == "off" or (self.compile == "auto" and not worth):
            return EAGER
        if device.type == "cuda":
            fused = fused_parts(spec, device)
            if fused is not None:
                return fused
            log.info("blocks by torch's compiler, not by fused kernels: %s", refuses(spec, device))
        return ForwardFns.compiled()


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_epochs(text: str) -> tuple[int, ...]:
    """`"0,1,20"` as epochs; `ladder` stands for 0,1,2,5,10,20,50,100,200,500. Of `10%` see `parse_shares`."""
    epochs: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if part.endswith("%"):
            continue
        if part == "ladder":
            epochs |= {*LADDER}
        elif part.isdecimal():
            epochs.add(int(part))
        else:
            raise UsageError(f"keep = {text!r}: {part!r} is not an epoch; write for example 0,1,20, ladder or 10%,50%")
    return tuple(sorted(epochs))


def parse_shares(text: str) -> tuple[float, ...]:
    """`"0,10%,50%"` as shares of training, without the epochs in it."""
    shares: set[float] = set()
    for part in (piece.strip() for piece in text.split(",")):
        if not part.endswith("%"):
            continue
        if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", part[:-1], flags=re.ASCII) or float(part[:-1]) > 100:
            raise UsageError(f"keep = {text!r}: {part!r} is not a share of training; write for example 10%,50%")
        shares.add(float(part[:-1]) / 100)
    return tuple(sorted(shares))


def _worth_compiling(spec: Spec, examples: int, device: torch.device) -> bool:
    keeps_all = (each.keeps_all for part, _ in spec.by_attention for each in part.plan.mechanisms)
    gains = all(keeps_all) and not spec.is_stochastic
    enough = device.type == "cuda" or (gains and examples * flop_per_row(spec) > MIN_FLOP_TO_COMPILE)
    return _can_compile(device) and enough


def _can_compile(device: torch.device) -> bool:
    return device.type == "cuda" or (device.type == "cpu" and bool(shutil.which("g++") or shutil.which("clang++")))


def flop_per_row(spec: Spec) -> float:
    """FLOP of training on one example, forward and backward: matrix products only."""
    model, length = spec.model, spec.length
    inner = model.heads * model.head_dim
    products = length * (4 * model.d_model * inner + 2 * model.d_model * model.d_mlp)
    scores = 2 * length * length * inner
    return 3 * 2 * model.blocks * (products + scores)


def facts(device: torch.device, threads: int, compiled: bool) -> dict[str, Any]:
    """The settings that must be equal for a result to be identical to the bit."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": device.type,
        "device_name": name,
        "threads": threads,
        "compiled": compiled,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@contextmanager
def numerics(precision: str, threads: int) -> Iterator[None]:
    """Set threads and TF32 for a run, and restore them afterwards."""
    before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]
