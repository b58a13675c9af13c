"""How many seeds would decide what these do not: an estimate from the spread of the runs themselves.

    seeds_to_decide(log_ratio, interval, 10, [0.0])        27

If effect and spread are what they are in the sample, with so many seeds an interval of 95 % excludes the bound in four
of five studies. With n seeds the standard error is s / sqrt(n), with s from the interval's width; n is enough once the
distance to the bound, in standard errors, is at least t(97.5 %) + t(80 %), n - 1 degrees of freedom. The effect that it
starts from is as uncertain as its interval is wide: a plan, not a promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from semfocus.analysis.intervals import LEVEL, Interval
from semfocus.analysis.multiple import pairs_needed

POWER = 0.8
MOST_SEEDS = 1000  # more are not counted


def seeds_to_decide(
    estimate: float | None, interval: Interval | None, n: int, bounds: Sequence[float], least: int = 0
) -> int | None:
    """The seeds with which the interval would exclude every bound; None if none up to 1000 do, or without an interval.

    `least` is asked for by another rule. Below three seeds nothing is known, and the fewest that any test needs are
    the answer.
    """
    fewest = max(least, pairs_needed(1), n + 1)
    if estimate is None or interval is None:
        return fewest if n < pairs_needed(1) else None
    from scipy.special import stdtrit

    ends = [abs(end - estimate) for end in interval_ends(interval)]
    if not ends:
        return None
    spread = max(ends) / float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(n)
    distance = min(abs(estimate - bound) for bound in bounds)
    seeds = np.arange(fewest, MOST_SEEDS + 1)
    wanted = stdtrit(seeds - 1, (1 + LEVEL) / 2) + stdtrit(seeds - 1, POWER)
    enough = seeds[distance * np.sqrt(seeds) >= wanted * spread] if distance > 0 else seeds[:0]
    return int(enough[0]) if len(enough) else None


def interval_ends(interval: Interval) -> list[float]:
    """Those ends of an interval that are finite."""
    return [end for end in (interval.low, interval.high) if math.isfinite(end)]


def seeds_for_share(successes: int, n: int, least: int = 0) -> int | None:
    """The seeds with which a sign test would see that a share as large as here is not one half, approximately."""
    from scipy.special import ndtri

    share = successes / n if n else 0.5
    if share == 0.5:
        return None
    wanted = ndtri((1 + LEVEL) / 2) * 0.5 + ndtri(POWER) * math.sqrt(share * (1 - share))
    seeds = max(math.ceil((wanted / (share - 0.5)) ** 2), least, pairs_needed(1), n + 1)
    return seeds if seeds <= MOST_SEEDS else None
