"""Every fused kernel goes through Triton's compiler for an H200, at equal and at odd widths."""

from __future__ import annotations

from pathlib import Path

import pytest

from semfocus.fused.block import SHARED_MEMORY
from tests.compiling import run_compiled

SCRIPT = """
import semfocus.attention.kernels.short.dispatch as short
from semfocus.config import AttentionConfig, ModelConfig
from semfocus.fused import fused_parts
from semfocus.fused.launch import LAUNCHES
from semfocus.model.forward import forward
from semfocus.spec import Spec

short.refuses_device = lambda device: None

def step(shape, mechanism, length, tf32):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    sizes = ModelConfig.model_validate({"blocks": 1, **shape})
    spec = Spec(sizes, AttentionConfig(mechanism=mechanism), 4, 2, length)
    matrix = torch.zeros(2, spec.layout.size)
    leaves = {name: view.requires_grad_() for name, view in spec.layout.split(matrix).items()}
    rows = torch.zeros(2, 3, spec.length, dtype=torch.int64)
    lengths = torch.full((2, 3), spec.padded_len)
    lengths[:, 1] = 5
    seeds = torch.ones(spec.num_dropout_sites, 2, dtype=torch.int64)
    parts = fused_parts(spec, torch.device("cpu"))
    logits = forward(leaves, rows, lengths, spec, seeds, parts)
    torch.autograd.grad(logits.sum(), list(leaves.values()))


step({}, "topk:5", 40, True)
step({}, "topk:5", 40, False)
step({"d_model": 24, "d_mlp": 40}, "full", 80, True)
step({"d_model": 16, "d_mlp": 64, "heads": 2}, "topk:3", 80, False)
seen.clear()
for name, chosen in LAUNCHES.items():  # as a GPU with less shared memory takes them
    LAUNCHES[name] = chosen.without_pipeline()
step({}, "full", 80, True)
step({}, "full", 80, False)
fused = {name: size for name, size in seen.items() if name.startswith(("embed", "split_fp16", "ln_qkv", "proj_mlp"))}
assert len(fused) == 7, seen
print(max(fused.values()))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h200_and_takes_the_memory_it_says(tmp_path: Path) -> None:
    assert int(run_compiled(SCRIPT, tmp_path)) == SHARED_MEMORY
