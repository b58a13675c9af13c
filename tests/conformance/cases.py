"""Inputs, runs and comparisons of the conformance suite of attention: registered mechanisms on registered backends.

A `Case` is a mechanism on a backend, at the widest float type and the narrowest head that the backend takes on the
device under test. A backend that refuses a mechanism altogether makes no case; where it refuses a single call, that
test is skipped with the backend's own reason.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import product
from unittest import mock

import pytest
import torch
from torch import Tensor

from semfocus.attention import Normaliser, mechanism_names, normaliser_names, parse_mechanism, parse_normaliser
from semfocus.attention.base import size_fields
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kernels.backend import long_refuses, threshold_refuses
from semfocus.attention.kernels.short.configs import Launch
from semfocus.attention.mechanisms import Mechanism, mechanism_class
from semfocus.attention.normalisers import Softmax
from semfocus.attention.operator import BACKENDS, Backend, attend
from semfocus.attention.pairs import own_normaliser
from semfocus.errors import UsageError
from tests.conftest import DEVICE

RESULTS = ("out", "dq", "dk", "dv")


def long_rows(inputs: AttentionInputs, want_info: bool) -> tuple[Tensor, AttentionInfo | None]:
    """The kernels for long sequences, with tiles so small that the sequences of this suite fill several."""
    from semfocus.attention.kernels.long import dispatch

    tiles = dispatch.Tiles(queries=16, lanes=16, group=4, maxima_warps=4)
    with mock.patch.object(dispatch, "tiles_for", return_value=tiles):
        return dispatch.long(inputs, want_info)


def by_threshold(inputs: AttentionInputs, want_info: bool) -> tuple[Tensor, AttentionInfo | None]:
    """The kernels for any number of keys, with small tiles likewise."""
    from semfocus.attention.kernels.threshold import dispatch

    with mock.patch.object(dispatch, "launch_for", return_value=Launch(16, 16, 4, 1)):
        return dispatch.threshold(inputs, want_info)


# `triton` uses them for calls that its others do not serve, or serve slowly.
BACKENDS["long"] = Backend(long_rows, long_refuses)
BACKENDS["threshold"] = Backend(by_threshold, threshold_refuses)
KERNELS = ("triton", "long", "threshold")


def mechanism_examples() -> list[Mechanism]:
    """A few values of each registered mechanism: several sizes, and each mark and extra on its own and all together."""
    examples = []
    for name in mechanism_names():
        cls = mechanism_class(name)
        bases = [f"{name}:{size}" for size in (1, 3, 6)] if size_fields(cls) else [name]
        bases += [f"{base}{mark}0.5" for base in bases for mark in cls.marks]
        extras = [f"+2{letter}" for letter in cls.suffixes]
        examples += [parse_mechanism(base) for base in bases]
        examples += [parse_mechanism(bases[-1] + extra) for extra in extras]
        if len(extras) > 1:
            examples.append(parse_mechanism(bases[-1] + "".join(extras)))
    return examples


def normaliser_examples() -> list[Normaliser]:
    """Each registered normaliser, and with a number if it takes one: the first of a few that it does not refuse."""
    plain = [parse_normaliser(name) for name in normaliser_names()]
    examples = list(plain)
    for value in plain:
        if not value.__match_args__:
            continue
        taken = [form for number in ("0.5", "2.7", "7") if (form := _parsed(f"{value.name}:{number}")) is not None]
        assert taken, f"{value.name} takes none of the numbers that this suite tries"
        examples.append(taken[0])
    return examples


def _parsed(text: str) -> Normaliser | None:
    try:
        return parse_normaliser(text)
    except UsageError:
        return None


def tensors(queries: int, keys: int, *, lead=(2, 3), width=5, dtype=torch.float64, integers=False, seed=0):
    """q, k, v and a gradient of the output, drawn on the CPU so that every device sees the same numbers.

    Below float64, q and k lie on a grid of sixteenths: their products are exact, so that all agree on the kept set.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, grid: bool = False) -> Tensor:
        if integers:
            drawn = torch.randint(-3, 4, shape, generator=generator)
        else:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            drawn = (drawn * 16).round() / 16 if grid else drawn
        return drawn.to(DEVICE, dtype)

    grid = dtype != torch.float64
    q, k = draw(*lead, queries, width, grid=grid), draw(*lead, keys, width, grid=grid)
    return q, k, draw(*lead, keys, width + 2), draw(*lead, queries, width + 2)


def qkv(queries: int = 9, keys: int = 11, **options) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v alone."""
    return tensors(queries, keys, **options)[:3]


@dataclass(frozen=True)
class Case:
    """A mechanism on a backend, and the inputs it is tested with."""

    mechanism: Mechanism
    backend: str
    dtype: torch.dtype = torch.float64
    width: int = 5

    @property
    def interpreted(self) -> bool:
        """Whether a kernel is run step by step on the CPU."""
        return self.backend in KERNELS and DEVICE.type == "cpu"

    def fits(self, queries: int, keys: int) -> bool:
        """Whether the mechanism can choose among so many keys at all."""
        return self.mechanism.refuses(queries, keys) is None

    def tensors(self, queries: int, keys: int, **options):
        return tensors(queries, keys, **{"width": self.width, "dtype": self.dtype} | options)

    def attend(self, *qkv: Tensor, **options):
        """`attend` by this backend; where it refuses openly, the test is skipped."""
        try:
            return attend(*qkv, self.mechanism, backend=self.backend, **options)
        except UsageError as refusal:
            if "cannot serve" in str(refusal) or "causal=True" in str(refusal):
                pytest.skip(str(refusal))
            raise

    def keep(self, q: Tensor, k: Tensor, mask: Tensor | None = None, **options) -> Tensor:
        """The kept set by the definition."""
        scores = (q @ k.transpose(-1, -2)) * self.width**-0.5
        return self.mechanism.keep(scores, mask, queries=q, keys=k, **options)

    def run(self, inputs, **options) -> list[Tensor]:
        """Output and gradients."""
        q, k, v, grad = inputs
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = self.attend(*leaves, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    def as_oracle(self) -> Case:
        return Case(self.mechanism, "reference", self.dtype, self.width)

    def oracle(self, inputs, **options) -> list[Tensor]:
        return self.as_oracle().run(inputs, **options)

    def check(self, inputs, **options) -> None:
        """Output and gradients equal the oracle's in float64; narrower, they err at most twice as much as it does."""
        self.compare(self.run(inputs, **options), inputs, **options)

    def compare(self, ours: list[Tensor], inputs, **options) -> None:
        eager = self.oracle(inputs, **options)
        if inputs[0].dtype == torch.float64:
            for name, mine, oracle in zip(RESULTS, ours, eager, strict=True):
                close(mine, oracle, name)
        else:
            exact = self.oracle([tensor.double() for tensor in inputs], **options)
            err_at_most_twice_as_much(ours, eager, exact, self.slack(inputs, **options))

    def slack(self, inputs, scale: float | None = None, **options) -> float:
        """Roundings of float32 to allow on top, relative to the largest result."""
        if self.dtype == torch.float64 or not inputs[0].numel() or not inputs[1].numel():
            return 8.0
        # Three TF32 products leave 22 bits, others take exp(score - log-sum-exp): rounding that grows with the scores.
        scores = inputs[0].double() @ inputs[1].double().transpose(-1, -2)
        return 8.0 * max(1.0, scores.abs().max().item() * (scale or self.width**-0.5))


def close(mine: Tensor, wanted: Tensor, name: str = "") -> None:
    """Equal but for the order of summation."""
    rtol, atol = (1e-9, 1e-10) if wanted.dtype == torch.float64 else (1e-4, 1e-5)
    torch.testing.assert_close(mine, wanted, rtol=rtol, atol=atol, msg=lambda text: f"{name}: {text}")


def err_at_most_twice_as_much(ours: list[Tensor], eager: list[Tensor], exact: list[Tensor], slack: float) -> None:
    """Errors against float64 are at most twice those of plain code in the same type on the same device."""
    for name, mine, plain, truth in zip(RESULTS, ours, eager, exact, strict=True):
        assert mine.dtype == plain.dtype
        if not truth.numel():
            continue
        error, allowed = ((tensor.double() - truth).abs().max().item() for tensor in (mine, plain))
        rounding = slack * torch.finfo(torch.float32).eps * truth.abs().max().item()
        assert error <= 2 * allowed + rounding, (name, error, allowed)


def case_for(mechanism: Mechanism, backend: str) -> Case | None:
    """At the widest type and then the narrowest head that the backend serves on this device, if any."""
    for dtype, width in product((torch.float64, torch.float32, torch.bfloat16), (5, 16, 64)):
        q = torch.zeros(1, 2, 8, width, dtype=dtype, device=DEVICE)
        inputs = AttentionInputs(q, q, q, mechanism, own_normaliser(mechanism, Softmax()))
        if BACKENDS[backend].refuses(inputs, False) is None:
            return Case(mechanism, backend, dtype, width)
    return None


def marks(case: Case) -> tuple:
    """Triton's interpreter is slow: of what it runs, `make test` sees a sample; a GPU and `make test-all` see all."""
    sampled = case.backend == "triton" and str(case.mechanism) in ("full", "topk:3", "banded:3")
    return (pytest.mark.slow,) if case.interpreted and not sampled else ()


MECHANISMS, NORMALISERS = mechanism_examples(), normaliser_examples()
CASES = [
    pytest.param(case, id=f"{case.mechanism}-{case.backend}", marks=marks(case))
    for mechanism, backend in product(MECHANISMS, BACKENDS)
    if backend != "reference" and (case := case_for(mechanism, backend))
]
every_case = pytest.mark.parametrize("case", CASES)


def halves(*what: object) -> tuple[bool, ...]:
    """Sides of a choice that need not meet everything else: on the CPU one, each for half of the names; on a GPU both.

    Every mechanism, backend and option still meets both sides, among others.
    """
    return (zlib.crc32(" ".join(map(str, what)).encode()) % 2 == 1,) if DEVICE.type == "cpu" else (False, True)


def restrictions() -> dict[str, dict]:
    """Options of `attend` that take keys away, or weights, for 9 queries and 11 keys with lead (2, 3)."""
    generator = torch.Generator().manual_seed(5)
    keep = torch.rand(2, 1, 9, 11, generator=generator) > 0.4
    keep[0, :, 3] = False  # a query without keys
    keep[1, :, :, 4] = False  # a key that no query may keep
    bias = torch.randn(3, 9, 11, generator=generator, dtype=torch.float64)
    bias[:, 2] = float("-inf")
    bias[:, 5, ::2] = float("-inf")
    keep, bias = keep.to(DEVICE), bias.to(DEVICE)
    sinks = torch.tensor([0.5, -1.0, 3.0], dtype=torch.float64, device=DEVICE)
    return {
        "causal": {"causal": True},
        "mask": {"mask": keep},
        "mask for all queries": {"mask": keep[:, :, :1]},
        "mask for all keys": {"mask": keep[..., :1]},
        "one-dimensional mask": {"mask": keep[0, 0, 0]},
        "bias": {"mask": bias},
        "lengths": {"lengths": torch.tensor([4, 0], device=DEVICE)},
        "one length": {"lengths": torch.tensor(5)},
        "causal and mask and lengths": {
            "causal": True, "mask": keep, "lengths": torch.tensor([4, 11], device=DEVICE)
        },
        "causal and bias": {"causal": True, "mask": bias},
        "scale": {"scale": 0.37},
        "causal and scale 0": {"causal": True, "scale": 0.0},
        "causal and negative scale": {"causal": True, "scale": -0.37},
        "dropout": {"dropout_p": 0.4},
        "softcap": {"softcap": 0.7},
        "softcap and bias": {"softcap": 0.7, "mask": bias},
        "sinks": {"sinks": sinks},
        "sinks and softcap and mask and causal": {"sinks": sinks, "softcap": 2.5, "mask": keep, "causal": True},
        "sinks and dropout": {"sinks": sinks, "dropout_p": 0.4},
    }  # fmt: skip
