"""Every short kernel goes through Triton's compiler for an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiling import run_compiled

SCRIPT = """
from semfocus.attention.kernels.short import launch as short
from semfocus.attention.kernels.short.dispatch import empty_results
from semfocus.attention.mechanisms import parse_mechanism

for mechanism, length, width, dtype, causal in (
    ("topk:5", 40, 64, torch.float32, False),
    ("banded:9+1g", 600, 64, torch.float32, False),
    ("full", 600, 128, torch.bfloat16, True),
    ("topk:5", 600, 128, torch.float32, False),
    ("topk:10", 600, 64, torch.float16, True),
):
    joint = torch.zeros(3, 2, length, 3, 2, width, dtype=dtype)
    q, k, v = (joint[:, :, :, part].transpose(2, 3) for part in range(3))
    mask = torch.ones(3, 2, 1, 1, length, dtype=torch.bool)
    seed = torch.zeros(3, 1, 1, 1, 1, dtype=torch.int64)
    value = parse_mechanism(mechanism)
    out, kept, lse, saved = empty_results(q, k, v, value)
    call = short.Call(q, k, v, mask, None, seed, value, causal, 0.1, 0.1, False)
    call.forward(out, kept, lse, saved, check_finite=True)
    gradients = [torch.empty_like(tensor) for tensor in (q, k, v)]
    call.backward(torch.empty_like(out), lse, out, kept, saved, *gradients)
assert set(seen) == set(short.KERNELS), seen
print(max(seen.values()))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h200_within_its_shared_memory(tmp_path: Path) -> None:
    assert int(run_compiled(SCRIPT, tmp_path)) <= 227 * 1024
