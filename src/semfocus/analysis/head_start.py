"""The head start of a language model over another: how many times fewer tokens it needs to one held-out loss.

    head_start(full, focused, 0.25)          (4.2e6, 3.9e6) tokens: 1.08 times fewer

Both runs of a seed are asked for one level: the larger of their held-out losses at a share of training. Where the
focused run is ahead, that is full attention's loss there, and the focused run got to it sooner; where it is behind, the
other way round. So both get there, and swapping the runs swaps the answer. Between evaluations the lowest loss so far
is taken to fall along a straight line.
"""

from __future__ import annotations

import math

import numpy as np

from semfocus.analysis.pairing import Floats
from semfocus.analysis.records import Record

LOSS = "heldout_loss"


def tokens_a_step(record: Record) -> int:
    """The tokens of a batch."""
    sizes = record.config.get("sizes")
    length = sizes.get("seq_len") if isinstance(sizes, dict) else None
    batch = record.config["training"].get("batch_size")
    return length * batch if isinstance(length, int) and isinstance(batch, int) else 1


def tokens_of(record: Record) -> Floats:
    """The tokens seen up to each evaluation; a row that is read again counts again."""
    return np.asarray(record.column("step"), dtype=np.float64) * tokens_a_step(record)


def first_at(places: Floats, values: Floats, level: float) -> float | None:
    """The first place at which values that fall are at `level` or below; None if they never are."""
    lowest = np.minimum.accumulate(values)
    there = np.flatnonzero(lowest <= level)
    if not len(there):
        return None
    i = int(there[0])
    if i == 0 or lowest[i] == level:
        return float(places[i])
    share = (lowest[i - 1] - level) / (lowest[i - 1] - lowest[i])
    return float(places[i - 1] + share * (places[i] - places[i - 1]))


def head_start(full: Record, other: Record, share: float) -> tuple[float, float] | None:
    """The tokens in which each run reaches the larger of their losses at a share of training.

    A run that diverged has no say in the level and gets there at the end of training at the earliest; None if both did,
    or where one of them has no evaluation.
    """
    curves = [None if run.state == "diverged" else _curve(run) for run in (full, other)]
    known = [curve for curve in curves if curve is not None and len(curve[0])]
    lost = sum(run.state == "diverged" for run in (full, other))
    if not known or len(known) + lost < 2:
        return None
    end = max(float(places[-1]) for places, _ in known)
    level = max(float(np.interp(share * end, places, losses)) for places, losses in known)
    times = [end if curve is None else first_at(*curve, level) for curve in curves]
    return (times[0] or end, times[1] or end)


def log_ratio(full: Record, other: Record, share: float) -> float | None:
    """The logarithm of how many times fewer tokens `other` needs."""
    times = head_start(full, other, share)
    return None if times is None else math.log(times[0] / times[1])


def _curve(record: Record) -> tuple[Floats, Floats]:
    losses = np.asarray(record.column(LOSS), dtype=np.float64)
    return (tokens_of(record), losses) if len(losses) and np.isfinite(losses).all() else (np.empty(0), np.empty(0))
