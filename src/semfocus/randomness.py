"""One named random stream per purpose, from one seed. No code touches a global generator.

    stream(7, "data/parity/train").integers(2, (3, 4))

A stream is Philox, keyed by a hash of seed and name. Every draw is made from its raw 64-bit words: numpy guarantees
those to stay the same in all versions and on all machines, but not `integers` and `random`.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_UNIT = 2.0**-53


class Stream:
    """Independent uniform draws; the same name and seed give the same numbers on every machine."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, shape: int | tuple[int, ...]) -> NDArray[np.uint64]:
        """Raw 64-bit words."""
        size = int(np.prod(shape, dtype=np.int64))
        return self._bits.random_raw(size).reshape(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Floats in [0, 1) with 53 random bits."""
        return (self.words(shape) >> np.uint64(11)).astype(np.float64) * _UNIT

    def integers(self, bound: int | NDArray[np.int64], shape: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Integers in 0 .. bound-1; `bound` may be an array. No value is favoured by more than bound / 2^53."""
        return (self.uniform(shape) * bound).astype(np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniformly random order of 0 .. n-1 (ties among n 64-bit words: n^2 / 2^65)."""
        return np.argsort(self.words(n), kind="stable")


def stream(seed: int, name: str) -> Stream:
    """The stream called `name` of this seed: `stream(seed, "data/heldout")`."""
    return Stream(seed, name)
