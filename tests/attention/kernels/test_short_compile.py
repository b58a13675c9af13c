"""Every short kernel goes through Triton's compiler for an H200, without one: the interpreter is more lenient."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import contextlib
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from semfocus.attention.kernels import short_launch
from semfocus.attention.kernels.short_ops import empty_results
from semfocus.attention.mechanisms import parse_mechanism


class NoDriver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


class Compiled:
    def __init__(self, name, kernel):
        self.name, self.kernel, self.arg_names = name, kernel, kernel.arg_names

    def __getitem__(self, grid):
        def compile(*arguments, **options):
            done = self.kernel.warmup(*arguments, grid=grid, **options)
            assert done.metadata.shared <= 227 * 1024, (self.name, done.metadata.shared)
            seen.add(self.name)

        return compile


driver.set_active(NoDriver())
torch.cuda.device_of = lambda tensor: contextlib.nullcontext()
seen = set()
for name, kernel in list(short_launch.KERNELS.items()):
    short_launch.KERNELS[name] = Compiled(name, kernel)
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
    call = short_launch.Call(q, k, v, mask, None, seed, value, causal, 0.1, 0.1, False)
    call.forward(out, kept, lse, saved, careful=True)
    gradients = [torch.empty_like(tensor) for tensor in (q, k, v)]
    call.backward(torch.empty_like(out), lse, out, kept, saved, *gradients)
assert seen == set(short_launch.KERNELS), seen
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h200_within_its_shared_memory(tmp_path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
