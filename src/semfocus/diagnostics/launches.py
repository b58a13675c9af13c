"""How much to look at in one go on a device.

On a CPU a pass over a chunk is quick while the chunk stays near the caches. On a GPU an operation of this size takes
less time than the host needs to launch it, so that what counts is how few there are.
"""

from __future__ import annotations

import torch

LAUNCH_BOUND = frozenset({"cuda"})  # kinds of device
SCORES_IN_CACHES = 2**20  # 4 MiB, which stays there through some twenty passes
SCORES_A_LAUNCH = 2**24  # 64 MiB, and some ten times as much while they are looked at


def launch_bound(device: torch.device) -> bool:
    """Whether operations cost their launch rather than their work."""
    return device.type in LAUNCH_BOUND


def scores_at_once(device: torch.device) -> int:
    """Scores that are held and looked at together."""
    return SCORES_A_LAUNCH if launch_bound(device) else SCORES_IN_CACHES
