"""Exact top-k and windowed attention beside what people use today: time and memory, forward + backward.

    python benchmarks/attention.py                                      # CPU, two threads
    python benchmarks/attention.py --only other                         # LSH, routing, FAST, entmax, ... beside full
    python benchmarks/attention.py --threads 1 --cpu-time               # on a machine that is busy with other work
    python benchmarks/attention.py --device cuda                        # on a GPU, FlexAttention included
    python benchmarks/attention.py --device cuda --dtype bfloat16

Each table times its contestants in the same process on the same numbers, one after another, and prints the median in
milliseconds and the ratio to the first. A contestant that fails has the reason in its place. On a CPU peak memory is
measured in a process of its own; everywhere it is what is held beyond inputs and gradients.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus import Banded, BlockLocal, Full, TopK, attend

Contestant = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Place:
    """Where and in which type all contestants run."""

    device: str
    dtype: torch.dtype
    threads: int
    clock: Callable[[], float] = time.perf_counter  # of a CPU


def dense_mask_topk(k: int) -> Contestant:
    """The usual way (x-transformers and others): all scores, a threshold at the k-th, the rest masked."""

    def run(q: Tensor, key: Tensor, v: Tensor) -> Tensor:
        scores = (q @ key.transpose(-1, -2)) * q.shape[-1] ** -0.5
        kth = scores.topk(k, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < kth, -torch.finfo(scores.dtype).max).softmax(dim=-1) @ v

    return run


def entmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """1.5-entmax by the package of its authors: the sparse softmax that needs no k."""
    from entmax import entmax15  # within the race, so that its absence is this contestant's own

    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return entmax15(scores.float(), dim=-1).to(q.dtype) @ v


def ours(mechanism, backend: str | None = None, normaliser: str = "softmax") -> Contestant:
    return lambda q, k, v: attend(q, k, v, mechanism, backend=backend, normaliser=normaliser)


def flex(mechanism: Banded | BlockLocal, length: int) -> Contestant:
    """FlexAttention with the mechanism's window as a block mask (GPU only: it has no backward on CPU)."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    mask = None

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        nonlocal mask
        if mask is None:  # within the race, so that a failure is this contestant's own
            mask = create_block_mask(flex_window(mechanism, length), None, None, length, length, device=q.device)
        return compiled(q, k, v, block_mask=mask)

    return run


def flex_window(mechanism: Banded | BlockLocal, length: int):
    """The mechanism's pattern as FlexAttention asks for it: a question about one query and one key."""

    def window(b, h, i, j):
        if isinstance(mechanism, BlockLocal):
            return i // mechanism.width == j // mechanism.width
        start = (i - (mechanism.width - 1) // 2).clamp(0, length - mechanism.width)
        return (j >= start) & (j < start + mechanism.width)

    return window


def tensors(shape: tuple[int, ...], place: Place) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator).to(place.device, place.dtype) for _ in range(4)]
    return [tensor.requires_grad_(i < 3) for i, tensor in enumerate(drawn)]


def step(run: Contestant, inputs: list[Tensor]) -> None:
    for leaf in inputs[:3]:
        leaf.grad = None
    run(*inputs[:3]).backward(inputs[3])


def milliseconds(run: Contestant, inputs: list[Tensor], repeats: int, clock: Callable[[], float]) -> float:
    """The median of single steps, after warming up (which is when things are compiled)."""
    gpu = inputs[0].is_cuda
    for _ in range(3 if gpu else 1):
        step(run, inputs)
    times = []
    for _ in range(repeats):
        if gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            step(run, inputs)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begun = clock()
            step(run, inputs)
            times.append((clock() - begun) * 1e3)
    return statistics.median(times)


def attempt(measure: Callable[[], float]) -> float | str:
    """What was measured, or in a few words why it could not be."""
    try:
        return measure()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return "out of memory"
    except Exception as error:  # a peer's failure is a line of the table, not the end of it
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:90]}"


def race(title: str, contestants: dict[str, Contestant], shape: tuple[int, ...], place: Place, repeats: int) -> None:
    print(f"\n{title}", flush=True)
    base = None
    for name, run in contestants.items():
        found = attempt(lambda run=run: milliseconds(run, tensors(shape, place), repeats, place.clock))
        if isinstance(found, str):
            print(f"  {name:34} {found}", flush=True)
            continue
        base = base or found
        print(f"  {name:34} {found:10.3f} ms {found / base:8.2f}x", flush=True)


LONG = {"chunked": ours(TopK(8), "chunked"), "dense mask": dense_mask_topk(8), "as attend chooses": ours(TopK(8))}


def peak_mib(name: str, shape: tuple[int, ...], place: Place) -> float:
    """Extra memory at the peak, inputs and gradients not counted."""
    if place.device == "cuda":
        return _peak_of_gpu(LONG[name], shape, place)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=_peak_of_process, args=(name, shape, place, queue))
    worker.start()
    worker.join()
    if worker.exitcode:
        raise RuntimeError(f"the measuring process ended with status {worker.exitcode}")
    return queue.get()


def _peak_of_gpu(run: Contestant, shape: tuple[int, ...], place: Place) -> float:
    step(run, tensors((1, 1, 512, 64), place))  # libraries take their workspace before measuring
    inputs = tensors(shape, place)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(run, inputs)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - _bytes_of_gradients(inputs)) / 2**20


def _bytes_of_gradients(inputs: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in inputs[:3])


def _resident() -> int:
    """Bytes of memory this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak_of_process(name: str, shape: tuple[int, ...], place: Place, queue) -> None:
    torch.set_num_threads(place.threads)
    run = LONG[name]
    step(run, tensors((1, 1, 300, 64), place))  # load the libraries before measuring
    inputs = tensors(shape, place)
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
    queue.put((peak - before - _bytes_of_gradients(inputs)) / 2**20)


def short_rows(place: Place) -> None:
    for batch in (25, 150, 1500):
        contestants = {
            "torch SDPA (full)": scaled_dot_product_attention,
            "semfocus full": ours(Full()),
            "semfocus topk:5": ours(TopK(5)),
            "dense-mask top-5": dense_mask_topk(5),
            "entmax 1.5, its package": entmax,
        }
        race(f"the paper's shape: B {batch}, H 1, L 40, D 64", contestants, (batch, 1, 40, 64), place, 20)


def other_ways(place: Place) -> None:
    """What each other mechanism and normaliser costs beside full attention (docs/mechanisms.md)."""
    for shape in ((25, 1, 40, 64), (1, 1, 1024, 16)):
        contestants: dict[str, Contestant] = {"torch SDPA (full)": scaled_dot_product_attention}
        for mechanism in ("full", "topk:5", "topk:5~0.1", "lsh:5", "routing:5", "fast:1", "fast:2"):
            contestants[f"semfocus {mechanism}"] = ours(mechanism)
        contestants["semfocus fast:2, all scores"] = ours("fast:2", "dense")
        for normaliser in ("sigmoid", "entmax:1.5", "sparsemax", "entmax:1.3", "ssmax", "asentmax", "lssar", "doubly"):
            contestants[f"semfocus full, {normaliser}"] = ours("full", normaliser=normaliser)
        for normaliser in ("sigmoid", "entmax:1.5"):
            contestants[f"semfocus topk:5, {normaliser}"] = ours("topk:5", normaliser=normaliser)
        contestants["entmax 1.5, its package"] = entmax
        batch, heads, length, width = shape
        race(f"other ways: B {batch}, H {heads}, L {length}, D {width}", contestants, shape, place, 5)


def long_rows(place: Place, length: int = 4096) -> None:
    gpu, shape = place.device == "cuda", (1, 4, length, 64)
    contestants = {
        "dense-mask top-8": dense_mask_topk(8),
        "semfocus topk:8 (chunked)": ours(TopK(8), "chunked"),
        "semfocus topk:8": ours(TopK(8)),
        "torch SDPA (full)": scaled_dot_product_attention,
    }
    if gpu:
        contestants["entmax 1.5, its package"] = entmax
    race(f"top-8, L {length}, B 1, H 4, D 64", contestants, shape, place, 10 if gpu else 3)
    for mechanism in (Banded(9), BlockLocal(9)):
        contestants = {
            f"{mechanism} through dense attention": ours(mechanism, "dense"),
            f"semfocus {mechanism}": ours(mechanism),
        }
        if gpu:
            contestants["FlexAttention"] = flex(mechanism, length)
        race(f"{mechanism}, L {length}, B 1, H 4, D 64", contestants, shape, place, 10 if gpu else 3)


def memory(place: Place) -> None:
    print("\npeak memory beyond inputs and gradients, top-8, forward + backward, B 1, H 4, D 64", flush=True)
    for length in (4096, 16384):
        for name in LONG:
            if place.device == "cpu" and (name, length) == ("dense mask", 16384):
                found = f"not run: one score matrix alone takes {4 * length**2 * 4 / 2**30:.0f} GiB, several are held"
            else:
                found = attempt(lambda name=name, length=length: peak_mib(name, (1, 4, length, 64), place))
            shown = found if isinstance(found, str) else f"{found:10.0f} MiB"
            print(f"  {name:34} L {length:6} {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="count the time of the CPU instead of the clock's")
    parser.add_argument("--only", choices=["short", "other", "long", "memory"], help="one kind of table alone")
    chosen = parser.parse_args()
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    place = Place(chosen.device, getattr(torch, chosen.dtype), chosen.threads, clock)
    torch.set_num_threads(place.threads)
    where = torch.cuda.get_device_name() if place.device == "cuda" else f"CPU, threads: {place.threads}"
    of = "CPU time" if chosen.cpu_time and place.device == "cpu" else "wall clock"
    print(f"torch {torch.__version__}, {where}, {chosen.dtype}, forward + backward, medians, {of}")
    tables = {"short": short_rows, "other": other_ways, "long": long_rows, "memory": memory}
    for name, table in tables.items():
        if chosen.only in (None, name):
            table(place)


if __name__ == "__main__":
    main()
