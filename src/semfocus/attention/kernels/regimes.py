"""Which kernels compute top-k attention: one table, the first row that fits a call and can serve it.

`python benchmarks/kernels.py --regimes` times the ways that serve a shape beside each other and prints what the table
should say. A row says what it rests on; "not measured" stands where the other way is refused or known to be slow.
What is chosen does not depend on whether a gradient is wanted, which could change the kept set in the last bit of a
score: where `decode` is chosen and one is, `threshold` computes the same scores to the bit. Nothing here needs Triton.
Half-precision rows of up to 1023 keys with at most 16 kept are `short`, as is all that is
not top-k.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_DECODE_QUERIES = 8  # queries of a problem that `decode` serves
ANY = 2**31


@dataclass(frozen=True)
class Regime:
    """Where one family of kernels is chosen: bounds on the keys that a query keeps, and on the size of a problem."""

    kernels: str
    max_kept: int = ANY
    min_keys: int = 0
    max_keys: int = ANY
    max_queries: int = ANY
    floats: tuple[int, ...] = (16, 32)  # bits of the types that it was chosen for
    why: str = ""

    def fits(self, kept: int, keys: int, queries: int, bits: int) -> bool:
        """Whether a call lies within the bounds."""
        sizes = kept <= self.max_kept and self.min_keys <= keys <= self.max_keys and queries <= self.max_queries
        return sizes and bits in self.floats


# ms, H200, bf16, 8 heads of 128, 16384 tokens, forward and backward, beside the best full attention
REGIMES = (
    Regime("short", max_keys=64, why="measured (results/engine)"),
    Regime("decode", min_keys=1024, max_queries=MAX_DECODE_QUERIES,
           why="not measured; where a head has few queries, the others leave a GPU idle"),
    Regime("short", max_kept=16, floats=(32,), why="measured (results/engine); up to 1024 keys, it refuses more"),
    Regime("short", max_kept=16, max_keys=1023, floats=(16,), why="measured: from 1024 keys on `long` takes half"),
    Regime("long", max_kept=16, why="measured: 0.8, 1.1, 1.1, 1.7, 2.1 at 1k, 2k, 4k, 8k, 16k keys for k = 8"),
    Regime("long", max_kept=32, min_keys=8192, why="measured: 5.5, 6.5 at 8k, 16k keys for k = 32; full 3.2, 7.1"),
    Regime("long", max_kept=64, floats=(32,), why="not measured beside `threshold`"),
    Regime("threshold", why="not measured; `long` takes 3.4, 3.6, 4.0 at 1k, 2k, 4k keys for k = 32 and 9.1 to 17 for "
           "k = 64, and refuses more; full 0.6, 1.0, 1.8, 7.1"),
)  # fmt: skip
