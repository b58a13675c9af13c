"""What the short kernels refuse and why, their strided arguments, and their launches."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.kernels import backend
from semfocus.attention.kernels.short import arguments, configs
from semfocus.attention.kernels.short.dispatch import short_refuses
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.attention.normalisers import Sigmoid, Softmax
from tests.conftest import DEVICE


def inputs(
    mechanism="topk:5", queries=40, keys=40, width=16, dtype=torch.float32, device=DEVICE, **options
) -> AttentionInputs:
    q = torch.empty(2, queries, width, dtype=dtype, device=device)
    k = torch.empty(2, keys, width, dtype=dtype, device=device)
    return AttentionInputs(q, k, k, parse_mechanism(mechanism), options.pop("normaliser", Softmax()), **options)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (inputs(dtype=torch.float64), "float64"),
        (inputs(keys=1025), "at most 1024 long, not 1025"),
        (inputs(queries=2000), "not 2000"),
        (inputs(width=129), "at most 128 wide, not 129"),
        (inputs("topk:17", keys=65), "at most 16 keys a query, not 17"),
        (inputs("topk:5+1s", keys=65), "sinks or window of topk:5"),
        (inputs("randomk:5"), "no kernel for randomk:5"),
        (inputs(keys=0), "nothing to compute"),
        (inputs(queries=0), "nothing to compute"),
        (inputs(normaliser=Sigmoid()), "softmax only, not sigmoid"),
        (inputs(straight_through=True), "straight_through"),
        (inputs(bias=torch.zeros(40, 40)), "float mask"),
        (inputs(device=torch.device("meta")), "meta"),
    ],
)
def test_a_refusal_names_what_is_not_served(given, reason) -> None:
    assert reason in (short_refuses(given) or "")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (inputs(keys=2000, width=256), "at most 128 wide, not 256"),
        (inputs(keys=2000, dtype=torch.float64), "float64"),
        (inputs(keys=2000, scale=-1.0), "scale = -1.0 is not positive"),
        (inputs(keys=131_073, width=1), "at most 131072 long"),
        (inputs("banded:5", keys=2000), "at most 1024 long, not 2000"),
    ],
)
def test_where_neither_kind_of_kernel_serves_the_reason_is_that_of_the_one_meant_for_it(given, reason) -> None:
    assert reason in (backend.triton_refuses(given) or "")


def test_top_k_of_many_keys_in_long_rows_is_served_with_its_lists() -> None:
    assert backend.choose_kernels(inputs("topk:100", keys=2000)) == "threshold"
    assert backend.triton_refuses(inputs("topk:100", keys=2000), want_info=True) is None


def test_a_triton_that_is_too_old_is_refused_by_its_version(monkeypatch) -> None:
    monkeypatch.setattr("triton.__version__", "3.1.0+git")
    assert "need Triton 3.6 or newer, not 3.1.0+git" in (short_refuses(inputs()) or "")


def test_what_fits_is_not_refused() -> None:
    assert short_refuses(inputs(dtype=torch.bfloat16)) is None
    assert short_refuses(inputs("full", 1024, 1024, 128)) is None
    for mechanism, keys in (("topk:64", 64), ("topk:99", 9), ("topk:16", 1024), ("topk:5+2s+3w", 64)):
        assert short_refuses(inputs(mechanism, keys=keys)) is None


def test_lists_by_position_are_refused_and_lists_by_score_are_not() -> None:
    assert "return_info" in (short_refuses(inputs("banded:5"), want_info=True) or "")
    assert short_refuses(inputs(), want_info=True) is None


def test_without_triton_the_kernels_refuse_and_everything_else_works() -> None:
    script = """
import sys
sys.modules["triton"] = None
import torch
from semfocus.attention import TopK, attend
from semfocus.attention.kernels.short.dispatch import short_refuses
from semfocus.attention.normalisers import Softmax
from semfocus.attention.inputs import AttentionInputs
q = torch.zeros(1, 4, 16)
assert "semfocus[gpu]" in short_refuses(AttentionInputs(q, q, q, TopK(2), Softmax()))
assert attend(q, q, q, TopK(2)).shape == q.shape
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_dimensions_that_follow_each_other_in_every_tensor_are_merged() -> None:
    lead = torch.Size((3, 2, 4))
    plain, broadcast = torch.empty(3, 2, 4, 5, 6), torch.empty(3, 1, 1, 1, 1)
    sizes, given, _ = arguments.strided(lead, {"a": plain, "none": None})
    assert sizes == (24,)
    assert given["none"] is None
    assert tuple(given["a"])[1:] == (6, 1, 30)
    sizes, given, numbers = arguments.strided(lead, {"a": plain, "b": broadcast}, [0, 4 * 5, 5])
    assert sizes == (3, 8)
    assert tuple(given["a"])[1:] == (6, 1, 240, 30)
    assert tuple(given["b"])[3:] == (1, 0)
    assert numbers == (0, 5)
    assert arguments.strided(torch.Size((1, 1)), {"a": torch.empty(1, 1, 5, 6)})[0] == (1,)


def test_rows_too_far_apart_for_32_bits_are_brought_together() -> None:
    far = torch.empty_strided((1, 3, 16), (1, 2**30, 1), device="meta")
    _, given, _ = arguments.strided(torch.Size((1,)), {"a": far})
    assert given["a"].row == 16


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)])
def test_results_lie_in_memory_as_the_input_does(order) -> None:
    shape = (2, 3, 4, 5)
    stored = torch.empty([shape[d] for d in order])
    tensor = stored.permute([order.index(d) for d in range(4)])[..., :3]  # a slice has gaps, the result has none
    result = arguments.empty_like_layout(tensor, (2, 3, 4, 7))
    assert result.permute(order).is_contiguous()


def test_every_kernel_has_a_launch_for_every_width() -> None:
    from semfocus.attention.kernels.short.launch import KERNELS

    for name in KERNELS:
        for width in (1, 64, 65, configs.MAX_HEAD_DIM):
            for precision in ("tf32", "tf32x3"):
                launch = configs.launch_for(name, width, precision)
                assert launch.block_m >= (16 if launch.block_n else 1)  # tensor cores take no less
                assert launch.block_n >= 16 or name in ("listed_forward", "listed_by_query")


def test_the_longest_rows_of_half_precision_go_to_the_kernels_for_long_rows(monkeypatch) -> None:
    from semfocus.attention.kernels import backend
    from semfocus.attention.kernels.long import dispatch

    monkeypatch.setattr(backend, "short", lambda inputs, want_info: "short")
    monkeypatch.setattr(dispatch, "long", lambda inputs, want_info: "long")
    half = {"dtype": torch.bfloat16, "queries": 1024}
    assert backend.triton(inputs(keys=1024, **half)) == "long"
    assert backend.triton(inputs(keys=1023, **half)) == "short"
    assert backend.triton(inputs(keys=1024, queries=1024)) == "short"
    assert backend.triton(inputs("bottomk:5", keys=1024, **half)) == "short"  # which has no other kernel


def test_a_gpu_with_less_shared_memory_gets_smaller_tiles_and_the_same_answer(monkeypatch) -> None:
    from triton import OutOfResources

    from semfocus.attention.kernels.short import launch
    from tests.attention.kernels.short_cases import check, inputs

    taken: list[tuple[int, int]] = []

    class Small:
        """A kernel on a GPU where tiles of more than 512 scores do not fit."""

        def __init__(self, kernel) -> None:
            self.kernel, self.arg_names = kernel, kernel.arg_names

        def __getitem__(self, grid):
            def launch(*arguments, **options):
                if options["BLOCK_M"] * options["BLOCK_N"] > 512:
                    raise OutOfResources(options["BLOCK_M"] * options["BLOCK_N"], 512, "shared memory")
                taken.append((options["BLOCK_M"], options["BLOCK_N"]))
                return self.kernel[grid](*arguments, **options)

            return launch

    small = {name: Small(kernel) for name, kernel in launch.KERNELS.items() if name.startswith("tiled")}
    monkeypatch.setattr(launch, "KERNELS", launch.KERNELS | small)
    check(inputs(9, 70, lead=(1,)), mechanism="full")
    assert len(taken) == 3
    assert all(side >= 16 for tile in taken for side in tile)
    monkeypatch.setattr(Small, "__getitem__", lambda self, grid: lambda *arguments, **options: _lack())
    with pytest.raises(OutOfResources, match="shared memory"):
        check(inputs(9, 70, lead=(1,)), mechanism="full")


def _lack() -> None:
    from triton import OutOfResources

    raise OutOfResources(2, 1, "shared memory")


def test_smaller_tiles_are_never_smaller_than_a_kernel_takes() -> None:
    for launch, fewest in ((configs.Launch(64, 32, 4, 3), 32), (configs.Launch(32, 128, 8, 2), 16)):
        *_, last = configs.shrinking(launch, fewest)
        assert (last.block_m, last.block_n) == (16, fewest)
