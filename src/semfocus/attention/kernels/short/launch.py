"""Calls of the short kernels: what each is given, and how many programs of it run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import OutOfResources

from semfocus.attention.kernels.products import precision
from semfocus.attention.kernels.shared import dropout_threshold
from semfocus.attention.kernels.short import listed, select, tiled, whole
from semfocus.attention.kernels.short.arguments import LEAD, arranged, dropout_type, padded, row_numbers
from semfocus.attention.kernels.short.configs import LONGEST, SMALLEST, Launch, launch_for, shrinking
from semfocus.attention.kernels.short.ops import plan
from semfocus.attention.mechanisms import Mechanism

WORD = select.WORD.value

KERNELS: dict[str, Any] = {
    "whole_forward": whole.whole_forward,
    "whole_backward": whole.whole_backward,
    "tiled_forward": tiled.tiled_forward,
    "tiled_by_query": tiled.tiled_by_query,
    "tiled_by_key": tiled.tiled_by_key,
    "listed_choice": select.listed_choice,
    "listed_mix": listed.listed_mix,
    "listed_by_query": listed.listed_by_query,
    "listed_by_key": listed.listed_by_key,
}


@dataclass(frozen=True)
class Call:
    """One call: its inputs, and the two passes over them. q has all the leading dimensions."""

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
    bounds: Tensor | None = None  # (.., 1, 4 or more): what no entry of q, k, v and the output's gradient exceeds
    ragged: bool = False  # from the length on queries are padding too: nobody reads their output, its gradient is zero

    def forward(self, out: Tensor, kept: Tensor, lse: Tensor, saved: Tensor, careful: bool) -> None:
        """Fill the results."""
        x, dropout, sizes = self._arguments({"out": out})
        given = [*_pick(x, "q k v out mask lengths bounds"), dropout]
        numbers = [sizes, *self._lengths, self.scale]
        kind = plan(*self._lengths, self.mechanism)
        if kind == "whole":
            self._run("whole_forward", *given, kept, lse, *numbers, CAREFUL=careful)
        elif kind == "tiled":
            self._run("tiled_forward", *given, lse, saved, *numbers, CAREFUL=careful)
        else:
            bits = kept.new_empty(*lse.shape[:-1], -(-self._lengths[1] // WORD), self._lengths[0])
            self._run("listed_choice", *_pick(x, "q k mask lengths bounds"), bits, *numbers)
            given = [*_pick(x, "q k v out bounds"), dropout, bits]
            self._run("listed_mix", *given, kept, lse, saved, *numbers, CAREFUL=careful)

    def backward(
        self, grad: Tensor, grad_lse: Tensor | None, out: Tensor, kept: Tensor, saved: Tensor, dq: Tensor, dk: Tensor,
        dv: Tensor,
    ) -> None:  # fmt: skip
        """Fill the gradients."""
        slopes = None if grad_lse is None else grad_lse.unsqueeze(-1)
        # Who goes by queries leaves the gradient in 16 bits to who goes by keys, where products take no more of it.
        kind = plan(*self._lengths, self.mechanism)
        halved = kind != "whole" and self._precision == "fp16"
        narrow = torch.empty_like(grad, dtype=torch.float16) if halved else None
        x, dropout, sizes = self._arguments(
            {"grad": grad, "grad_lse": slopes, "narrow": narrow, "out": out, "dq": dq, "dk": dk, "dv": dv}
        )
        numbers = [sizes, *self._lengths, self.scale]
        narrowed = "grad" if narrow is None else "narrow"
        if kind == "whole":
            given = [*_pick(x, "grad grad_lse q k v mask lengths bounds"), dropout, kept]
            self._run("whole_backward", *given, *_pick(x, "dq dk dv"), *numbers)
        elif kind == "tiled":
            factors = saved.new_empty(*saved.shape[:-2], 4, saved.shape[-1])
            hashed = None if dropout is None else torch.empty_like(saved[..., 0, :], dtype=torch.int32)
            given = [*_pick(x, "grad grad_lse q k v out mask lengths bounds"), dropout, saved, factors, hashed]
            self._run("tiled_by_query", *given, *_pick(x, "narrow dq"), *numbers)
            given = [*_pick(x, f"{narrowed} grad_lse q k v mask lengths bounds"), dropout, saved, factors, hashed]
            self._run("tiled_by_key", *given, *_pick(x, "dk dv"), *numbers)
        else:
            dropped, changes = torch.empty_like(saved), torch.empty_like(saved)
            given = [*_pick(x, "grad grad_lse k v bounds"), dropout, kept, saved, dropped, changes]
            self._run("listed_by_query", *given, *_pick(x, "narrow dq"), *numbers)
            given = [*_pick(x, f"{narrowed} q lengths bounds"), dropout, kept, dropped, changes]
            self._run("listed_by_key", *given, self._room_for_rows(kept), *_pick(x, "dk dv"), *numbers)

    def _room_for_rows(self, kept: Tensor) -> Tensor:
        """(problems, tiles of keys, queries): of tiles as small as they may be."""
        queries, keys = self._lengths
        return kept.new_empty(kept.shape[:-2].numel(), -(-keys // SMALLEST), queries, dtype=torch.int16)

    def _run(self, name: str, *arguments: Any, **options: Any) -> None:
        """Launch a kernel with the constants that it asks for: a program for each problem, or tile of its rows."""
        launch = launch_for(name, max(self.q.shape[-1], self.v.shape[-1]), self._precision)
        for attempt in shrinking(launch, WORD if name == "listed_choice" else SMALLEST):
            try:
                self._start(name, attempt, *arguments, **options)
                return
            except OutOfResources as error:
                lacking = error
        raise lacking

    def _start(self, name: str, launch: Launch, *arguments: Any, **options: Any) -> None:
        kernel, programs = KERNELS[name], self.q.shape[:-2].numel()
        queries, keys = self._lengths
        if name.startswith("whole"):
            tile = {"Q": padded(queries), "K": padded(keys)}
        else:
            tile = {"Q": launch.queries, "K": launch.keys}
            programs *= -(-keys // launch.keys) if name.endswith("by_key") else -(-queries // launch.queries)
        constants = {key: value for key, value in (self._constants | tile).items() if key in kernel.arg_names}
        with torch.cuda.device_of(self.q):
            kernel[(programs,)](
                *arguments, **constants, **options, **launch.options,
                # score - largest must be zero for the largest, not what rounding the product took from it
                enable_fp_fusion=False,
            )  # fmt: skip

    def _arguments(self, tensors: dict[str, Tensor | None]) -> tuple[dict[str, Any], Any, tuple[int, ...]]:
        """All tensors as kernels take them, the dropout, and the sizes of the leading dimensions."""
        lead, mask, seed = self.q.shape[:-2], self.mask, self.dropout_seed
        numbers = None
        if mask is not None:  # its broadcast rows and columns get stride 0
            mask = mask.view(torch.uint8).expand(*mask.shape[:-2], *self._lengths)
        if seed is not None:
            seed = seed[(None,) * max(2 - seed.dim(), 0)]
            numbers = row_numbers(lead, seed, self._lengths[0])
        inputs = {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "mask": mask,
            "lengths": self.lengths,
            "seed": seed,
            "bounds": self.bounds,
        }
        sizes, given, numbers = arranged(lead, inputs | tensors, numbers)
        seeds = given.pop("seed")
        if seeds is None:
            return given, None, sizes
        bits = (dropout_threshold(self.dropout_p), 1 / (1 - self.dropout_p))
        return given, dropout_type(len(sizes))(seeds.data, *bits, *seeds[LEAD:], *numbers), sizes

    @property
    def _precision(self) -> str:
        return precision(self.tf32, bounded=self.bounds is not None)

    @property
    def _lengths(self) -> tuple[int, int]:
        return self.q.shape[-2], self.k.shape[-2]

    @property
    def _constants(self) -> dict[str, Any]:
        """What kernels are compiled for. A window or block beyond all keys is as good as any other such."""
        mechanism, keys = self.mechanism, self._lengths[1]
        d, dv = self.q.shape[-1], self.v.shape[-1]
        size = mechanism.size or 0
        most = min(size, keys) if mechanism.is_ranked else 0
        return {
            "MASK": "none" if self.mask is None else "keys" if self.mask.shape[-2] == 1 else "pairs",
            "KIND": mechanism.name,
            "WIDTH": min(size, 2 * LONGEST) if mechanism.is_local else 0,
            "GLOBALS": min(mechanism.num_globals, LONGEST),
            "MOST": most,
            "SINKS": min(mechanism.num_sinks, LONGEST),
            "WINDOW": min(mechanism.num_nearest, 2 * LONGEST),
            "W": -(-keys // WORD) if most else 0,
            "WORDS": padded(-(-keys // WORD)),
            "ROWS": padded(self._lengths[0]),
            "CAUSAL": self.causal,
            "RAGGED": self.ragged,
            "PRECISION": self._precision,
            "D": d,
            "DP": padded(d),
            "DV": dv,
            "DVP": padded(dv),
        }


def _pick(given: dict[str, Any], names: str) -> list[Any]:
    return [given[name] for name in names.split()]
