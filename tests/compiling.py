"""Kernels through Triton's compiler for an H200, without one: the interpreter is more lenient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PRELUDE = """
import contextlib
import re
import subprocess
import tempfile
from pathlib import Path
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class NoDriver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


def compile_only(self, *arguments, grid, warmup, **options):
    done = launch(self, *arguments, grid=grid, warmup=True, **options)
    seen[self.fn.__name__] = max(seen.get(self.fn.__name__, 0), done.metadata.shared)
    compiled.append((self.fn.__name__, done))


def resources(done):
    # Registers of a thread, bytes that it spills to its stack, and the tensor core instructions of a compiled kernel.
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(name + ":([0-9]+)", told)[1]) for name in ("REG", "STACK"))
    instructions = {name for name in ("wgmma", "mma.sync") if name in done.asm["ptx"]}
    return registers, stack, instructions


seen = {}  # kernels, and the most shared memory of any
compiled = []  # names and compiled kernels, in order
launch, JITFunction.run = JITFunction.run, compile_only
driver.set_active(NoDriver())
torch.cuda.device_of = lambda tensor: contextlib.nullcontext()
"""


def run_compiled(script: str, cache: Path) -> str:
    """What a script prints in which every launch of a kernel compiles it, and nothing runs."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-c", PRELUDE + script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
