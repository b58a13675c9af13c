"""How long does a loss surface take, and what does watching a model cost?

    python benchmarks/theory.py                                   # CPU: a small grid, so that it ends
    python benchmarks/theory.py --device cuda                     # 200 x 200 points, 5000 rows, TF32: the paper's size
    python benchmarks/theory.py --device cuda --mechanisms topk:5 --grid 50

One line a mechanism: `semfocus surface` as it runs (directions, evaluation, storing), beside a plain loop over grid
points through the network as one would write it for one model. The loop is run on a few points and extrapolated; their
losses are compared with the surface's. Before that, `diagnose` against the forward passes it watches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.config import AttentionConfig, RunConfig, TaskConfig
from semfocus.diagnostics import diagnose
from semfocus.encodings import sinusoidal_encoding
from semfocus.landscape import SurfaceSettings, measure_surface
from semfocus.measurements import Surface, surface_name
from semfocus.model.encoder import Encoder
from semfocus.spec import Spec, initial
from semfocus.store import RunDirectory, RunStore
from semfocus.store.measurements import read_arrays
from semfocus.tasks import Batch
from semfocus.training import Runtime, data
from semfocus.training.cohort import spec_of
from semfocus.training.loading import document
from semfocus.training.runtime import flop_per_row, numerics

TURNS = 9  # of forward passes and of `diagnose`


def make_run(root: Path, mechanism: str, rows: int) -> tuple[RunDirectory, RunConfig]:
    """A run of the paper's shape (5 blocks, 40 positions, 64 wide) as it stands before training."""
    task = TaskConfig(name="even_pairs", train_rows=rows, heldout_rows=1)
    config = RunConfig(task=task, attention=AttentionConfig(mechanism=mechanism), seed=1)
    built = task.build()
    run = RunStore(root).create_or_open(config.run_id(built), document(config, built))
    with run.lock() as writer:
        writer.save_checkpoint(0, {"parameters": initial(spec_of(config, built), config.seed)}, {})
    return run, config


def time_surface(
    run: RunDirectory, settings: SurfaceSettings, options: argparse.Namespace
) -> tuple[Surface, float, float]:
    """The surface, seconds in all, and seconds until the first points were on their way (compiling, capturing)."""
    ticks: list[float] = []
    began = time.perf_counter()
    found = measure_surface(
        run,
        settings,
        Runtime(device=options.device, threads=options.threads),
        lambda done, wanted: ticks.append(time.perf_counter()),
        positions_at_once=options.positions,
    )
    return found, time.perf_counter() - began, ticks[0] - began


def time_loop(
    run: RunDirectory, config: RunConfig, surface: Surface, batch: Batch, options: argparse.Namespace
) -> tuple[float, float]:
    """Seconds a point of a plain loop, and the largest relative difference from the surface's losses."""
    device, spec = torch.device(options.device), spec_of(config, config.task.build())
    arrays = read_arrays(run, surface_name("random", surface.meta.key))
    if arrays is None:
        raise SystemExit("the surface was not stored")
    first, second = torch.from_numpy(arrays["directions"]).to(device)
    centre, axis = initial(spec, config.seed).to(device), surface.axis
    tokens, labels = batch.tokens.to(device), batch.labels.to(device)
    places = torch.linspace(0, len(axis) ** 2 - 1, options.loop + 1).long().tolist()
    times, worst = [], 0.0
    with numerics(options.precision, options.threads), torch.no_grad():
        for place in places:
            i, j = divmod(place, len(axis))
            start = _clock(device)
            row = centre + float(axis[j]) * first + float(axis[i]) * second
            weights = {name: part[0] for name, part in spec.layout.split(row.unsqueeze(0)).items()}
            loss = functional.cross_entropy(plain_logits(weights, tokens, spec), labels).item()
            times.append(_clock(device) - start)
            worst = max(worst, abs(loss - surface.losses[i, j]) / abs(loss))
    return statistics.median(times[1:]), worst  # the first one warms up


def plain_logits(weights: dict[str, Tensor], tokens: Tensor, spec: Spec) -> Tensor:
    """The network as one would write it for one model, all rows at once; full attention by torch's own kernel."""
    d = spec.model.d_model

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = functional.embedding(tokens.long(), weights["embedding"]) * d**0.5
    x = x + sinusoidal_encoding(tokens.shape[-1], d, tokens.device)
    for i in range(spec.model.blocks):
        q, k, v = linear(functional.layer_norm(x, (d,)), f"blocks.{i}.qkv").chunk(3, dim=-1)
        if spec.mechanism.keeps_largest is not None:
            scores = q @ k.mT / d**0.5
            kth = scores.topk(spec.mechanism.k, dim=-1).values[..., -1:]
            mixed = scores.masked_fill(scores < kth, float("-inf")).softmax(dim=-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + linear(mixed, f"blocks.{i}.o")
        hidden = functional.relu(linear(functional.layer_norm(x, (d,)), f"blocks.{i}.mlp_in"))
        x = x + linear(hidden, f"blocks.{i}.mlp_out")
    return linear(x.mean(dim=1), "readout")


def time_diagnose(batch: Batch, mechanism: str, options: argparse.Namespace) -> tuple[float, float, float]:
    """Seconds of forward passes alone and of the same passes under `diagnose`, medians, and the median of their ratios.

    Taken in turns, so that a machine that is busy for a while is so for both.
    """
    device = torch.device(options.device)
    config = RunConfig(task=TaskConfig(name="even_pairs"), attention=AttentionConfig(mechanism=mechanism), seed=1)
    spec = spec_of(config, config.task.build())
    module = Encoder(spec, initial(spec, 1)).to(device).eval()

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, len(batch.labels), 500):
            part = slice(begin, begin + 500)
            yield batch.tokens[part].to(device), batch.lengths[part].to(device)

    def forward() -> None:
        with torch.no_grad():
            for tokens, lengths in pieces():
                module(tokens, lengths)

    def seconds(work: Callable[[], object]) -> float:
        start = _clock(device)
        work()
        return _clock(device) - start

    def watched() -> None:
        diagnose(module, pieces(), k=5)

    with numerics("fp32", options.threads):
        forward()
        watched()
        pairs = [(seconds(forward), seconds(watched)) for _ in range(TURNS)]
    alone, both = (statistics.median(times) for times in zip(*pairs, strict=True))
    return alone, both, statistics.median(slow / fast for fast, slow in pairs)


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _time(seconds: float) -> str:
    return (
        f"{seconds / 60:.1f} min" if seconds > 120 else f"{seconds:.1f} s" if seconds > 1 else f"{seconds * 1e3:.1f} ms"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--grid", type=int, help="points along each direction; 200 on a GPU, 12 on a CPU")
    parser.add_argument("--rows", type=int, help="5000 on a GPU, 200 on a CPU")
    parser.add_argument("--mechanisms", nargs="*", default=["full", "topk:5"])
    parser.add_argument("--precision", choices=["fp32", "tf32"], help="tf32 on a GPU, fp32 on a CPU")
    parser.add_argument("--positions", type=int, help="at once, of all grid points together; chosen if not given")
    parser.add_argument("--loop", type=int, default=20, help="grid points of the plain loop")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.grid = options.grid or (200 if gpu else 12)
    options.rows = options.rows or (5000 if gpu else 200)
    options.precision = options.precision or ("tf32" if gpu else "fp32")
    return options


def main() -> None:
    options = _options()
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {options.threads} threads"
    points = options.grid**2
    print(f"torch {torch.__version__}, {name}, {options.precision}")
    task = TaskConfig(name="even_pairs", train_rows=options.rows, heldout_rows=1)
    batch, _ = data.load(RunConfig(task=task, seed=1), task.build())
    for mechanism in options.mechanisms:
        alone, watched, ratio = time_diagnose(batch, mechanism, options)
        print(
            f"diagnose {mechanism}: {_time(watched)} for {options.rows} rows, {ratio:.2f} times the "
            f"{_time(alone)} of the forward passes it watches (fp32)"
        )
    print(f"{options.grid} x {options.grid} points, {options.rows} rows of 40 tokens, 5 blocks, 64 wide")
    print(f"{'mechanism':10} {'surface':>10} {'of it start':>12} {'a point':>10} {'TFLOP/s':>8} {'plain loop':>11}"
          f" {'ratio':>7} {'largest difference':>19} {'peak':>9}")  # fmt: skip
    for mechanism in options.mechanisms:
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            run, config = make_run(Path(folder), mechanism, options.rows)
            settings = SurfaceSettings(grid=options.grid, rows=None, precision=options.precision)
            surface, seconds, start = time_surface(run, settings, options)
            peak = torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else float("nan")
            batch, _ = data.load(config, config.task.build())
            loop, difference = time_loop(run, config, surface, batch, options)
        flop = flop_per_row(spec_of(config, config.task.build())) / 3 * options.rows * points  # forward alone
        print(
            f"{mechanism:10} {_time(seconds):>10} {_time(start):>12} {_time((seconds - start) / points):>10}"
            f" {flop / (seconds - start) / 1e12:8.2f} {_time(loop * points):>11} {loop * points / seconds:6.1f}x"
            f" {difference:19.1e} {peak:5.2f} GiB",
            flush=True,
        )
    print(f"the plain loop was run on {options.loop} points and multiplied by {points} / {options.loop}")


if __name__ == "__main__":
    main()
