"""Calls of `attend` like an earlier one: the same bits as by the long way, and only where nothing else differs."""

from __future__ import annotations

import inspect
from itertools import pairwise
from unittest import mock

import pytest
import torch
from torch import Tensor

from semfocus import TopK, attend
from semfocus.attention import operator, recall
from semfocus.attention.inspection import observers
from semfocus.errors import UsageError
from tests.conftest import DEVICE

KEYS = 1030  # from 1024 on the table of regimes says `decode`


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_known", {})


@pytest.fixture
def nothing_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is decided before the launches, which take Triton's interpreter long."""
    from semfocus.attention.kernels.decode.dispatch import Plan

    monkeypatch.setattr(Plan, "run", lambda *arguments: None)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def tensors(batch: int = 1, queries: int = 1, keys: int = KEYS) -> list[Tensor]:
    """Four heads of queries on two of keys."""
    return [drawn(batch, heads, n, 16, seed=n) for heads, n in ((4, queries), (2, keys), (2, keys))]


def recalls(*qkv: Tensor, **options) -> Tensor | None:
    """The answer without the long way; None if that would be taken."""

    class LongWay(Exception):
        pass

    with mock.patch.object(operator, "prepare_inputs", side_effect=LongWay):
        try:
            return attend(*qkv, **options)
        except LongWay:
            return None


MASKS = {"of keys": (2, 1, 1, KEYS), "of heads": (1, 4, 2, KEYS), "of pairs": (2, 4, 2, KEYS)}
CASES = {
    "plain": {}, "causal": {"causal": True}, "scaled": {"scale": 0.3}, "by its text": {"mechanism": "topk:5"},
    "lengths": {"lengths": torch.tensor([1029, 40])}, "short lengths": {"lengths": torch.tensor([-3, 0]).int()},
} | {f"mask {name}": {"mask": drawn(*shape, seed=7).cpu() > 0.5} for name, shape in MASKS.items()}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_second_call_is_recalled_and_launches_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same plan, on the same addresses, with the same strides of what is larger than 1."""
    from semfocus.attention.kernels.decode.dispatch import Plan

    launches = []

    def noted(plan, q, k, v, mask, lengths, strides, out, found, scale) -> None:
        places = [None if tensor is None else tensor.data_ptr() for tensor in (q, k, v, mask, lengths)]
        sizes = 2, 2, 2, 2, KEYS
        larger = [tuple(zip(sizes, of or (), strict=False)) for of in strides]
        launches.append((plan, places, larger, out.numel(), found.numel(), scale))

    monkeypatch.setattr(Plan, "run", noted)
    qkv = tensors(batch=2, queries=2)
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True} | {
        key: value.to(DEVICE) if isinstance(value, Tensor) else value for key, value in CASES[name].items()
    }
    assert recalls(*qkv, **options) is None
    first = attend(*qkv, **options)
    again = recalls(*qkv, **options)
    assert again is not None
    assert again.shape == first.shape
    assert again.dtype == first.dtype
    assert launches[0] == launches[1]
    assert len(launches) == 2


def test_a_second_call_gives_the_same_bits() -> None:
    qkv = tensors()
    mask = drawn(1, 4, 1, KEYS, seed=7) > 0.5
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True, "mask": mask}
    first = attend(*qkv, **options)
    again = recalls(*qkv, **options)
    assert again is not None
    assert torch.equal(again, first)


@pytest.mark.usefixtures("nothing_launched")
def test_another_number_of_keys_is_recalled_within_the_bounds_of_the_table() -> None:
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True}
    attend(*tensors(), **options)
    assert recalls(*tensors(keys=1100), **options) is not None
    assert recalls(*tensors(keys=1023), **options) is None


def test_heads_that_share_nothing_are_recalled_too() -> None:
    q, k, v = drawn(1, 2, 1, 16), drawn(1, 2, KEYS, 16, seed=1), drawn(1, 2, KEYS, 16, seed=2)
    first = attend(q, k, v, TopK(3), backend="triton")
    found = recalls(q, k, v, mechanism=TopK(3), backend="triton")
    assert found is not None
    assert torch.equal(found, first)


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": TopK(6)}, {"causal": True}, {"scale": 0.5}, {"backend": "dense"}, {"return_info": True},
        {"dropout_p": 0.1}, {"softcap": 2.0}, {"straight_through": True}, {"normaliser": "sigmoid:-2.5"},
        {"q_positions": torch.zeros(1, dtype=torch.int64)}, {"mask": torch.zeros(1, 1, 1, KEYS)},
        {"lengths": torch.tensor([1.0])}, {"lengths": torch.tensor(5)},
    ],
    ids=str,
)  # fmt: skip
def test_a_call_that_differs_in_anything_that_decides_takes_the_long_way(change) -> None:
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True}
    attend(*tensors(), **options)
    assert recalls(*tensors(), **options) is not None
    moved = {key: value.to(DEVICE) if isinstance(value, Tensor) else value for key, value in change.items()}
    assert recalls(*tensors(), **options | moved) is None


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_another_kind_take_the_long_way() -> None:
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True}
    q, k, v = tensors()
    attend(q, k, v, **options)
    for others in (
        (q.bfloat16(), k.bfloat16(), v.bfloat16()), (q.double(), k, v), (q[:0], k, v), (q[:, :3], k, v),
        (q, k.transpose(1, 2).contiguous().transpose(1, 2), v), (q, k, v[:, :, :-1]), (q[0], k[0], v[0]),
        [tensor.to("meta") for tensor in (q, k, v)], (q.to_sparse(), k, v), (None, k, v),
        (torch.nested.nested_tensor([q[0]]), k, v), (torch.nn.Parameter(q), k, v),
        (q.clone().requires_grad_(), k, v),
    ):  # fmt: skip
        assert recalls(*others, **options) is None
    with torch.no_grad():
        assert recalls(q.clone().requires_grad_(), k, v, **options) is not None


@pytest.mark.usefixtures("nothing_launched")
def test_observers_see_each_call_and_a_replaced_backend_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True}
    attend(*tensors(), **options)
    with mock.patch.object(operator, "observers", [None]):
        assert recalls(*tensors(), **options) is None
    assert not observers
    monkeypatch.setitem(operator.BACKENDS, "triton", operator.Backend(None, lambda *_: "it is away"))  # ty: ignore
    with pytest.raises(UsageError, match="it is away"):
        attend(*tensors(), **options)


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize("size", [(1, 1, 1, KEYS - 1), (3, 1, 1, KEYS), (1, 1, 5, KEYS)])
def test_a_mask_that_does_not_fit_is_refused_as_ever(size: tuple[int, ...]) -> None:
    options = {"mechanism": TopK(5), "backend": "triton", "enable_gqa": True}
    attend(*tensors(), **options, mask=torch.ones(1, 1, 1, KEYS, dtype=torch.bool, device=DEVICE))
    with pytest.raises(UsageError, match="mask has shape"):
        attend(*tensors(), **options, mask=torch.ones(size, dtype=torch.bool, device=DEVICE))


@pytest.mark.usefixtures("nothing_launched")
def test_calls_with_few_keys_or_by_other_kernels_are_not_kept() -> None:
    attend(*tensors(keys=40), TopK(5), backend="triton", enable_gqa=True)
    attend(*tensors(), TopK(5), backend="dense", enable_gqa=True)
    assert not recall._known


@pytest.mark.usefixtures("nothing_launched")
def test_the_calls_that_are_kept_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "MAX_KNOWN", 2)
    for scale in (0.1, 0.2, 0.3):
        attend(*tensors(), TopK(5), backend="triton", enable_gqa=True, scale=scale)
    assert len(recall._known) == 1


def test_a_kernel_is_launched_again_with_the_same_arguments_and_constants() -> None:
    from triton.compiler import CompiledKernel

    from semfocus.attention.kernels.relaunch import Relaunched

    seen = []

    class Compiled(CompiledKernel):
        def __init__(self) -> None:
            pass

        def __getitem__(self, grid):
            return lambda *arguments: seen.append(("again", grid, arguments))

    class Kernel:
        def __getitem__(self, grid):
            def run(*arguments, **constants):
                seen.append(("first", grid, arguments, constants))
                return Compiled()

            return run

    launch = Relaunched(Kernel())
    for variant in ("one", "one", "other"):
        launch(variant, (7, 1, 1), (1, 2), {"BLOCK": 16, "WIDE": True}, warps=4, stages=3)
    first = ("first", (7, 1, 1), (1, 2), {"BLOCK": 16, "WIDE": True, "num_warps": 4, "num_stages": 3})
    assert seen == [first, ("again", (7, 1, 1), (1, 2, 16, True)), first]


def test_what_a_kernel_is_compiled_for_does_not_grow_with_a_mask_and_a_whole_scale_is_no_constant() -> None:
    from semfocus.attention.kernels.decode import dispatch

    seen = []

    def noted(variant, grid, arguments, *others) -> None:
        seen.append((variant, arguments))

    q, k = drawn(1, 1, 1, 1, 16), drawn(1, 1, 70, 16)
    with mock.patch.multiple(dispatch, score_keys=noted, select=noted):
        for size in (81, 83, 96, 2**20):  # a mask of a larger cache, of which this is the beginning
            mask = torch.ones(1, 1, 1, 1, size, dtype=torch.bool, device=DEVICE)[..., :70]
            dispatch.launch(q, k, k, mask, None, 5, False, 1)
    variants = [variant for variant, _ in seen[::2]]
    assert variants[0] == variants[1] != variants[2] == variants[3]
    assert all(type(arguments[-1]) is float for _, arguments in seen[1::2])


def test_integers_are_told_apart_as_triton_does() -> None:
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from semfocus.attention.kernels.relaunch import kinds

    numbers = (0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31 - 16, 2**31, 2**31 + 1, 2**40)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    theirs = [native_specialize_impl(type(backend), number, False, True, True) for number in numbers]
    ours = kinds(numbers)
    for one, kind in zip(theirs, ours, strict=True):
        assert [other == one for other in theirs] == [other == kind for other in ours]


def test_constants_come_last_and_in_the_order_of_the_kernels() -> None:
    from semfocus.attention.kernels.decode import dispatch

    size = 2, 2, 4, 1, 4096, 128, 128, 512, True, True, True
    plan = dispatch.plan_for(dispatch.TILES, torch.device("cpu"), torch.bfloat16, *size)
    for launch, constants in (
        (dispatch.score_keys, plan.score_constants), (dispatch.select, plan.select_constants),
        (dispatch.mix, plan.mix_constants),
    ):  # fmt: skip
        names = list(inspect.signature(launch.kernel.fn).parameters)
        assert names[-len(constants) :] == list(constants)
        assert all(name.islower() for name in names[: -len(constants)])
        assert all(one != other for one, other in pairwise(names))
