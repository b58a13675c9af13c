"""Pairs of runs with the same seed: they share the data, and the initial weights where shapes agree.

    seeds, left_out = paired_seeds(full.seeds, other.seeds)

Two arms are always compared seed by seed. Values are kept in the order of their seeds, so that no result depends on
the order in which runs were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError

Floats = NDArray[np.float64]
Arm = Literal["full", "other"]


class Unpaired(NamedTuple):
    """A seed that a comparison leaves out, and the arm that has no run of it."""

    seed: int
    missing: Arm
    task: str = ""


def paired_seeds(full: Sequence[int], other: Sequence[int]) -> tuple[tuple[int, ...], tuple[Unpaired, ...]]:
    """The seeds that both arms have, and those that only one has; both in ascending order."""
    unpaired = [Unpaired(seed, "other") for seed in set(full) - set(other)]
    unpaired += [Unpaired(seed, "full") for seed in set(other) - set(full)]
    return tuple(sorted(set(full) & set(other))), tuple(sorted(unpaired))


def seed_order(seeds: Sequence[int]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """The indices that sort the seeds, and the sorted seeds."""
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise UsageError(f"seed = {seed!r} must be a whole number")
    ordered = tuple(sorted(int(seed) for seed in seeds))
    for seed, following in pairwise(ordered):
        if seed == following:
            raise UsageError(f"seed = {seed} appears twice; keep one run a seed and configuration")
    # Seeds may exceed 64 bits, so they are compared as Python integers.
    return np.array(sorted(range(len(seeds)), key=lambda i: int(seeds[i])), dtype=np.int64), ordered


def positions(seeds: Sequence[int], wanted: Sequence[int]) -> NDArray[np.int64]:
    """The index of each wanted seed in `seeds`."""
    index = {seed: i for i, seed in enumerate(seeds)}
    missing = [seed for seed in wanted if seed not in index]
    if missing:
        raise UsageError(f"seed = {missing[0]} is not among the {len(index)} seeds of this arm")
    return np.array([index[seed] for seed in wanted], dtype=np.int64)
