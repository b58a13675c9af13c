"""Seeds drawn from a torch.Generator, also under torch.compile.

A generator cannot enter a traced graph. The graph refers to it by a number, and a custom operation draws from it each
time the graph runs: the same seeds in the same order as without a compiler.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Generators that graphs draw from, kept as long as a graph may run. Few: each costs a compilation of its own.
_generators: list[torch.Generator] = []
# Every draw mutates this tensor, so that a compiler neither merges nor reorders nor removes draws. It lives on the CPU,
# so that no draw is recorded into a CUDA graph, which would replay the same seed.
_draws = torch.zeros((), dtype=torch.int64, device="cpu")


def draw_seed(generator: torch.Generator | None, device: torch.device) -> Tensor:
    """An int64 scalar on `device`, drawn from `generator`, or from torch's own as its dropout does."""
    if generator is None:
        return _draw(None, torch.device("cpu") if device.type == "meta" else device).to(device)
    if torch.compiler.is_compiling():
        return draw_by_number(_draws, number_of(generator)).to(device)
    return _draw(generator, generator.device).to(device)


def _draw(generator: torch.Generator | None, device: torch.device) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=device)


@torch.compiler.assume_constant_result  # torch.compile guards on the generator's identity
def number_of(generator: torch.Generator) -> int:
    """The number by which graphs refer to this generator."""
    for number, known in enumerate(_generators):
        if known is generator:
            return number
    _generators.append(generator)
    return len(_generators) - 1


@torch.library.custom_op("semfocus::draw_by_number", mutates_args={"draws"})
def draw_by_number(draws: Tensor, number: int) -> Tensor:
    """A seed from the generator with this number, on the generator's device; counts the draw in `draws`."""
    generator = _generators[number]
    draws.add_(1)
    return _draw(generator, generator.device)


@draw_by_number.register_fake
def _(draws, number):
    return torch.empty((), dtype=torch.int64, device=_generators[number].device)
