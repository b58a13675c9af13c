"""Exact top-k and windowed attention beside what people use today: time and memory, forward + backward.

    python benchmarks/attention.py                  # CPU, two threads
    python benchmarks/attention.py --device cuda    # on a GPU, FlexAttention included

Every line times all contestants in the same process, one after another, and prints the median in milliseconds
and the ratio to the first. Peak memory is measured in a process of its own, beyond what the inputs need.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus import Banded, BlockLocal, Full, TopK, attend

Contestant = Callable[[Tensor, Tensor, Tensor], Tensor]


def dense_mask_topk(k: int) -> Contestant:
    """The usual way (x-transformers and others): all scores, a threshold at the k-th, the rest masked."""

    def run(q: Tensor, key: Tensor, v: Tensor) -> Tensor:
        scores = (q @ key.transpose(-1, -2)) * q.shape[-1] ** -0.5
        kth = scores.topk(k, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < kth, -torch.finfo(scores.dtype).max).softmax(dim=-1) @ v

    return run


class _Entmax15(torch.autograd.Function):
    """Exact 1.5-entmax by sorting (Peters, Niculae and Martins 2019): the sparse softmax that needs no k."""

    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        z = (scores - scores.amax(dim=-1, keepdim=True)) / 2
        ordered = z.sort(dim=-1, descending=True).values
        count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        mean = ordered.cumsum(dim=-1) / count
        spread = (ordered.square().cumsum(dim=-1) / count - mean.square()) * count
        tau = mean - ((1 - spread) / count).clamp(min=0).sqrt()
        support = (tau <= ordered).sum(dim=-1, keepdim=True)
        weights = (z - tau.gather(-1, support - 1)).clamp(min=0).square()
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        root = ctx.saved_tensors[0].sqrt()
        slope = grad * root
        return slope - slope.sum(dim=-1, keepdim=True) / root.sum(dim=-1, keepdim=True) * root


def entmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _Entmax15.apply((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5) @ v


def ours(mechanism, backend: str | None = None) -> Contestant:
    return lambda q, k, v: attend(q, k, v, mechanism, backend=backend)


def flex(mechanism, length: int) -> Contestant:
    """FlexAttention with the mechanism's window as a block mask (GPU only: it has no backward on CPU)."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def window(b, h, i, j):
        if isinstance(mechanism, BlockLocal):
            return i // mechanism.width == j // mechanism.width
        start = (i - (mechanism.width - 1) // 2).clamp(0, length - mechanism.width)
        return (j >= start) & (j < start + mechanism.width)

    mask = create_block_mask(window, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def tensors(shape: tuple[int, ...], device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device).requires_grad_(i < 3) for i in range(4)]


def step(run: Contestant, inputs: list[Tensor]) -> None:
    for leaf in inputs[:3]:
        leaf.grad = None
    run(*inputs[:3]).backward(inputs[3])


def milliseconds(run: Contestant, inputs: list[Tensor], repeats: int) -> float:
    times = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        step(run, inputs)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        if i:  # the first one warms up
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def race(title: str, contestants: dict[str, Contestant], shape: tuple[int, ...], device: str, repeats: int) -> None:
    inputs = tensors(shape, device)
    found = {name: milliseconds(run, inputs, repeats) for name, run in contestants.items()}
    base = next(iter(found.values()))
    print(f"\n{title}")
    for name, value in found.items():
        print(f"  {name:34} {value:10.3f} ms {value / base:8.2f}x")


def _resident() -> int:
    """Bytes of memory this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak(name: str, shape: tuple[int, ...], queue) -> None:
    torch.set_num_threads(2)
    run = {"chunked": ours(TopK(8), "chunked"), "dense mask": dense_mask_topk(8)}[name]
    step(run, tensors((1, 1, 300, 64), "cpu"))  # load the libraries before measuring
    inputs = tensors(shape, "cpu")
    before, peak, done = _resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step(run, inputs)
    done.set()
    watcher.join()
    queue.put((peak - before) / 2**20 - 3 * inputs[0].numel() * 4 / 2**20)


def peak_mib(name: str, shape: tuple[int, ...], device: str) -> float:
    """Extra memory at the peak, inputs and gradients not counted."""
    if device == "cuda":
        inputs = tensors(shape, device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step({"chunked": ours(TopK(8), "chunked"), "dense mask": dense_mask_topk(8)}[name], inputs)
        return (torch.cuda.max_memory_allocated() - before) / 2**20 - 3 * inputs[0].numel() * 4 / 2**20
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=_peak, args=(name, shape, queue))
    worker.start()
    peak = queue.get()
    worker.join()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    device = parser.parse_args().device
    torch.set_num_threads(parser.parse_args().threads)
    place = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {place}, float32, forward + backward, medians")
    gpu = device == "cuda"

    for batch in (25, 150, 1500):
        contestants = {
            "torch SDPA (full)": scaled_dot_product_attention,
            "semfocus full": ours(Full()),
            "semfocus topk:5": ours(TopK(5)),
            "dense-mask top-5": dense_mask_topk(5),
            "entmax 1.5": entmax,
        }
        race(f"the paper's shape: B {batch}, H 1, L 40, D 64", contestants, (batch, 1, 40, 64), device, 20)

    shape = (1, 4, 4096, 64)
    contestants = {
        "dense-mask top-8": dense_mask_topk(8),
        "semfocus topk:8 (chunked)": ours(TopK(8), "chunked"),
        "torch SDPA (full)": scaled_dot_product_attention,
    }
    race("top-8, L 4096, B 1, H 4, D 64", contestants, shape, device, 10 if gpu else 3)
    for mechanism in (Banded(9), BlockLocal(9)):
        contestants = {
            f"{mechanism} through dense attention": ours(mechanism, "dense"),
            f"semfocus {mechanism}": ours(mechanism),
        }
        if gpu:
            contestants["FlexAttention"] = flex(mechanism, 4096)
        race(f"{mechanism}, L 4096, B 1, H 4, D 64", contestants, shape, device, 10 if gpu else 3)

    print("\npeak memory beyond inputs and gradients, top-8, forward + backward, B 1, H 4, D 64")
    for name, length in (("chunked", 4096), ("dense mask", 4096), ("chunked", 16384)):
        print(f"  {name:34} L {length:6} {peak_mib(name, (1, 4, length, 64), device):10.0f} MiB")
    print(f"  {'dense mask':34} L  16384  one score matrix alone: {4 * 16384**2 * 4 / 2**30:.0f} GiB, several are held")


if __name__ == "__main__":
    main()
