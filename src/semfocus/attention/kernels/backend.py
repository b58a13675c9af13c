"""The kernels as one backend of `attend`: short rows by `short`, top-k over long rows by `long`."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.info import AttentionInfo
from semfocus.attention.inputs import Problem
from semfocus.attention.kernels.short.dispatch import refuses_call, short, short_refuses
from semfocus.attention.mechanisms import TopK

WORTHWHILE = 1024  # keys for which `long` does in half the time, at twice the k, what `short` does
MOST_KEYS, WIDEST, LONGEST = 64, 128, 131_072  # of `long`: by score a query, of a head, of a row


def triton(problem: Problem, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """A problem that `triton_refuses` does not refuse."""
    if short_refuses(problem, want_info) is None and not (
        _suits_long(problem) and long_refuses(problem, want_info) is None
    ):
        return short(problem, want_info)
    from semfocus.attention.kernels.long.dispatch import long

    return long(problem, want_info)


def _suits_long(problem: Problem) -> bool:
    """Whether the kernels for long rows do shorter ones faster too (docs/kernels.md): half-precision top-k."""
    return problem.q.dtype != torch.float32 and problem.num_keys >= WORTHWHILE


def triton_refuses(problem: Problem, want_info: bool = False) -> str | None:
    """Why no kernel can serve a problem; None if one can."""
    reason, wider = short_refuses(problem, want_info), long_refuses(problem, want_info)
    if reason is None or wider is None:
        return None
    return wider if type(problem.mechanism) is TopK else reason  # of top-k those for long rows serve more


def long_refuses(problem: Problem, want_info: bool = False) -> str | None:
    """Why the kernels for long rows cannot serve a problem; None if they can."""
    mechanism, rows = problem.mechanism, max(problem.num_keys, problem.num_queries)
    if type(mechanism) is not TopK:
        return f"in rows of {rows} it computes top-k attention only, not {mechanism}"
    if max(min(mechanism.k, problem.num_keys), mechanism.sinks + mechanism.window) > MOST_KEYS:
        return f"it keeps at most {MOST_KEYS} keys by score and {MOST_KEYS} sinks and window keys, not {mechanism}"
    width = max(problem.q.shape[-1], problem.v.shape[-1])
    if width > WIDEST:
        return f"heads are at most {WIDEST} wide, not {width}"
    if rows > LONGEST or problem.lead.numel() * rows >= 2**31:
        return f"rows are at most {LONGEST} long, and fewer than 2^31 in all"
    if not problem.scale > 0:
        return f"scale = {problem.scale!r} is not positive, so that the order of products is not that of scores"
    return refuses_call(problem)
