"""Calls of the kernels inside a CUDA graph: replayed with other inputs they give what an ordinary call gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semfocus import attend
from tests.attention.kernels.short_cases import inputs
from tests.conftest import DEVICE


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize(("mechanism", "keys"), [("topk:3", 11), ("full", 66), ("topk:3", 66), ("topk:20", 70)])
def test_a_captured_call_is_replayed_with_other_inputs(mechanism: str, keys: int) -> None:
    *given, grad = inputs(keys, keys)
    leaves = [tensor.clone().requires_grad_() for tensor in given]

    def call() -> tuple[Tensor, ...]:
        out = attend(*leaves, mechanism, backend="triton")
        return out, *torch.autograd.grad(out, leaves, grad)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    with torch.no_grad():
        for leaf in leaves:
            leaf.copy_(leaf.flip(-2))
    graph.replay()
    torch.cuda.synchronize()
    for mine, wanted in zip(captured, call(), strict=True):
        assert torch.equal(mine, wanted)
