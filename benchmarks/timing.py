"""Times of attention, ours and of others, as benchmarks take them: medians, the L2 cache flushed in between.

A call is timed twice: as a replayed CUDA graph, which is what a captured training step pays, and as called from Python.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

COPY_RATE = 4.3e12  # bytes a second that a device-to-device copy reads and writes on an H200
TENSOR_RATE = 790e12  # bf16 FLOP a second that one large product reaches on an H200


@dataclass(frozen=True)
class Shape:
    """One problem of attention."""

    batch: int
    heads: int
    length: int
    width: int
    kept: int
    causal: bool = False

    def __str__(self) -> str:
        causal = "causal" if self.causal else ""
        return f"{self.batch:3} {self.heads:3} {self.length:6} {self.width:4} {self.kept:5} {causal:>6}"


HEADER = f"{'B':>3} {'H':>3} {'L':>6} {'D':>4} {'k':>5} {'':6}"


def inputs(shape: Shape, device: str | None = None, key_heads: int | None = None):
    """q, k, v with gradients and a gradient of the output; bfloat16 (float32 on a CPU), random."""
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def draw(heads: int):
        size = (shape.batch, heads, shape.length, shape.width)
        return torch.randn(size, device=device, dtype=dtype, generator=generator)

    heads = key_heads or shape.heads
    return draw(shape.heads).requires_grad_(), *(draw(heads).requires_grad_() for _ in range(2)), draw(shape.heads)


def ours(q, k, v, shape: Shape, backend: str | None = "triton"):
    from semfocus import TopK, attend

    return attend(q, k, v, TopK(shape.kept), causal=shape.causal, backend=backend, enable_gqa=q.shape[1] != k.shape[1])


def full(q, k, v, shape: Shape, kernel: str):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(getattr(SDPBackend, kernel)):
        return scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=q.shape[1] != k.shape[1])


def flex(q, k, v, shape: Shape):
    """Full attention as FlexAttention compiles it. (Of the k best keys it cannot know: its masks go by position.)"""
    blocks = _causal_blocks(shape.length, q.device.type) if shape.causal else None
    return _compiled_flex(q.device.type)(q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])


@cache
def _compiled_flex(device: str):
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 64  # a shape each; beyond the limit torch would stop compiling
    return torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention


@cache
def _causal_blocks(length: int, device: str):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device=device)


def dense_mask(q, k, v, shape: Shape):
    """Top-k as it is usually written: all scores, a threshold, a masked softmax."""
    import torch

    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if shape.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    kth = scores.topk(min(shape.kept, shape.length), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < kth, float("-inf")).softmax(dim=-1) @ v


def milliseconds(call: Callable[[], object], graph: bool = True) -> float:
    """The median of 5 to 20 calls, with cold caches."""
    import torch

    if not torch.cuda.is_available():
        return _on_cpu(call)
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    repeats = min(20, max(5, int(0.2 / (time.perf_counter() - started))))
    replay = call
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            call()
        replay = captured.replay
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(repeats):
        flush.zero_()
        torch.cuda.synchronize()  # so that the host is not ahead: its own time shows in a call from Python
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def _on_cpu(call: Callable[[], object]) -> float:
    """The median of 3 calls; a call that takes half a second is not repeated."""
    times: list[float] = []
    while len(times) < 4 and (not times or times[0] < 500):  # the first one warms up
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[1:] or times)


def both(attention: Callable[..., object], tensors, *, graph: bool = True) -> tuple[float, float]:
    """Forward, and forward and backward."""
    import torch

    q, k, v, grad = tensors

    def step() -> object:
        return torch.autograd.grad(attention(q, k, v), (q, k, v), grad)

    with torch.no_grad():
        forward = milliseconds(lambda: attention(q, k, v), graph=graph)
    return forward, milliseconds(step, graph=graph)


def peak_mib(step: Callable[[], object]) -> float | None:
    """The most memory that a step takes beyond what is there before it; None on a CPU."""
    import torch

    if not torch.cuda.is_available():
        step()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


Cell = tuple[float, float] | str


def cell(attention: Callable[..., object], tensors, *, graph: bool = True) -> Cell:
    """The two times, or why there are none."""
    import torch

    try:
        return both(attention, tensors, graph=graph)
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # a peer may raise anything; the table shows what
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:60]
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def refusal(error: Exception, warned: list[str]) -> str:
    """Why a call could not be served, in one line. torch's own error says that no kernel could; its warnings say why,
    of each kernel, those that were switched off too."""
    reasons = [text for text in warned if " because:" not in text and "disabled" not in text]
    return (reasons or [str(error)])[0].splitlines()[0].split(". ")[0][:110]


def columns(as_graph: Cell, from_python: Cell) -> str:
    """Both columns of a line: forward, forward and backward, as a graph and as called from Python."""
    shown = []
    for found in (as_graph, from_python):
        shown.append(f"{found:>19}" if isinstance(found, str) else f"{found[0]:8.3f} {found[1]:10.3f}")
    return " | ".join(shown)


def largest_difference(found, wanted) -> float:
    """Of results from float64 ones, relative to the largest entry."""
    return max(
        ((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30)).item()
        for a, b in zip(found, wanted, strict=True)
    )
