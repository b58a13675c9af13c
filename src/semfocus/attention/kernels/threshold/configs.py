"""Launch configurations of the threshold kernels, and what they are compiled for. Nothing here needs Triton.

Chosen by counting registers and shared memory for compute capability 9.0, not measured: see docs/kernels.md. For one
width and precision all kernels take tiles of WHOLE_GROUP queries or more, or all take fewer: from there on compute
capability 9.0 multiplies by other instructions, which need not add up alike, and a score must have the same bits
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from semfocus.attention.kernels.short.configs import Launch

MAX_THRESHOLD_HEAD_DIM = 256
WHOLE_GROUP = 64

LAUNCHES: dict[str, dict[int, Launch]] = {
    "search": {64: Launch(128, 64, 8, 4), 128: Launch(128, 64, 8, 4), 256: Launch(128, 64, 8, 2)},
    "search/tf32x3": {128: Launch(64, 32, 4, 2), 256: Launch(32, 32, 4, 1)},
    "forward": {64: Launch(128, 64, 8, 3), 128: Launch(128, 64, 8, 3), 256: Launch(128, 32, 8, 2)},
    "forward/tf32x3": {128: Launch(64, 32, 4, 2), 256: Launch(32, 32, 4, 1)},
    "by_query": {64: Launch(128, 64, 8, 2), 128: Launch(128, 64, 8, 2), 256: Launch(64, 32, 8, 1)},
    "by_query/tf32x3": {128: Launch(64, 32, 8, 1), 256: Launch(16, 32, 8, 1)},
    "by_key": {64: Launch(128, 64, 8, 2), 128: Launch(128, 64, 8, 2), 256: Launch(64, 64, 8, 1)},
    "by_key/tf32x3": {128: Launch(64, 32, 8, 1), 256: Launch(16, 32, 8, 1)},
}


@dataclass(frozen=True)
class Look:
    """What a kernel is compiled for: head dimensions with their padded tiles, restrictions, and how it multiplies."""

    d: int
    block_d: int
    dv: int
    block_dv: int
    causal: bool
    mask: bool
    lengths: bool
    always_kept: bool  # sinks or a window
    dropout: bool
    precision: str


def launch_for(kernel: str, head_dim: int, precision: str) -> Launch:
    """The launch of a kernel for heads of this width; `tf32x3` is for float32."""
    table = LAUNCHES[f"{kernel}/{precision}" if precision == "tf32x3" else kernel]
    return table[min(bound for bound in table if bound >= head_dim)]
