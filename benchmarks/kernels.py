"""When is exact top-k attention faster than full attention? Our kernels beside the best full ones, one NVIDIA GPU.

    python benchmarks/kernels.py --out results/kernels          # tables, decoding, and the map L x k as JSON
    python benchmarks/kernels.py --only 0 1 5                   # these lines of the table alone
    python benchmarks/kernels.py --regimes                      # every way that serves a shape, beside each other
    python benchmarks/kernels.py --decode                       # one query over a long cache
    python benchmarks/kernels.py --smoke                        # all of it, tiny, without a GPU
    python benchmarks/kernels.py --draw results/kernels/map.json docs/images/kernels-map

bf16. Every time is given as a replayed CUDA graph and as called from Python, for us and for peers, in one run. Answers
are compared with float64 at up to 2048 keys before timing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from dataclasses import fields
from functools import partial
from pathlib import Path

from kernels_map import MAP_KS, MAP_LENGTHS, draw, map_of_ratios
from kernels_regimes import FAMILIES, REGIME_SHAPES, by_kernels, chosen, regimes, serves
from timing import (
    COPY_RATE,
    HEADER,
    TENSOR_RATE,
    Cell,
    Shape,
    cell,
    columns,
    dense_mask,
    flex,
    full,
    inputs,
    largest_difference,
    milliseconds,
    ours,
    peak_mib,
    refusal,
)

SHAPES = [
    Shape(16, 12, 1024, 64, 8, causal=True),
    Shape(16, 12, 1024, 64, 32, causal=True),
    Shape(8, 16, 2048, 64, 8, causal=True),
    Shape(8, 16, 2048, 64, 64, causal=True),
    Shape(64, 6, 512, 64, 8, causal=True),
    Shape(64, 6, 512, 64, 32, causal=True),
    Shape(4, 8, 4096, 128, 8),
    Shape(4, 8, 4096, 128, 64, causal=True),
    Shape(1, 8, 16384, 128, 8),
    Shape(1, 8, 16384, 128, 8, causal=True),
    Shape(1, 8, 16384, 128, 32),
    Shape(1, 8, 16384, 128, 64),
    Shape(1, 8, 16384, 128, 256),
    Shape(1, 8, 16384, 128, 1024),
    Shape(1, 8, 16384, 128, 2048),
    Shape(1, 8, 16384, 128, 2048, causal=True),
    Shape(1, 8, 16384, 64, 8),
    Shape(1, 8, 65536, 128, 8, causal=True),
    Shape(1, 8, 65536, 128, 256, causal=True),
    Shape(2, 8, 4096, 256, 64, causal=True),
]
CACHES, CACHE_KS = (4096, 32768, 131072), (64, 512, 2048)
FULL = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
SMOKE = [Shape(1, 1, 66, 16, 20, causal=True)]


def error_of(shape: Shape) -> float:
    """Of output and gradients from the float64 answer, relative to its largest entry, at up to 2048 keys.

    q and k are whole numbers, so that both choose the same keys, ties and all.
    """
    import torch

    small = Shape(shape.batch, shape.heads, min(shape.length, 2048), shape.width, shape.kept, shape.causal)
    *tensors, grad = inputs(Shape(1, 2, small.length, small.width, small.kept, small.causal))
    tensors = [t.detach().round().requires_grad_() if i < 2 else t for i, t in enumerate(tensors)]
    out = ours(*tensors, small)
    found = (out, *torch.autograd.grad(out, tensors, grad))
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = ours(*wide, small, backend="dense")
    return largest_difference(found, (exact, *torch.autograd.grad(exact, wide, grad.double())))


def step_of_ours(tensors, shape: Shape):
    import torch

    return torch.autograd.grad(ours(*tensors[:3], shape), tensors[:3], tensors[3])


def headlines(shapes: list[Shape]) -> list[str]:
    title = f"{HEADER} | {'':18} | graph: fwd  fwd+bwd | Python: fwd  fwd+bwd  (ms)"
    print(title)
    lines = [title]
    for shape in shapes:
        tensors = inputs(shape)
        try:
            error = error_of(shape)
            extra = peak_mib(partial(step_of_ours, tensors, shape)) or 0.0
        except Exception as failure:  # the other shapes are worth measuring
            lines.append(f"{shape} | failed: {type(failure).__name__}: {failure}"[:300])
            print(lines[-1], flush=True)
            continue
        ways = {f"ours: {chosen(shape, tensors)}": partial(ours, shape=shape)}
        ways |= {f"full, {name.split('_')[0].lower()}": partial(full, shape=shape, kernel=name) for name in FULL}
        ways["full, flex"] = partial(flex, shape=shape)
        if shape.length**2 * shape.batch * shape.heads <= 2**31:
            ways["dense mask"] = partial(dense_mask, shape=shape)
        found: dict[str, tuple[Cell, Cell]] = {}
        for name, way in ways.items():
            found[name] = cell(way, tensors), cell(way, tensors, graph=False)
            lines.append(f"{shape} | {name:18} | {columns(*found[name])}")
            print(lines[-1], flush=True)
        lines.append(f"{shape} | {summary(shape, found)}; {extra:.0f} MiB extra; largest difference {error:.1e}")
        print(lines[-1], flush=True)
    return lines


def summary(shape: Shape, found: dict[str, tuple[Cell, Cell]]) -> str:
    """Ours over the best full attention, in both columns, and the floor of the scores."""
    flop = shape.batch * shape.heads * shape.length**2 * shape.width * 2 * (0.5 if shape.causal else 1)
    texts = []
    for column, where in enumerate(("graph", "Python")):
        mine = next(cells[column] for name, cells in found.items() if name.startswith("ours"))
        peers = [cells[column] for name, cells in found.items() if name.startswith("full")]
        best = min((peer[1] for peer in peers if not isinstance(peer, str)), default=None)
        texts.append(f"{mine[1] / best:.2f} ({where})" if best and not isinstance(mine, str) else f"- ({where})")
    return f"{', '.join(texts)} of the best full; floor of the scores {flop / TENSOR_RATE * 1e3:.2f} ms"


def decoding(caches: tuple[int, ...] = CACHES) -> list[str]:
    """One query of 32 heads on 8 key heads of 128 over a cache, and the share of the memory floor: keys, k values."""
    import torch

    lines = ["one query, 32 heads on 8 key heads of 128 | graph, Python (us) | share of the floor"]
    print(lines[0])
    for length in caches:
        shape = Shape(1, 32, length, 128, 0)
        q, k, v, _ = inputs(shape, key_heads=8)
        q, k, v = q.detach()[:, :, :1].contiguous(), k.detach(), v.detach()
        ways = {f"full, {kernel.split('_')[0].lower()}": (partial(full, shape=shape, kernel=kernel), length * 8)
                for kernel in (*FULL, "EFFICIENT_ATTENTION", "MATH")}  # fmt: skip
        ways |= {
            f"ours, k {kept}": (partial(ours, shape=Shape(1, 32, length, 128, kept)), 32 * kept) for kept in CACHE_KS
        }
        for name, (way, values) in ways.items():
            with torch.no_grad(), warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    times = [milliseconds(partial(way, q, k, v), graph) * 1e3 for graph in (True, False)]
                except (RuntimeError, ValueError) as error:
                    times, why = [], refusal(error, [str(one.message) for one in told])
            if not times:
                lines.append(f"{length:7} {name:16} | {why}")
            else:
                floor = (length * 8 + values) * 128 * 2 / COPY_RATE * 1e6
                lines.append(f"{length:7} {name:16} | {times[0]:8.1f} {times[1]:8.1f} | {floor / times[0]:.2f}")
            print(lines[-1], flush=True)
    return lines


def compile_all(shapes: list[Shape]) -> None:
    """Every kernel to be timed, by several processes at once, so that the timed run finds them in Triton's cache."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import kernels; kernels.touch(sys.argv[2:])"
    texts = [as_text(shape) for shape in shapes]
    here = str(Path(__file__).parent)
    workers = [subprocess.Popen([sys.executable, "-c", code, here, *texts[i::12]]) for i in range(12)]
    for worker in workers:
        worker.wait()


def as_text(shape: Shape) -> str:
    """A shape as an argument of a command."""
    return ",".join(str(int(getattr(shape, field.name))) for field in fields(shape))


def touch(texts: list[str]) -> None:
    import torch

    for text in texts:
        *numbers, causal = (int(part) for part in text.split(","))
        shape = Shape(*numbers, causal=bool(causal))
        q, k, v, grad = inputs(shape)
        ways = [partial(by_kernels, name=name) for name in FAMILIES if serves(name, shape, (q, k, v))]
        for way in (*ways, flex):
            try:
                torch.autograd.grad(way(q, k, v, shape), (q, k, v), grad)
            except Exception as failure:  # the timed run tells of it; the next way is compiled all the same
                print(f"{shape} | {way}: {type(failure).__name__}: {failure}"[:300], file=sys.stderr)


def smoke() -> None:
    """Every table with tiny shapes: what would fail before the first number shows without a GPU."""
    os.environ["TRITON_INTERPRET"] = "1"
    touch([as_text(shape) for shape in SMOKE])
    headlines(SMOKE)
    regimes(SMOKE)
    decoding((70,))
    json.dumps(map_of_ratios([64], (4,), tokens=64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the tables and the map")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("MAP", "PICTURE"), help="draw a map and stop")
    parser.add_argument("--only", type=int, nargs="*", metavar="LINE", help="lines of the table (from 0), and no more")
    parser.add_argument("--regimes", action="store_true", help="time every way that serves a shape, and no more")
    parser.add_argument("--decode", action="store_true", help="time one query over a cache, and no more")
    parser.add_argument("--lengths", type=int, nargs="*", default=list(MAP_LENGTHS), help="columns of the map to time")
    parser.add_argument("--smoke", action="store_true", help="all of it, tiny, on a CPU by Triton's interpreter")
    options = parser.parse_args()
    if options.draw:
        draw(*options.draw)
        return
    if options.smoke:
        smoke()
        return
    import torch
    import triton

    title = f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}, bf16"
    print(title, flush=True)
    shapes = SHAPES if options.only is None else [SHAPES[line] for line in options.only]
    tables: dict[str, list[str]] = {}
    if options.regimes:
        compile_all(REGIME_SHAPES)
        tables["regimes.txt"] = [title, *regimes(REGIME_SHAPES)]
    if options.decode:
        tables["decode.txt"] = [title, *decoding()]
    if not tables:
        whole = options.only is None
        compile_all(shapes + [Shape(1, 8, length, 128, k) for k in MAP_KS for length in options.lengths if whole])
        tables["h200.txt"] = [title, *headlines(shapes)]
        if whole:
            tables["decode.txt"] = [title, *decoding()]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, lines in tables.items():
            (options.out / name).write_text("\n".join(lines) + "\n")
    if not options.regimes and not options.decode and options.only is None:
        found = map_of_ratios(options.lengths)
        if options.out:
            path = options.out / "map.json"
            before = json.loads(path.read_text())["cells"] if path.exists() else []
            found["cells"] += [cell for cell in before if cell["length"] not in options.lengths]
            found["cells"].sort(key=lambda cell: (cell["length"], cell["k"]))
            path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
