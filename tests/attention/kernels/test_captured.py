"""A kernel call captured in a CUDA graph and replayed with other inputs gives what an ordinary call gives."""

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
        # Detached, so that the autograd graph does not outlive the call: a leaf's AccumulateGrad node remembers the
        # stream that it was created on, and torch warns where a later backward pass on another stream reuses it.
        return out.detach(), *torch.autograd.grad(out, leaves, grad)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up, capture and comparison share one stream, for the same reason
        call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            captured = call()
        with torch.no_grad():
            for leaf in leaves:
                leaf.copy_(leaf.flip(-2))
        graph.replay()
        expected = call()
    torch.cuda.synchronize()
    for result, wanted in zip(captured, expected, strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("mechanism", ["topk:8", "topk:100", "topk:8+4s+16w"])
def test_a_step_of_decoding_over_a_static_cache_is_captured_once_and_replayed_as_it_fills(mechanism: str) -> None:
    """Four heads of queries on two of keys; the mask says which keys are written."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, length, 64, device=DEVICE, dtype=torch.bfloat16, generator=generator)
        for heads, length in ((4, 1), (2, 2048), (2, 2048))
    )
    mask = torch.zeros(2, 1, 1, 2048, dtype=torch.bool, device=DEVICE)

    def call() -> Tensor:
        return attend(q, k, v, mechanism, mask=mask, enable_gqa=True, backend="triton")

    with torch.no_grad():
        mask[..., :1000] = True
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call()
        for written in (1001, 1500, 2048):
            mask[..., :written] = True
            q.copy_(torch.randn(q.shape, device=DEVICE, generator=generator))
            graph.replay()
            assert torch.equal(captured, call())
