"""How fast does a cohort train? Time per member-step, epoch and memory, beside a plain one-model PyTorch loop.

    python benchmarks/engine.py                          # CPU: 6 members, eager, compiled, in a process a core
    python benchmarks/engine.py --device cuda            # GPU: 1, 10, 60, 150 members, ListOps shape with 4, 16, 32
    python benchmarks/engine.py --device cuda --precision tf32

One line a case: the median over repeated stretches of steps, evaluation apart (`2 procs`: two processes with a thread
each; `c.`: compiled). The arithmetic floor is the FLOP of
the matrix products over the device's matrix rate, which is measured first.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.encodings import sinusoidal_encoding
from semfocus.execution.processes import keep_memory
from semfocus.training.cohort import Cohort
from semfocus.training.evaluation import Evaluator
from semfocus.training.runtime import Runtime, flop_per_row, numerics
from semfocus.training.step import TrainStep

SHAPES = {
    "nnch": (TaskConfig(name="even_pairs", train_rows=5000, heldout_rows=2000), ModelConfig(blocks=5)),
    "listops": (TaskConfig(name="listops", train_rows=500, heldout_rows=200), ModelConfig(blocks=10)),
}


class PlainModel(nn.Module):
    """The same network as one would write it for one model."""

    def __init__(self, vocabulary: int, classes: int, blocks: int, k: int | None, d: int = 64, p: float = 0.01) -> None:
        super().__init__()
        self.embedding, self.readout = nn.Embedding(vocabulary, d), nn.Linear(d, classes)
        layers = [[nn.Linear(d, d) for _ in range(6)] for _ in range(blocks)]
        self.blocks = nn.ModuleList(nn.ModuleList(layer) for layer in layers)
        self.d, self.k, self.p = d, k, p

    def forward(self, tokens: Tensor) -> Tensor:
        drop, norm = nn.functional.dropout, functional.layer_norm
        x = self.embedding(tokens) * math.sqrt(self.d) + sinusoidal_encoding(tokens.shape[-1], self.d, tokens.device)
        x = drop(x, self.p)
        for q, k, v, o, up, down in self.blocks:
            y = norm(x, (self.d,))
            scores = q(y) @ k(y).transpose(-1, -2) / math.sqrt(self.d)
            if self.k is not None:
                kth = scores.topk(self.k, dim=-1).values[..., -1:]
                scores = scores.masked_fill(scores < kth, float("-inf"))
            x = x + drop(o(drop(scores.softmax(dim=-1), self.p) @ v(y)), self.p)
            x = x + drop(down(functional.relu(drop(up(norm(x, (self.d,))), self.p))), self.p)
        return self.readout(x.mean(dim=1))


def plain_loop(shape: str, mechanism: str, device: torch.device, steps: int) -> float:
    """Seconds a step of one model in an ordinary loop."""
    task_config, model = SHAPES[shape]
    task = task_config.build()
    batch = task.sample(task_config.train_rows or 0, seed=0)
    tokens, labels = batch.tokens.to(device), batch.labels.to(device)
    network = PlainModel(task.vocab_size + 1, task.num_classes, model.blocks, 5 if mechanism == "topk:5" else None).to(
        device
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    times = []
    for i in range(steps + 3):
        start = _clock(device)
        rows = torch.arange(i * 25, i * 25 + 25, device=device) % len(labels)
        optimizer.zero_grad()
        functional.cross_entropy(network(tokens[rows]), labels[rows]).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
        if i >= 3:
            times.append(_clock(device) - start)
    return statistics.median(times)


def cohort_of(shape: str, mechanism: str, members: int, device: torch.device) -> Cohort:
    task_config, model = SHAPES[shape]
    configs = [
        RunConfig(
            task=task_config,
            attention=AttentionConfig(mechanism=mechanism),
            model=model,
            training=TrainingConfig(batch_size=25),
            seed=seed,
        )
        for seed in range(members)
    ]
    return Cohort.begin(configs, [task_config.build()] * members, device)


def ours(
    shape: str, mechanism: str, members: int, device: torch.device, compiled: bool, steps: int
) -> dict[str, float]:
    """Seconds a member-step, seconds of one evaluation a member, peak memory."""
    cohort = cohort_of(shape, mechanism, members, device)
    runtime = Runtime(device=device.type, compile="on" if compiled else "off")
    parts = runtime.parts(cohort.spec, 0, device)
    stepper, evaluator = TrainStep(cohort, parts), Evaluator(cohort, parts)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = _clock(device)
    stepper.begin_epoch(0, 0)
    stepper.run(1)
    first = _clock(device) - started
    times = []
    for _ in range(5):
        stepper.begin_epoch(0, 0)
        start = _clock(device)
        stepper.run(min(steps, cohort.steps_per_epoch))
        times.append((_clock(device) - start) / min(steps, cohort.steps_per_epoch))
    evaluator.scores()
    start = _clock(device)
    evaluator.scores()
    evaluation = _clock(device) - start
    epoch = statistics.median(times) * cohort.steps_per_epoch
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    return {
        "step": statistics.median(times) / members,
        "first": first,
        "evaluation": evaluation / epoch,
        "peak": peak,
        "flop": flop_per_row(cohort.spec) * 25,
    }


def side_by_side(shape: str, mechanism: str, members: int, processes: int, compiled: bool, steps: int) -> float:
    """Seconds a member-step of cohorts in processes of their own, a thread each: how `compare` trains on a CPU."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        share = members // processes
        found = pool.starmap(_alone, [(shape, mechanism, share, compiled, steps)] * processes)
    return statistics.mean(found) / processes


def _alone(shape: str, mechanism: str, members: int, compiled: bool, steps: int) -> float:
    keep_memory()
    with numerics("fp32", 1):
        return ours(shape, mechanism, members, torch.device("cpu"), compiled, steps)["step"]


def matrix_rate(device: torch.device) -> float:
    """FLOP a second of one large float32 product."""
    size = 4096 if device.type == "cuda" else 1024
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    times = []
    for _ in range(8):
        start = _clock(device)
        a @ b
        times.append(_clock(device) - start)
    return 2 * size**3 / min(times)


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--members", type=int, nargs="*", help="cohort sizes at the NNCH shape")
    parser.add_argument("--shapes", nargs="*", default=["nnch", "listops"], choices=list(SHAPES))
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    with numerics(options.precision, options.threads):
        rate = matrix_rate(device)
        name = torch.cuda.get_device_name() if gpu else f"CPU, {options.threads} threads"
        print(f"torch {torch.__version__}, {name}, {options.precision}, {rate / 1e12:.2f} TFLOP/s on one large product")
        print(f"{'shape':8} {'mechanism':9} {'members':>7} {'how':11} {'member-step':>12} {'of plain':>9} {'floor':>9}"
              f" {'evaluation':>11} {'first step':>11} {'peak':>9}")  # fmt: skip
        for shape in options.shapes:
            if shape == "listops" and not gpu:
                continue
            sizes = (options.members or ([1, 10, 60, 150] if gpu else [6])) if shape == "nnch" else [4, 16, 32]
            for mechanism in ("full", "topk:5"):

                def again(before: float, case: tuple[str, str] = (shape, mechanism)) -> float:
                    """The plain loop before and after a case, on a machine whose speed changes by the minute."""
                    return (before + plain_loop(*case, device, 30)) / 2

                plain = plain_loop(shape, mechanism, device, 30)
                print(f"{shape:8} {mechanism:9} {1:7} {'plain':11} {_time(plain):>12} {1:8.2f}x", flush=True)
                for members in sizes:
                    for compiled in (True,) if gpu else (False, True):
                        found = ours(shape, mechanism, members, device, compiled, 200 if gpu else 8)
                        plain = plain if gpu else again(plain)
                        print(
                            f"{shape:8} {mechanism:9} {members:7} {'compiled' if compiled else 'eager':11}"
                            f" {_time(found['step']):>12} {plain / found['step']:8.2f}x"
                            f" {_time(found['flop'] / rate):>9} {found['evaluation']:10.0%} {found['first']:10.1f}s"
                            f" {found['peak']:5.2f} GiB",
                            flush=True,
                        )
                    for compiled in () if gpu or members % options.threads else (False, True):
                        step = side_by_side(shape, mechanism, members, options.threads, compiled, 16)
                        plain = again(plain)
                        how = f"{options.threads} procs{', c.' if compiled else ''}"
                        print(f"{shape:8} {mechanism:9} {members:7} {how:11} {_time(step):>12} {plain / step:8.2f}x")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds > 1e-3 else f"{seconds * 1e6:.1f} us"


if __name__ == "__main__":
    main()
