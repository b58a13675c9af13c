"""Launch configurations of the short kernels: one table, never searched at run time.

`LAUNCHES[kernel]` maps a head dimension to the launch for heads up to that wide; `LAUNCHES["kernel/tf32x3"]` is for
products of this precision where it differs (fp16 precisions serve cohorts, whose heads are at most 64 wide). Up to 64
the launches are the fastest of some seventeen timed on an H200 at 40 and 608 positions; beyond, they follow these as
far as registers and shared memory of compute capability 9.0 allow. Results agree to rounding whatever the launch: to
tune for another GPU, change the values and time them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

MAX_WHOLE_LENGTH = 64  # positions of a problem that one program computes whole
MAX_SHORT_LENGTH = 1024  # positions; longer sequences are for `kernels.long`
MAX_HEAD_DIM = 128
MIN_TILE = 16  # the smallest side of a tile that tensor cores take
MAX_LISTED_KEYS = 16  # keys that a query of a listed kernel selects: a program keeps them in registers


@dataclass(frozen=True)
class Launch:
    """Tile sizes (queries or positions, and keys; 0 where a kernel has no such tile) and Triton's launch options."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Triton's options: warps, pipeline stages, and the most registers a thread may use."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}

    def without_pipeline(self) -> Launch:
        """For GPUs with less shared memory than the one this launch was chosen on."""
        return replace(self, stages=1)


WHOLE = Launch(MAX_WHOLE_LENGTH, MAX_WHOLE_LENGTH, 4, 1)

LAUNCHES: dict[str, dict[int, Launch]] = {
    "whole_forward": {64: WHOLE, 128: WHOLE},
    "whole_forward/fp16": {64: replace(WHOLE, registers=128)},
    "whole_forward/fp16x3": {64: replace(WHOLE, registers=128)},
    "whole_backward": {64: WHOLE, 128: replace(WHOLE, warps=8)},
    "whole_backward/fp16": {64: replace(WHOLE, registers=128)},
    "tiled_forward": {64: Launch(64, 32, 2, 2), 128: Launch(64, 32, 4, 2)},
    "tiled_forward/tf32x3": {64: Launch(128, 32, 4, 2), 128: Launch(64, 32, 4, 2)},
    "tiled_forward/fp16": {64: Launch(64, 64, 4, 2)},
    "tiled_forward/fp16x3": {64: Launch(64, 64, 4, 2, 168)},
    "tiled_by_query": {64: Launch(64, 32, 4, 2), 128: Launch(64, 32, 4, 2)},
    "tiled_by_query/tf32x3": {64: Launch(128, 64, 8, 2), 128: Launch(64, 32, 8, 1)},
    "tiled_by_query/fp16": {64: Launch(64, 32, 4, 3, 128)},
    "tiled_by_query/fp16x3": {64: Launch(64, 64, 4, 1)},
    "tiled_by_key": {64: Launch(32, 128, 4, 1), 128: Launch(32, 64, 4, 1)},
    "tiled_by_key/tf32x3": {64: Launch(32, 128, 8, 2), 128: Launch(32, 64, 8, 1)},
    "tiled_by_key/fp16": {64: Launch(32, 128, 4, 3)},
    "tiled_by_key/fp16x3": {64: Launch(64, 64, 4, 1)},
    "listed_select": {64: Launch(64, 64, 4, 2), 128: Launch(64, 64, 4, 2)},
    "listed_select/fp16": {64: Launch(64, 32, 4, 3, 128)},
    "listed_select/fp16x3": {64: Launch(64, 32, 4, 3, 128)},
    "listed_forward": {64: Launch(8, 0, 1, 1), 128: Launch(8, 0, 1, 1)},
    "listed_by_query": {64: Launch(8, 0, 2, 1), 128: Launch(16, 0, 4, 1)},
    "listed_by_query/fp16": {64: Launch(8, 0, 2, 1, 64)},
    "listed_by_key": {64: Launch(32, 32, 4, 2), 128: Launch(32, 32, 4, 2)},
    "listed_by_key/tf32x3": {64: Launch(64, 32, 4, 2), 128: Launch(32, 32, 4, 2)},
    "listed_by_key/fp16": {64: Launch(64, 32, 4, 2, 128)},
    "listed_by_key/fp16x3": {64: Launch(32, 32, 4, 2)},
}


def launch_for(kernel: str, head_dim: int, precision: str) -> Launch:
    """The launch of a kernel for this head dimension and precision of products."""
    table = LAUNCHES.get(f"{kernel}/{precision}", LAUNCHES[kernel])
    return table[min(bound for bound in table if bound >= head_dim)]


def shrinking(launch: Launch, min_block_n: int = MIN_TILE) -> Iterator[Launch]:
    """The launch, then ever smaller ones, for GPUs with less shared memory than the one it was chosen on."""
    yield launch
    launch = replace(launch, stages=1, warps=min(launch.warps, 4), registers=None)
    yield launch
    while launch.block_m > MIN_TILE or launch.block_n > min_block_n:
        fewer_keys = launch.block_n > min_block_n and (launch.block_n > launch.block_m or launch.block_m <= MIN_TILE)
        half = {"block_n": launch.block_n // 2} if fewer_keys else {"block_m": launch.block_m // 2}
        launch = replace(launch, **half)
        yield launch
