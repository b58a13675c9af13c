"""P-values from a fixed random sample of rearrangements, where listing all of them would take too long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semfocus.analysis.pairing import Floats
from semfocus.randomness import Stream, stream

DRAWS = 99_999
ROUNDING = 1e-9  # statistics closer than this, relative to their scale, are equal
_CHUNK = 10_000  # rows drawn at a time, to bound memory


def sampled_p(purpose: str, at_least: float, draw: Callable[[Stream, int], Floats]) -> float:
    """The share of rearrangements whose statistic is `at_least` so far from zero.

    `draw(rng, rows)` gives the statistic of that many random rearrangements. The observed one is counted among
    them, so that the test keeps its level; the same call always gives the same p.
    """
    rng = stream(0, f"analysis/{purpose}")
    extreme = 1
    for start in range(0, DRAWS, _CHUNK):
        extreme += int(np.sum(np.abs(draw(rng, min(_CHUNK, DRAWS - start))) >= at_least))
    return extreme / (1 + DRAWS)
