"""How the work of the short kernels is cut: one table, never searched for at run time.

`LAUNCHES[kernel]` maps a head width to the launch for heads up to that wide, `LAUNCHES["kernel/tf32x3"]` that for
products of this precision where it differs (those in 16 bits are of cohorts, whose heads are at most 64 wide). For
heads up to 64 wide they are the fastest of some seventeen that were timed on an H200 at rows of 40 and 608; for wider
ones they follow these, as far as registers and shared memory of compute capability 9.0 go. Any choice gives the same
answer to rounding: put other values there and time them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

WHOLE = 64  # rows up to this long are one program's work, whole
LONGEST = 1024  # rows beyond this are for other kernels
WIDEST = 128  # heads
SMALLEST = 16  # tile that tensor cores take
MOST_LISTED = 16  # keys that the lists of long rows hold: a program keeps them in registers


def options_of(warps: int, stages: int, registers: int | None) -> dict[str, int]:
    """What Triton is told about a program: warps, pipeline stages, and the most registers a thread may take."""
    limit = {} if registers is None else {"maxnreg": registers}
    return {"num_warps": warps, "num_stages": stages, **limit}


@dataclass(frozen=True)
class Launch:
    """Queries and keys of a tile, and what works on it."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        return options_of(self.warps, self.stages, self.registers)


LAUNCHES: dict[str, dict[int, Launch]] = {
    "whole_forward": {64: Launch(WHOLE, WHOLE, 4, 1), 128: Launch(WHOLE, WHOLE, 4, 1)},
    "whole_forward/fp16": {64: Launch(WHOLE, WHOLE, 4, 1, 128)},
    "whole_forward/fp16x3": {64: Launch(WHOLE, WHOLE, 4, 1, 128)},
    "whole_backward": {64: Launch(WHOLE, WHOLE, 4, 1), 128: Launch(WHOLE, WHOLE, 8, 1)},
    "whole_backward/fp16": {64: Launch(WHOLE, WHOLE, 4, 1, 128)},
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
    "listed_choice": {64: Launch(64, 64, 4, 2), 128: Launch(64, 64, 4, 2)},
    "listed_choice/fp16": {64: Launch(64, 32, 4, 3, 128)},
    "listed_choice/fp16x3": {64: Launch(64, 32, 4, 3, 128)},
    "listed_mix": {64: Launch(8, 0, 1, 1), 128: Launch(8, 0, 1, 1)},
    "listed_by_query": {64: Launch(8, 0, 2, 1), 128: Launch(16, 0, 4, 1)},
    "listed_by_query/fp16": {64: Launch(8, 0, 2, 1, 64)},
    "listed_by_key": {64: Launch(32, 32, 4, 2), 128: Launch(32, 32, 4, 2)},
    "listed_by_key/tf32x3": {64: Launch(64, 32, 4, 2), 128: Launch(32, 32, 4, 2)},
    "listed_by_key/fp16": {64: Launch(64, 32, 4, 2, 128)},
    "listed_by_key/fp16x3": {64: Launch(32, 32, 4, 2)},
}


def launch_for(kernel: str, width: int, precision: str) -> Launch:
    """The launch of a kernel for heads this wide and products of this precision."""
    table = LAUNCHES.get(f"{kernel}/{precision}", LAUNCHES[kernel])
    return table[min(bound for bound in table if bound >= width)]


def shrinking(launch: Launch, fewest_keys: int = SMALLEST) -> Iterator[Launch]:
    """The launch, and then ever smaller ones, for GPUs with less shared memory than the one it was chosen on."""
    yield launch
    launch = replace(launch, stages=1, warps=min(launch.warps, 4), registers=None)
    yield launch
    while launch.queries > SMALLEST or launch.keys > fewest_keys:
        fewer_keys = launch.keys > fewest_keys and (launch.keys > launch.queries or launch.queries <= SMALLEST)
        half = {"keys": launch.keys // 2} if fewer_keys else {"queries": launch.queries // 2}
        launch = replace(launch, **half)
        yield launch
