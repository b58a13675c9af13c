"""Hooks of `attend`: observers receive the inputs of each call and cannot change its output.

    with observing(lambda inputs, grouped: print(inputs.mechanism, inputs.lead)):
        model(tokens)

Without observers `attend` pays for one test of an empty list, which torch.compile folds away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from semfocus.attention.inputs import AttentionInputs

Observer = Callable[[AttentionInputs, bool], None]  # the inputs, and whether heads are grouped (two dimensions)
observers: list[Observer] = []


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` with the inputs of every call of `attend` inside this block, before it is computed."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@torch.compiler.disable  # an observer is ordinary Python: while there is one, the graph breaks here
def report(inputs: AttentionInputs, grouped: bool) -> None:
    """Call all observers."""
    with torch.no_grad():
        for observer in list(observers):
            observer(inputs, grouped)
