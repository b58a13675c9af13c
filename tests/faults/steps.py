"""Faults injected into training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from semfocus.training.step import TrainStep


@contextmanager
def before_each_step(act: Callable[[TrainStep], None]) -> Iterator[None]:
    """Call `act` before each training step of any cohort in this process; what it raises, the step raises."""
    real = TrainStep.step

    def step(self: TrainStep) -> None:
        act(self)
        real(self)

    with mock.patch.object(TrainStep, "step", step):
        yield
