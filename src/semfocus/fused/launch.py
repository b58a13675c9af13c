"""How the work of the fused kernels is cut: one table, never searched for at run time.

`LAUNCHES["kernel/fp16x3"]` is for products of this precision where it differs. The values are the fastest of some ten
that were timed on an H200 at the paper's shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from semfocus.attention.kernels.short.configs import options_of

ENOUGH = 264  # programs that fill a large GPU: two for each of 132 multiprocessors
MANY = 3  # pieces a member: with fewer, a GPU that is done with most programs would wait for long ones
SHORTEST = 32  # positions of a piece: one small tile
WORTHWHILE = 192  # positions for which loading a member's weights, and storing a sum of their gradients, pays


@dataclass(frozen=True)
class Launch:
    """Positions of a tile, and what works on it."""

    tile: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        return options_of(self.warps, self.stages, self.registers)

    def without_pipeline(self) -> Launch:
        """For GPUs with less shared memory than the one it was chosen on."""
        return replace(self, stages=1)


LAUNCHES = {
    "narrow_weights": Launch(0, 8, 1),
    "embed_forward": Launch(32, 4, 1),
    "embed_backward": Launch(64, 4, 2),
    "enter_forward": Launch(64, 4, 1),
    "enter_forward/fp16": Launch(64, 4, 1, 104),
    "enter_backward": Launch(16, 4, 3),
    "enter_backward/fp16x3": Launch(32, 4, 1),
    "leave_forward": Launch(64, 4, 3),
    "leave_forward/fp16x3": Launch(64, 4, 2),
    "leave_backward": Launch(32, 4, 3),
    "leave_backward/fp16x3": Launch(32, 4, 2),
}


def launch_for(kernel: str, precision: str) -> Launch:
    """The launch of a kernel for products of this precision."""
    return LAUNCHES.get(f"{kernel}/{precision}", LAUNCHES[kernel])


def pieces_of(members: int, count: int) -> int:
    """How many pieces to cut a member's positions into: where members are few, as many as run at once, or else many."""
    at_once = ENOUGH // members
    wanted = at_once if at_once >= MANY else count // WORTHWHILE
    return max(1, min(wanted, -(-count // SHORTEST)))
