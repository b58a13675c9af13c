"""When is exact top-k attention faster than full attention? Our kernels beside the best full ones, one NVIDIA GPU.

    python benchmarks/kernels.py --out results/kernels          # tables, and the map L x k as JSON
    python benchmarks/kernels.py --out results/kernels --lengths 1024      # ... of which only this column is new
    python benchmarks/kernels.py --draw results/kernels/map.json docs/images/kernels-map

bf16, 8 heads. Times are medians, the L2 cache flushed in between. Ours are of replayed CUDA graphs, `eager` of the same
call made from Python, as all peers are (their launches take far less than they run). Answers are compared with
float64 at up to 2048 keys before timing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

HEADS = 8
TENSOR_RATE = 790e12  # bf16 FLOP a second that one large product reaches on an H200
HEADLINES = [  # B, L, D, k, causal
    (1, 16384, 128, 8, False),
    (1, 16384, 128, 32, False),
    (1, 16384, 128, 8, True),
    (4, 4096, 128, 8, False),
    (1, 65536, 128, 8, False),
    (1, 16384, 64, 8, False),
]
MAP_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
MAP_KS = (4, 8, 16, 32, 64)


def inputs(batch: int, length: int, width: int):
    import torch

    generator = torch.Generator("cuda").manual_seed(0)

    def draw():
        return torch.randn(batch, HEADS, length, width, device="cuda", dtype=torch.bfloat16, generator=generator)

    return *(draw().requires_grad_() for _ in range(3)), draw()


def ours(q, k, v, most: int, causal: bool, backend: str = "triton"):
    from semfocus import TopK, attend

    return attend(q, k, v, TopK(most), causal=causal, backend=backend)


def full(q, k, v, kernel: str, causal: bool):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(getattr(SDPBackend, kernel)):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def flex(q, k, v, causal: bool):
    """Full attention as FlexAttention compiles it. (Of the k best keys it cannot know: its masks go by position.)"""
    return _compiled_flex()(q, k, v, block_mask=_causal_blocks(q.shape[-2]) if causal else None)


@cache
def _compiled_flex():
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 64  # a shape each; beyond the limit torch would stop compiling
    return torch.compile(flex_attention, dynamic=False)


@cache
def _causal_blocks(length: int):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda")


def dense_mask(q, k, v, most: int, causal: bool):
    """Top-k as it is usually written: all scores, a threshold, a masked softmax."""
    import torch

    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    kth = scores.topk(most, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < kth, float("-inf")).softmax(dim=-1) @ v


def milliseconds(call: Callable[[], object], graph: bool = True) -> float:
    """The median of 5 to 20 calls, with cold caches."""
    import torch

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
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def both(attention: Callable[..., object], tensors, *, graph: bool = True) -> tuple[float, float]:
    """Forward, and forward and backward."""
    import torch

    q, k, v, grad = tensors

    def step() -> object:
        return torch.autograd.grad(attention(q, k, v), (q, k, v), grad)

    with torch.no_grad():
        forward = milliseconds(lambda: attention(q, k, v), graph=graph)
    return forward, milliseconds(step, graph=graph)


def cell(attention: Callable[..., object], tensors, *, graph: bool = True) -> tuple[float, float] | str:
    """The two times, or why there are none."""
    import torch

    try:
        return both(attention, tensors, graph=graph)
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    except RuntimeError as error:
        return str(error).splitlines()[0][:40]
    finally:
        torch.cuda.empty_cache()


def shown(found: tuple[float, float] | str) -> str:
    return f"{found:>17}" if isinstance(found, str) else f"{found[0]:7.3f} {found[1]:9.3f}"


def largest_difference(batch: int, length: int, width: int, most: int, causal: bool) -> float:
    """Of output and gradients from the float64 answer over the same kept keys, relative to its largest entry."""
    import torch

    *tensors, grad = inputs(batch, min(length, 2048), width)
    out = ours(*tensors, most, causal)
    found = (out, *torch.autograd.grad(out, tensors, grad))
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = ours(*wide, most, causal, backend="chunked")
    wanted = (exact, *torch.autograd.grad(exact, wide, grad.double()))
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(found, wanted, strict=True))


def headlines() -> list[str]:
    import torch

    lines = [f"{'B':>2} {'L':>6} {'D':>4} {'k':>3} {'causal':>6} | {'':24} | forward   fwd+bwd  (ms)"]
    for batch, length, width, most, causal in HEADLINES:
        tensors = inputs(batch, length, width)
        head = f"{batch:2} {length:6} {width:4} {most:3} {causal!s:>6}"
        error = largest_difference(batch, length, width, most, causal)
        flop = batch * HEADS * length**2 * width * 2 * (0.5 if causal else 1)
        rows: dict[str, tuple[float, float] | str] = {}
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(ours(*tensors[:3], most, causal), tensors[:3], tensors[3])
        extra = (torch.cuda.max_memory_allocated() - before) / 2**20
        rows["ours"] = cell(partial(ours, most=most, causal=causal), tensors)
        rows["ours, eager"] = cell(partial(ours, most=most, causal=causal), tensors, graph=False)
        for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            rows[f"full, {kernel.split('_')[0].lower()}"] = cell(
                partial(full, kernel=kernel, causal=causal), tensors, graph=False
            )
        rows["full, flex"] = cell(partial(flex, causal=causal), tensors, graph=False)
        if length * batch * HEADS <= 2**17 and length <= 16384:
            rows["dense mask"] = cell(partial(dense_mask, most=most, causal=causal), tensors, graph=False)
            rows["chunked"] = cell(partial(ours, most=most, causal=causal, backend="chunked"), tensors, graph=False)
        for name, found in rows.items():
            lines.append(f"{head} | {name:24} | {shown(found)}")
        best = min(found[1] for name, found in rows.items() if name.startswith("full") and not isinstance(found, str))
        mine = rows["ours"]
        ratio = f"{mine[1] / best:.2f} of the best full attention" if not isinstance(mine, str) else mine
        lines.append(
            f"{head} | {ratio}; floor of the scores {flop / TENSOR_RATE * 1e3:.2f} ms; {extra:.0f} MiB extra;"
            f" largest difference from float64 {error:.1e}"
        )
        print("\n".join(lines[-len(rows) - 1 :]), flush=True)
    return lines


def map_of_ratios(lengths: list[int]) -> dict:
    """Forward and backward over the best full attention's, for 16384 tokens (or one longer row) and D = 128."""
    import torch

    cells = []
    for length in lengths:
        tensors = inputs(max(1, 16384 // length), length, 128)
        peers = [
            cell(partial(full, kernel=kernel, causal=False), tensors, graph=False)
            for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION")
        ]
        best = min(peer[1] for peer in peers if not isinstance(peer, str))
        for most in MAP_KS:
            found = cell(partial(ours, most=most, causal=False), tensors)
            time = None if isinstance(found, str) else found[1]
            cells.append({"length": length, "k": most, "ours_ms": time, "full_ms": best})
            print(f"L {length:6} k {most:3}: {'-' if time is None else f'{time / best:.2f}'}", flush=True)
    device = torch.cuda.get_device_name()
    return {"device": device, "heads": HEADS, "width": 128, "dtype": "bfloat16", "causal": False, "cells": cells}


def compile_all(lengths: list[int]) -> None:
    """Every kernel to be timed, by several processes at once, so that the timed run finds them in Triton's cache."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import kernels; kernels.touch(sys.argv[2:])"
    shapes = HEADLINES + [(1, length, 128, most, False) for most in MAP_KS for length in lengths]
    here, texts = str(Path(__file__).parent), [",".join(str(int(value)) for value in shape) for shape in shapes]
    workers = [subprocess.Popen([sys.executable, "-c", code, here, *texts[i::12]]) for i in range(12)]
    for worker in workers:
        worker.wait()


def touch(texts: list[str]) -> None:
    import torch

    for text in texts:
        batch, length, width, most, causal = (int(part) for part in text.split(","))
        q, k, v, grad = inputs(batch, length, width)
        torch.autograd.grad(ours(q, k, v, most, bool(causal)), (q, k, v), grad)
        if (batch, length, width, most, bool(causal)) in HEADLINES:
            torch.autograd.grad(flex(q, k, v, bool(causal)), (q, k, v), grad)


def draw(source: Path, target: Path) -> None:
    """The map as a picture: blue where top-k is faster, orange where it is slower."""
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.colors import TwoSlopeNorm

    from semfocus.report.figures.drawing import save

    about = json.loads(source.read_text())
    cells = about["cells"]
    ratio = {(cell["length"], cell["k"]): cell["ours_ms"] / cell["full_ms"] for cell in cells if cell["ours_ms"]}
    lengths, ks = sorted({length for length, _ in ratio}), sorted({k for _, k in ratio})
    grid = np.array([[ratio.get((length, k), np.nan) for length in lengths] for k in ks])
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    axes.imshow(np.log2(grid), cmap="RdBu_r", norm=TwoSlopeNorm(0, -3, 3), aspect="auto", origin="lower")
    for row, column in np.ndindex(grid.shape):
        value = grid[row, column]
        axes.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            color="white" if abs(np.log2(value)) > 1.6 else "black",
        )
    axes.set(xticks=range(len(lengths)), xticklabels=lengths, yticks=range(len(ks)), yticklabels=ks)
    axes.set(xlabel="keys L", ylabel="keys kept k")
    axes.set_title("Time of top-k over the best full attention (below 1: faster)", loc="left", fontsize=10)
    causal = "causal" if about["causal"] else "not causal"
    figure.suptitle(
        f"{about['device']}, {about['dtype']}, {about['heads']} heads of width {about['width']}, 16384 tokens or one "
        f"longer row, {causal};\nforward and backward, against the faster of FlashAttention and cuDNN",
        fontsize=8, x=0.01, ha="left",
    )  # fmt: skip
    save(figure, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the table and the map")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("MAP", "PICTURE"), help="draw a map and stop")
    parser.add_argument("--lengths", type=int, nargs="*", default=list(MAP_LENGTHS), help="columns of the map to time")
    options = parser.parse_args()
    if options.draw:
        draw(*options.draw)
        return
    import torch
    import triton

    title = f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}, bf16, H = {HEADS}"
    print(title, flush=True)
    compile_all(options.lengths)
    table = [title, *headlines()]
    found = map_of_ratios(options.lengths)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "h200.txt").write_text("\n".join(table) + "\n")
        path = options.out / "map.json"
        before = json.loads(path.read_text())["cells"] if path.exists() else []
        found["cells"] += [cell for cell in before if cell["length"] not in options.lengths]
        found["cells"].sort(key=lambda cell: (cell["length"], cell["k"]))
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
