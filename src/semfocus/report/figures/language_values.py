"""What panels show of language models: tokens, parameters, and the head start over full attention.

tokens           along which metrics are drawn; a row that is read again counts again
parameters       of a model's blocks, as a place of a sweep
head_start.25    the head start (`analysis.head_start`) over full attention's run of its seed, at 25 % of training
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from semfocus.analysis.comparison import BASE
from semfocus.analysis.groups import Group
from semfocus.analysis.head_start import log_ratio
from semfocus.analysis.records import Record

TOKENS, PARAMETERS, HEAD_START = "tokens", "parameters", "head_start"
LABELS = {
    TOKENS: "tokens",
    "seconds": "seconds of training",
    "induction.best_heads": "weight of the best induction head",
    "induction.accuracies": "accuracy of copying",
    "induction.tokens": "tokens",
    PARAMETERS: "parameters of the blocks",
    **{f"{HEAD_START}.{percent}": f"head start at {percent} %" for percent in (25, 50, 100)},
}


def is_ratio(metric: str) -> bool:
    """Whether values are ratios of one run to another, for which 1 means no difference."""
    return metric.partition(".")[0] == HEAD_START


def head_start_of(record: Record, groups: Sequence[Group], share: float) -> float | None:
    """How many times fewer tokens than full attention's run of the same seed a run needs; None of that run."""
    group = next((own for own in groups if any(run.id == record.id for run in own.records)), None)
    bases = [] if group is None or record.mechanism == BASE else group.runs(BASE)
    full = next((run for run in bases if run.seed == record.seed and run.ended), None)
    ratio = None if full is None or not record.ended else log_ratio(full, record, share)
    return None if ratio is None else math.exp(ratio)


def parameters_of(model: Mapping[str, Any]) -> int:
    """The weights of a model's blocks: projections of attention, and the MLP."""
    inner = model["d_model"] * (1 if model["head_width"] == "split" else model["heads"])
    matrices = 3 if model["activation"] == "swiglu" else 2
    return model["blocks"] * model["d_model"] * (4 * inner + matrices * model["d_mlp"])
