"""Launch configurations of the fused kernels: one table, never searched at run time.

`LAUNCHES["kernel/fp16x3"]` is for products of this precision where it differs. The values are the fastest of some ten
timed on an H200 at the paper's shapes.
"""

from __future__ import annotations

from semfocus.attention.kernels.short.configs import Launch

FULL_GPU_PROGRAMS = 264  # programs that fill a large GPU: two for each of 132 multiprocessors
MIN_SPLITS = 3  # per member: with fewer, most of the GPU would wait for the longest programs
MIN_SPLIT_POSITIONS = 32  # one small tile
SPLIT_POSITIONS = 192  # enough to pay for loading a member's weights and storing their partial gradients

LAUNCHES = {
    "split_fp16_weights": Launch(0, 0, 8, 1),
    "embed_forward": Launch(32, 0, 4, 1),
    "embed_backward": Launch(64, 0, 4, 2),
    "ln_qkv_forward": Launch(64, 0, 4, 1),
    "ln_qkv_forward/fp16": Launch(64, 0, 4, 1, 104),
    "ln_qkv_backward": Launch(16, 0, 4, 3),
    "ln_qkv_backward/fp16x3": Launch(32, 0, 4, 1),
    "proj_mlp_forward": Launch(64, 0, 4, 3),
    "proj_mlp_forward/fp16x3": Launch(64, 0, 4, 2),
    "proj_mlp_backward": Launch(32, 0, 4, 3),
    "proj_mlp_backward/fp16x3": Launch(32, 0, 4, 2),
}


def launch_for(kernel: str, precision: str) -> Launch:
    """The launch of a kernel for this precision of products."""
    return LAUNCHES.get(f"{kernel}/{precision}", LAUNCHES[kernel])


def num_splits(members: int, count: int) -> int:
    """Into how many splits to cut each member's `count` positions: as many as run at once, for many members by size."""
    at_once = FULL_GPU_PROGRAMS // members
    wanted = at_once if at_once >= MIN_SPLITS else count // SPLIT_POSITIONS
    return max(1, min(wanted, -(-count // MIN_SPLIT_POSITIONS)))
