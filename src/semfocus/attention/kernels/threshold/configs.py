"""Launch configurations of the threshold kernels, and what they are compiled for. Nothing here needs Triton.

Chosen by counting registers and shared memory for compute capability 9.0, not measured: see docs/kernels.md.
One condition joins them: tensor cores must multiply q k' by the same instruction in all five kernels and in `decode`,
since another one may round a sum otherwise, and a key whose score is the threshold would be kept in one and dropped in
the next. On an H200 a tile of 64 queries or more takes one instruction, a smaller one the other: in 16 bits all tiles
have at least 64 queries, in float32, where three products leave no registers for that, all have 32.
"""

from __future__ import annotations

from dataclasses import dataclass

from semfocus.attention.kernels.short.configs import Launch

MAX_THRESHOLD_HEAD_DIM = 256
WHOLE_GROUP = 64  # queries of a tile from which compute capability 9.0 multiplies by another instruction

LAUNCHES: dict[str, dict[int, Launch]] = {
    "search": {64: Launch(128, 64, 8, 4), 128: Launch(128, 64, 8, 4), 256: Launch(128, 64, 8, 2)},
    "search/tf32x3": {64: Launch(32, 32, 4, 2), 128: Launch(32, 64, 8, 2)},
    "forward": {64: Launch(128, 64, 8, 3), 128: Launch(128, 64, 8, 3), 256: Launch(128, 32, 8, 2)},
    "forward/tf32x3": {128: Launch(32, 32, 4, 2)},
    "by_query": {64: Launch(128, 64, 8, 2), 128: Launch(128, 64, 8, 2), 256: Launch(64, 32, 8, 1)},
    "by_query/tf32x3": {64: Launch(32, 32, 4, 1), 128: Launch(32, 64, 8, 1)},
    "by_key": {64: Launch(128, 64, 8, 2), 128: Launch(128, 64, 8, 2), 256: Launch(64, 32, 4, 1)},
    "by_key/tf32x3": {128: Launch(32, 32, 4, 1)},
    "list": {64: Launch(128, 64, 8, 2), 128: Launch(128, 64, 8, 2), 256: Launch(128, 32, 8, 1)},
    "list/tf32x3": {128: Launch(32, 32, 4, 1)},
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
