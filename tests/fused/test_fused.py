"""The fused kernels give what the plain model gives: outputs, gradients and dropout, at odd sizes, for every member.

On a CPU they run in Triton's interpreter. The oracle is the plain model in float64; an error may be twice as large as
that of the plain model in float32, or a few roundings where that happens to be exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from semfocus.config import AttentionConfig, ModelConfig
from semfocus.counter_rng import fold_in
from semfocus.fused import fused_parts, refuses
from semfocus.model.forward import forward
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.head import apply_head
from semfocus.model.inputs import build_inputs
from semfocus.model.layers import embed
from semfocus.spec import Spec, initial
from tests.conformance.cases import DEVICE

ROUNDING = 2e-6
SLOW = ("block_local:4", "bottomk:3", "topk:1")


def spec_of(mechanism: str = "topk:3", width: int = 9, **shape: object) -> Spec:
    sizes = {"d_model": 16, "d_mlp": 16, "blocks": 2, "dropout": 0.2} | shape
    return Spec(ModelConfig.model_validate(sizes), AttentionConfig(mechanism=mechanism), 4, 3, width)


def parts_of(spec: Spec) -> ForwardFns:
    parts = fused_parts(spec, DEVICE)
    assert parts is not None, refuses(spec, DEVICE)
    return parts


def trained(
    spec: Spec, parts: ForwardFns, dtype: torch.dtype, rows: int = 3, padded: bool = False, members: slice = slice(3),
    larger: dict[str, Any] | None = None, slope: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    """Logits of a training step of these of three members, and the gradient of every parameter.

    `larger` maps the ends of parameter names to factors; `slope` is a factor of the loss.
    """
    matrix = torch.stack([initial(spec, seed) for seed in range(3)][members]).to(DEVICE, dtype)
    for name, view in spec.layout.split(matrix).items():
        view.mul_(math.prod(factor for end, factor in (larger or {}).items() if name.endswith(end)))
    leaves = {name: view.requires_grad_() for name, view in spec.layout.split(matrix).items()}
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, spec.vocab_size, (3, rows, spec.seq_len), generator=generator)
    lengths = torch.randint(1, spec.seq_len + 1, (3, rows), generator=generator)
    tokens, seen = build_inputs(tokens[members].to(DEVICE), lengths[members].to(DEVICE), spec)
    seeds = fold_in(
        torch.arange(3, device=DEVICE)[members] + 2**33, torch.tensor(7, device=DEVICE), spec.num_dropout_sites
    )
    logits = forward(leaves, tokens, seen if padded else None, spec, seeds, parts)
    slopes = torch.linspace(-1, 1, logits[0].numel(), dtype=torch.float64, device=DEVICE).view_as(logits[0]).to(dtype)
    return [logits.detach(), *torch.autograd.grad((logits * slopes * slope).sum(), list(leaves.values()))]


def check(spec: Spec, rounding: float = ROUNDING, **how: object) -> float:
    """The largest error, relative to the largest entry."""
    exact = trained(spec, EAGER, torch.float64, **how)
    plain = trained(spec, EAGER, torch.float32, **how)
    ours = trained(spec, parts_of(spec), torch.float32, **how)
    worst = 0.0
    for name, a, b, c in zip(["logits", *spec.layout.shapes], ours, plain, exact, strict=True):
        size = c.abs().max().item()
        error, allowed = (a - c).abs().max().item(), 2 * (b - c).abs().max().item() + rounding * size
        assert error <= allowed, (name, error, allowed, size)
        worst = max(worst, error / size)
    return worst


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_members_of_several_mechanisms_are_each_computed_by_their_own(padded: bool) -> None:
    mixture = tuple((AttentionConfig(mechanism=name), 1) for name in ("topk:3", "full", "banded:3"))
    mixed = dataclasses.replace(spec_of("topk:3"), mixture=mixture)
    check(mixed, padded=padded)
    together = trained(mixed, parts_of(mixed), torch.float32, padded=padded)
    for i, (attention, _) in enumerate(mixture):
        spec = spec_of(attention.mechanism)
        alone = trained(spec, parts_of(spec), torch.float32, padded=padded, members=slice(i, i + 1))
        for ours, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[i : i + 1], expected, rtol=1e-4, atol=1e-5)


def test_mechanisms_whose_kernels_differ_in_kind_are_not_mixed() -> None:
    long = spec_of("topk:3", width=100)
    mixture = (AttentionConfig(mechanism="topk:3"), 1), (AttentionConfig(mechanism="full"), 2)
    assert "one kind of kernel" in (refuses(dataclasses.replace(long, mixture=mixture), DEVICE) or "")


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_a_training_step_gives_the_plain_models_logits_and_gradients(mechanism: str) -> None:
    check(spec_of(mechanism))


@pytest.mark.parametrize(
    "shape",
    [
        {"d_model": 24, "d_mlp": 40},
        pytest.param({"heads": 2}, marks=pytest.mark.slow),
        {"heads": 2, "head_width": "split"},
        {"dropout": 0.0},
        {"first_norm_exact": True},
        pytest.param({"pooling": "cls"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_odd_widths_heads_and_options(shape: dict) -> None:
    check(spec_of(**shape))


def test_padding_is_masked_as_the_plain_model_masks_it() -> None:
    check(spec_of(), padded=True)


@pytest.mark.parametrize("rows", [1, 5])
def test_positions_that_do_not_fill_a_tile_and_positions_of_several_tiles(rows: int) -> None:
    check(spec_of(width=17), rows=rows)


SIZES = [  # weights as training may leave them, and gradients as losses may send them
    {"larger": {"qkv.weight": 4.0, "mlp_in.weight": 1e3}},
    {"larger": {"o.weight": 1e-6, "mlp_out.weight": 1e-4}},
    {"larger": {"qkv.bias": 30.0, "mlp_in.bias": 30.0}},
    {"slope": 1e-12},
    {"slope": 1e12},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_large_and_small_weights_and_gradients_are_no_less_exact(sizes: dict) -> None:
    check(spec_of("full", blocks=1), rows=1, **sizes)


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(
    ("mechanism", "width"), [("full", 9), ("topk:3", 9), pytest.param("full", 80, marks=pytest.mark.slow)]
)
def test_with_tf32_products_take_eleven_bits(mechanism: str, width: int) -> None:
    assert check(spec_of(mechanism, width), rounding=4e-3) > 1e-5


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_with_tf32_no_size_of_weights_and_gradients_is_beyond_range(sizes: dict) -> None:
    # A hidden unit near zero may change sign: the tolerance detects overflow only.
    check(spec_of("full", blocks=1), rounding=0.1, rows=1, **sizes)


@pytest.mark.parametrize(
    "mechanism",
    ["full", "topk:3", "banded:3+1g", "banded:3", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_rows_longer_than_a_tile(mechanism: str) -> None:
    check(spec_of(mechanism, width=70, blocks=1), rows=1, padded=True)


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("mechanism", ["topk:3", pytest.param("full", marks=pytest.mark.slow)])
def test_with_tf32_rows_longer_than_a_tile_have_padding_too(mechanism: str) -> None:
    assert check(spec_of(mechanism, width=80, blocks=1), rounding=4e-3, rows=1, padded=True) > 1e-5


def test_padding_that_a_smaller_tile_passed_over_gives_no_weights_to_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from semfocus.attention.kernels.short.configs import LAUNCHES, Launch

    monkeypatch.setitem(LAUNCHES, "tiled_forward/fp16x3", {64: Launch(16, 16, 4, 1)})
    monkeypatch.setitem(LAUNCHES, "tiled_by_query/fp16x3", {64: Launch(16, 16, 4, 1)})
    check(spec_of("full", width=70, blocks=1), rows=1, padded=True, larger={"qkv.weight": 30.0}, rounding=1e-5)


@pytest.mark.parametrize(
    ("mechanism", "width"),
    [
        ("topk:3", 9),
        ("full", 70),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("full", 9), ("banded:3", 70))),
    ],
)
def test_no_gradient_is_no_gradient_at_low_temperatures_too(mechanism: str, width: int) -> None:
    spec = spec_of(mechanism, width, blocks=1)
    spec = Spec(spec.model, AttentionConfig(mechanism=mechanism, inverse_temperature=16.0), 4, 3, width)
    for gradient in trained(spec, parts_of(spec), torch.float32, rows=1, slope=0.0)[1:]:
        assert (gradient == 0).all()


def test_a_member_that_is_not_finite_spoils_no_other() -> None:
    spec = spec_of(blocks=1)
    sound = trained(spec, parts_of(spec), torch.float32)
    infinite = torch.tensor([1.0, math.inf, 1.0], device=DEVICE).view(3, 1, 1)
    lost = trained(spec, parts_of(spec), torch.float32, larger={"qkv.weight": infinite})
    for ours, theirs in zip(lost, sound, strict=True):
        assert torch.equal(ours[[0, 2]], theirs[[0, 2]])
    assert not lost[0][1].isfinite().any()


@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
@pytest.mark.parametrize("width", [9, 70])
def test_nan_weights_are_to_be_seen_whichever_keys_they_score(mechanism: str, width: int) -> None:
    spec = spec_of(mechanism, width)
    matrix = torch.stack([initial(spec, 0)]).to(DEVICE)
    spec.layout.split(matrix)["blocks.0.qkv.weight"][0, 0, 0] = math.nan  # of q alone: the values are sound
    tokens = torch.zeros(1, 1, spec.length, dtype=torch.int64, device=DEVICE)
    assert forward(spec.layout.split(matrix), tokens, None, spec, None, parts_of(spec)).isnan().all()


def errors_of_projections(spec: Spec, **how: Any) -> list[float]:
    """Relative errors of the gradients of each block's q, k and v weights, for one sequence of one member."""
    exact, ours = (
        trained(spec, parts, dtype, rows=1, members=slice(1), **how)
        for parts, dtype in ((EAGER, torch.float64), (parts_of(spec), torch.float32))
    )
    pairs = [
        pair
        for name, a, b in zip(spec.layout.shapes, ours[1:], exact[1:], strict=True)
        if name.endswith("qkv.weight")
        for pair in zip(a.chunk(3, dim=-1), b.chunk(3, dim=-1), strict=True)
    ]
    return [((mine - wanted).norm() / wanted.norm()).item() for mine, wanted in pairs]


@pytest.mark.usefixtures("tf32")
def test_a_gradient_at_one_position_of_a_long_row_loses_no_bits() -> None:
    """Bounds of dq, dk and dv that follow from the weights would be too large by 2^30."""
    spec = spec_of("full", width=400, pooling="cls", dropout=0.0, d_model=64, d_mlp=64)
    assert max(errors_of_projections(spec)) < 1e-3


@pytest.mark.usefixtures("tf32")
def test_what_all_values_have_in_common_cancels_though_products_are_rounded() -> None:
    """The gradients of q and k depend on differences of values only: a large bias of the values must not show."""
    spec = spec_of("full", width=150, pooling="cls", dropout=0.0, d_model=64, d_mlp=64, blocks=1)
    assert max(errors_of_projections(spec, larger={"qkv.bias": 20.0})) < 2e-3


def test_a_second_backward_pass_does_not_depend_on_the_first() -> None:
    spec = spec_of()
    leaf = torch.stack([initial(spec, 0)]).to(DEVICE).requires_grad_()
    tokens = torch.arange(spec.length, device=DEVICE).view(1, 1, -1) % 4
    logits = forward(spec.layout.split(leaf), tokens, None, spec, None, parts_of(spec)).sum()
    (alone,) = torch.autograd.grad(logits, leaf, retain_graph=True)
    torch.autograd.grad(logits * 1e9, leaf, retain_graph=True)
    assert torch.equal(torch.autograd.grad(logits, leaf)[0], alone)


def test_autocast_is_not_for_these_kernels() -> None:
    spec = spec_of(blocks=1)
    whole = trained(spec, parts_of(spec), torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        cast = trained(spec, ForwardFns(parts_of(spec).embed, parts_of(spec).block, _float_read_out), torch.float32)
    torch.testing.assert_close(cast[0], whole[0])


def _float_read_out(*arguments: Any) -> Tensor:
    with torch.autocast(DEVICE.type, enabled=False):
        return apply_head(*arguments)


def test_a_member_learns_the_same_alone_and_the_same_bits_every_time() -> None:
    spec = spec_of()
    whole, again = (trained(spec, parts_of(spec), torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    alone = trained(spec, parts_of(spec), torch.float32, members=slice(1, 2))
    for ours, theirs in zip(alone, whole, strict=True):
        torch.testing.assert_close(ours[0], theirs[1], rtol=1e-4, atol=1e-5)


def test_evaluation_gives_the_plain_models_logits_and_keeps_no_graph() -> None:
    spec = spec_of()
    matrix = torch.stack([initial(spec, seed) for seed in range(2)]).to(DEVICE)
    tokens, _ = build_inputs(
        torch.arange(36, device=DEVICE).view(2, 2, 9) % 4, torch.full((2, 2), 9, device=DEVICE), spec
    )
    parameters = spec.layout.split(matrix)
    ours = forward(parameters, tokens, None, spec, None, parts_of(spec))
    torch.testing.assert_close(ours, forward(parameters, tokens, None, spec))
    assert not ours.requires_grad


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"d_model": 128}, "d_model is at most 64, not 128"),
        ({"heads": 8}, "heads * head_dim is at most 64, not 128"),
        ({"norm": "post"}, "LayerNorm stands before"),
        ({"activation": "gelu"}, "ReLU, not gelu"),
    ],
)
def test_a_model_that_the_kernels_do_not_serve_is_refused_with_the_reason(changed: dict, reason: str) -> None:
    spec = spec_of(**changed)
    assert reason in (refuses(spec, DEVICE) or "")
    assert fused_parts(spec, DEVICE) is None


@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [("topk:20", "lists at most 16 keys a query, not 20"), ("topk:3+2s", "sinks"), ("topk:3+2w", "window")],
)
def test_attention_that_the_kernels_do_not_serve_is_refused_with_the_reason(mechanism: str, reason: str) -> None:
    assert reason in (refuses(spec_of(mechanism, width=200), DEVICE) or "")


def test_a_large_vocabulary_is_looked_up_by_the_plain_model() -> None:
    spec = dataclasses.replace(spec_of(), vocab_size=200)
    assert parts_of(spec).embed is embed


def test_a_gpu_with_little_shared_memory_is_left_to_the_compiler() -> None:
    reason = refuses(spec_of(), torch.device("cuda"), shared_memory=lambda device: 90_000)
    assert "98304 bytes of shared memory, and cuda has 90000" in (reason or "")


def test_a_gpu_with_less_shared_memory_runs_without_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import OutOfResources

    from semfocus.fused.kernels import KERNELS

    class Small:
        """A kernel on a GPU where tiles of several stages do not fit."""

        def __init__(self, kernel: Any) -> None:
            self.kernel, self.arg_names = kernel, kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def start(*arguments: Any, **options: Any) -> None:
                if options["num_stages"] > 1:
                    raise OutOfResources(2, 1, "shared memory")
                self.kernel[grid](*arguments, **options)

            return start

    for name in ("proj_mlp_forward", "proj_mlp_backward", "ln_qkv_backward"):
        monkeypatch.setitem(KERNELS, name, Small(KERNELS[name]))
    check(spec_of(blocks=1), rows=1)
