"""Launches of the short kernels: arguments, compile-time constants and grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import OutOfResources

from semfocus.attention.kernels.products import precision
from semfocus.attention.kernels.shared import dropout_threshold
from semfocus.attention.kernels.short import listed, select, tiled, whole
from semfocus.attention.kernels.short.arguments import (
    LEAD,
    HeadDims,
    Pattern,
    dropout_type,
    padded,
    row_id_steps,
    strided,
)
from semfocus.attention.kernels.short.configs import MAX_SHORT_LENGTH, MIN_TILE, Launch, launch_for, shrinking
from semfocus.attention.kernels.short.dispatch import plan
from semfocus.attention.mechanisms import Mechanism

WORD = select.WORD.value

KERNELS: dict[str, Any] = {
    "whole_forward": whole.whole_forward,
    "whole_backward": whole.whole_backward,
    "tiled_forward": tiled.tiled_forward,
    "tiled_by_query": tiled.tiled_by_query,
    "tiled_by_key": tiled.tiled_by_key,
    "listed_select": select.listed_select,
    "listed_forward": listed.listed_forward,
    "listed_by_query": listed.listed_by_query,
    "listed_by_key": listed.listed_by_key,
}


@dataclass(frozen=True)
class Call:
    """The inputs of one call, and its forward and backward passes. q (*lead, Lq, D) has all the leading dimensions."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    lengths: Tensor | None
    dropout_seed: Tensor | None
    mechanism: Mechanism
    causal: bool
    scale: float
    dropout_p: float
    tf32: bool
    bounds: Tensor | None = None  # (.., 1, 7 or more): largest entries, columns as `positions.BOUND_Q` ...
    ragged: bool = False  # queries from the length on are padding too: output unread, gradient zero

    def forward(self, out: Tensor, kept: Tensor, lse: Tensor, saved: Tensor, check_finite: bool) -> None:
        """Fill the results of `ops.empty_results`; check_finite: a value that is not finite spoils only its queries."""
        x, dropout, sizes = self._arguments({"out": out})
        given = [*_pick(x, "q k v out mask lengths bounds"), dropout]
        numbers = [sizes, *self._lengths, self.scale]
        kind = plan(*self._lengths, self.mechanism)
        if kind == "whole":
            self._run("whole_forward", *given, kept, lse, *numbers, CHECK_FINITE=check_finite)
        elif kind == "tiled":
            self._run("tiled_forward", *given, lse, saved, *numbers, CHECK_FINITE=check_finite)
        else:
            bits = kept.new_empty(*lse.shape[:-1], -(-self._lengths[1] // WORD), self._lengths[0])
            self._run("listed_select", *_pick(x, "q k mask lengths bounds"), bits, *numbers)
            given = [*_pick(x, "q k v out bounds"), dropout, bits]
            self._run("listed_forward", *given, kept, lse, saved, *numbers, CHECK_FINITE=check_finite)

    def backward(
        self, grad: Tensor, grad_lse: Tensor | None, out: Tensor, kept: Tensor, saved: Tensor, dq: Tensor, dk: Tensor,
        dv: Tensor,
    ) -> None:  # fmt: skip
        """Fill dq, dk and dv, from the gradients of the output and of the log-sum-exp and from what forward saved."""
        dlse = None if grad_lse is None else grad_lse.unsqueeze(-1)
        # Where products take 11 bits, the kernel by query leaves the gradient in float16 for the kernel by key.
        kind = plan(*self._lengths, self.mechanism)
        fp16 = kind != "whole" and self._precision == "fp16"
        grad_fp16 = torch.empty_like(grad, dtype=torch.float16) if fp16 else None
        x, dropout, sizes = self._arguments(
            {"grad": grad, "grad_lse": dlse, "grad_fp16": grad_fp16, "out": out, "dq": dq, "dk": dk, "dv": dv}
        )
        numbers = [sizes, *self._lengths, self.scale]
        grad_by_key = "grad" if grad_fp16 is None else "grad_fp16"
        if kind == "whole":
            given = [*_pick(x, "grad grad_lse q k v mask lengths bounds"), dropout, kept]
            self._run("whole_backward", *given, *_pick(x, "dq dk dv"), *numbers)
        elif kind == "tiled":
            factors = saved.new_empty(*saved.shape[:-2], 4, saved.shape[-1])
            hashed = None if dropout is None else torch.empty_like(saved[..., 0, :], dtype=torch.int32)
            given = [*_pick(x, "grad grad_lse q k v out mask lengths bounds"), dropout, saved, factors, hashed]
            self._run("tiled_by_query", *given, *_pick(x, "grad_fp16 dq"), *numbers)
            given = [*_pick(x, f"{grad_by_key} grad_lse q k v mask lengths bounds"), dropout, saved, factors, hashed]
            self._run("tiled_by_key", *given, *_pick(x, "dk dv"), *numbers)
        else:
            dropped, ds = torch.empty_like(saved), torch.empty_like(saved)
            given = [*_pick(x, "grad grad_lse k v bounds"), dropout, kept, saved, dropped, ds]
            self._run("listed_by_query", *given, *_pick(x, "grad_fp16 dq"), *numbers)
            given = [*_pick(x, f"{grad_by_key} q lengths bounds"), dropout, kept, dropped, ds]
            self._run("listed_by_key", *given, self._order_scratch(kept), *_pick(x, "dk dv"), *numbers)

    def _order_scratch(self, kept: Tensor) -> Tensor:
        """(problems, tiles of keys, queries): enough for the smallest tiles."""
        queries, keys = self._lengths
        return kept.new_empty(kept.shape[:-2].numel(), -(-keys // MIN_TILE), queries, dtype=torch.int16)

    def _run(self, name: str, *arguments: Any, **options: Any) -> None:
        """Launch a kernel; on a GPU with less shared memory with smaller tiles."""
        launch = launch_for(name, max(self.q.shape[-1], self.v.shape[-1]), self._precision)
        for attempt in shrinking(launch, WORD if name == "listed_select" else MIN_TILE):
            try:
                self._start(name, attempt, *arguments, **options)
                return
            except OutOfResources as error:
                lacking = error
        raise lacking

    def _start(self, name: str, launch: Launch, *arguments: Any, **options: Any) -> None:
        """Launch a kernel with the constants that it takes: a program per problem, or per tile of its rows."""
        kernel, programs = KERNELS[name], self.q.shape[:-2].numel()
        queries, keys = self._lengths
        if name.startswith("whole"):
            tile = {"BLOCK_M": padded(queries), "BLOCK_N": padded(keys)}
        else:
            tile = {"BLOCK_M": launch.block_m, "BLOCK_N": launch.block_n}
            programs *= -(-keys // launch.block_n) if name.endswith("by_key") else -(-queries // launch.block_m)
        constants = {key: value for key, value in (self._constants | tile).items() if key in kernel.arg_names}
        with torch.cuda.device_of(self.q):
            kernel[(programs,)](
                *arguments, **constants, **options, **launch.options,
                # with fused multiply-adds, score - row_max would not be exactly zero for the largest score
                enable_fp_fusion=False,
            )  # fmt: skip

    def _arguments(self, tensors: dict[str, Tensor | None]) -> tuple[dict[str, Any], Any, tuple[int, ...]]:
        """All tensors as kernels take them, the dropout, and the merged sizes of the leading dimensions."""
        lead, mask, seed = self.q.shape[:-2], self.mask, self.dropout_seed
        steps = None
        if mask is not None:  # broadcast rows and columns get stride 0
            mask = mask.view(torch.uint8).expand(*mask.shape[:-2], *self._lengths)
        if seed is not None:
            seed = seed[(None,) * max(2 - seed.dim(), 0)]
            steps = row_id_steps(lead, seed, self._lengths[0])
        inputs = {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "mask": mask,
            "lengths": self.lengths,
            "seed": seed,
            "bounds": self.bounds,
        }
        sizes, given, steps = strided(lead, inputs | tensors, steps)
        seeds = given.pop("seed")
        if seeds is None:
            return given, None, sizes
        bits = (dropout_threshold(self.dropout_p), 1 / (1 - self.dropout_p))
        return given, dropout_type(len(sizes))(seeds.data, *bits, *seeds[LEAD:], *steps), sizes

    @property
    def _precision(self) -> str:
        return precision(self.tf32, bounded=self.bounds is not None)

    @property
    def _lengths(self) -> tuple[int, int]:
        return self.q.shape[-2], self.k.shape[-2]

    @property
    def _constants(self) -> dict[str, Any]:
        """What kernels are compiled for. Widths beyond all keys are cut, so that they share one compilation."""
        mechanism, keys = self.mechanism, self._lengths[1]
        d, dv = self.q.shape[-1], self.v.shape[-1]
        size = mechanism.size or 0
        most = min(size, keys) if mechanism.is_ranked else 0
        return {
            "PATTERN": Pattern(
                mask="none" if self.mask is None else "keys" if self.mask.shape[-2] == 1 else "pairs",
                kind=mechanism.name,
                width=min(size, 2 * MAX_SHORT_LENGTH) if mechanism.is_local else 0,
                globals=min(mechanism.num_globals, MAX_SHORT_LENGTH),
                causal=self.causal,
            ),
            "TOPK": most,
            "SINKS": min(mechanism.num_sinks, MAX_SHORT_LENGTH),
            "WINDOW": min(mechanism.num_nearest, 2 * MAX_SHORT_LENGTH),
            "NUM_WORDS": -(-keys // WORD) if most else 0,
            "BLOCK_WORDS": padded(-(-keys // WORD)),
            "BLOCK_ROWS": padded(self._lengths[0]),
            "RAGGED": self.ragged,
            "PRECISION": self._precision,
            "DIMS": HeadDims(d, padded(d), dv, padded(dv)),
        }


def _pick(given: dict[str, Any], names: str) -> list[Any]:
    return [given[name] for name in names.split()]
