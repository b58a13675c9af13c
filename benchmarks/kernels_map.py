"""The map of `benchmarks/kernels.py`: the time of top-k over the best full attention, by row length and k."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

from timing import Shape, cell, full, inputs, ours

HEADS = 8
MAP_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
MAP_KS = (4, 8, 16, 32, 64, 256, 1024)


def map_of_ratios(lengths: list[int], ks: tuple[int, ...] = MAP_KS, tokens: int = 16384) -> dict:
    """Forward and backward over the best full attention's, for so many tokens (or one longer row) and D = 128."""
    import torch

    cells = []
    for length in lengths:
        shape = Shape(max(1, tokens // length), HEADS, length, 128, 0)
        tensors = inputs(shape)
        peers = [
            cell(partial(full, shape=shape, kernel=kernel), tensors)
            for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION")
        ]
        best = min((peer[1] for peer in peers if not isinstance(peer, str)), default=math.nan)
        for most in ks:
            found = cell(partial(ours, shape=replace(shape, kept=most)), tensors)
            time = None if isinstance(found, str) else found[1]
            cells.append({"length": length, "k": most, "ours_ms": time, "full_ms": best})
            print(f"L {length:6} k {most:3}: {'-' if time is None else f'{time / best:.2f}'}", flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "heads": HEADS, "width": 128, "dtype": "bfloat16", "causal": False, "cells": cells}


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
