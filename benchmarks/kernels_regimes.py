"""Which family of kernels is fastest where: what `semfocus/attention/kernels/regimes.py` says, measured.

`python benchmarks/kernels.py --regimes` times every family that serves a shape beside the others, as a CUDA graph, and
ends with the rows of the table that follow, as code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from unittest import mock

from timing import HEADER, Shape, cell, columns, inputs, ours

FAMILIES = ("long", "threshold", "short")
REGIME_SHAPES = [
    Shape(batch, heads, length, width, kept, causal=True)
    for batch, heads, length, width in ((64, 6, 512, 64), (16, 12, 1024, 64), (8, 16, 2048, 64), (4, 8, 4096, 128),
                                        (2, 8, 8192, 128), (1, 8, 16384, 128))
    for kept in (8, 16, 24, 32, 64, 256)
]  # fmt: skip


def by_kernels(q, k, v, shape: Shape, name: str):
    """Attention by one family of kernels, whatever the table of regimes says."""
    from semfocus.attention.kernels import backend

    with mock.patch.object(backend, "choose_kernels", return_value=name):
        return ours(q, k, v, shape)


def call_of(shape: Shape, tensors):
    """The inputs of a call of `attend` as its backends see them."""
    from semfocus import TopK
    from semfocus.attention.arguments import prepare_inputs
    from semfocus.attention.normalisers import Softmax

    return prepare_inputs(*tensors[:3], TopK(shape.kept), normaliser=Softmax(), causal=shape.causal)


def chosen(shape: Shape, tensors) -> str:
    """Which kernels the table of regimes picks."""
    from semfocus.attention.kernels.backend import choose_kernels

    return choose_kernels(call_of(shape, tensors)) or "none"


def serves(name: str, shape: Shape, tensors) -> bool:
    """Whether a family of kernels can compute a shape."""
    from semfocus.attention.kernels.backend import REFUSALS

    return REFUSALS[name](call_of(shape, tensors), False) is None


def regimes(shapes: list[Shape]) -> list[str]:
    """Every family of kernels that serves a shape, and the rows that `kernels/regimes.py` should have."""
    lines = [f"{HEADER} | {'long':>19} | {'threshold':>19} | {'short':>19} | chosen, fastest"]
    print(lines[0])
    measured: dict[tuple[int, int], Mapping[str, float]] = {}
    for shape in shapes:
        tensors = inputs(shape)
        found = {name: cell(partial(by_kernels, shape=shape, name=name), tensors) for name in FAMILIES
                 if serves(name, shape, tensors)}  # fmt: skip
        times = {name: times[1] for name, times in found.items() if not isinstance(times, str)}
        measured[shape.length, shape.kept] = times
        texts = [columns(found.get(name, "-"), "").split(" | ")[0] for name in FAMILIES]
        lines.append(f"{shape} | {' | '.join(texts)} | {chosen(shape, tensors)}, {fastest(times)}")
        print(lines[-1], flush=True)
    rows = rows_of_table(measured)
    print("\n".join(rows))
    return lines + rows


def fastest(times: Mapping[str, float]) -> str:
    """The family with the least time; "-" where none was measured."""
    return min(times, key=lambda name: times[name]) if times else "-"


def rows_of_table(measured: Mapping[tuple[int, int], Mapping[str, float]]) -> list[str]:
    """The rows of the table of regimes, for 16 bits, from the times by (keys, keys kept).

    A length stands for those up to the next one, a number of kept keys for those above the one before. `threshold`,
    which serves all, is the table's last row.
    """
    lengths = sorted({length for length, _ in measured})
    rows = []
    for length, following in zip(lengths, [*lengths[1:], None], strict=True):
        kept = sorted(most for keys, most in measured if keys == length)
        bests = [fastest(measured[length, most]) for most in kept]
        for place, (most, best) in enumerate(zip(kept, bests, strict=True)):
            ends = best != "-" and (place + 1 == len(kept) or bests[place + 1] != best)
            if not ends or (best == "threshold" and set(bests[place:]) == {best}):
                continue
            bounds = f"max_kept={most}, min_keys={length}, " + (f"max_keys={following - 1}, " if following else "")
            times = ", ".join(f"{name} {time:.2f}" for name, time in measured[length, most].items())
            rows.append(f'    Regime("{best}", {bounds}floats=(16,), why="measured: k = {most}: {times} ms"),')
    return rows
