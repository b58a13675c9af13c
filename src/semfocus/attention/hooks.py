"""Looking on while `attend` works: observers are told of each problem, and cannot change its answer.

    with observing(lambda problem, grouped: print(problem.mechanism, problem.lead)):
        model(tokens)

Nobody observes: `attend` pays for one look at an empty list, which torch.compile folds away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from semfocus.attention.inputs import AttentionInputs

Observer = Callable[[AttentionInputs, bool], None]  # the problem, and whether its heads are two dimensions (grouped)
observers: list[Observer] = []


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every problem that `attend` is given inside this block, before it is solved."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@torch.compiler.disable  # an observer is ordinary Python: a compiled model is cut here while someone looks
def report(inputs: AttentionInputs, grouped: bool) -> None:
    """Tell everyone who observes."""
    with torch.no_grad():
        for observer in list(observers):
            observer(inputs, grouped)
