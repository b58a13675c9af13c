"""The kernels of `threshold` and `decode` go through Triton's compiler for an H200, with the launches that users get.

What they take of registers, stack and shared memory: pytest -s tests/attention/kernels/test_threshold_compile.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiling import run_compiled
from tests.conftest import DEVICE

SCRIPT = """
from semfocus.attention.kernels.decode import dispatch as decode
from semfocus.attention.kernels.threshold.dispatch import Call, _empty_results


def threshold(dtype, width, restricted):
    q, k = torch.zeros(1, 2, 2, 256, width, dtype=dtype), torch.zeros(1, 2, 256, width, dtype=dtype)
    mask = torch.ones(1, 2, 2, 256, 256, dtype=torch.bool) if restricted else None
    lengths = torch.zeros(1, 2, 2, 1, 1, dtype=torch.int32) if restricted else None
    hashes = torch.zeros(1, 2, 2, 256, 1, dtype=torch.int32) if restricted else None
    always = 3 if restricted else 0
    call = Call(q, k, k, mask, lengths, hashes, 64, always, always, not restricted, 0.1, 0.1 if restricted else 0.0)
    results = _empty_results(q, k, k)
    call.forward(*results)
    call.list_kept(*results[1:])
    call.backward(results[0], *results, *(torch.empty_like(tensor) for tensor in (q, k, k)))


def cache(dtype, width, keys, most, restricted, queries=1):
    q, k = torch.zeros(1, 2, 8, queries, width, dtype=dtype), torch.zeros(1, 2, keys, width, dtype=dtype)
    mask = torch.ones(1, 2, 8, queries, keys, dtype=torch.bool) if restricted else None
    lengths = torch.zeros(1, 2, 8, 1, 1, dtype=torch.int32) if restricted else None
    decode.launch(q, k, k, mask, lengths, most, True, 0.1)


dtype = getattr(torch, DTYPE)
threshold(dtype, WIDTH, RESTRICTED)
if WIDTH <= 128:
    for keys, most in ((4096, 64), (131072, 64), (131072, 2048)):
        cache(dtype, WIDTH, keys, most, RESTRICTED)
    cache(dtype, WIDTH, 4096, 512, RESTRICTED, queries=8)
for name, done in compiled:
    registers, stack, instructions = resources(done)
    print(name, registers, stack, done.metadata.shared, ",".join(sorted(instructions)))
"""
KERNELS = {"find_thresholds", "forward", "by_query", "by_key", "list_kept"}


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="on a GPU the other tests compile the kernels")
@pytest.mark.parametrize("restricted", [False, True], ids=["causal", "all restrictions"])
@pytest.mark.parametrize(
    ("dtype", "width"), [("bfloat16", 64), ("bfloat16", 128), ("float16", 128), ("bfloat16", 256), ("float32", 64),
                         ("float32", 128)]
)  # fmt: skip
def test_kernels_compile_for_an_h200_and_multiply_scores_by_one_instruction(
    tmp_path: Path, dtype: str, width: int, restricted: bool
) -> None:
    """Another one may round a sum otherwise: a backward pass would drop keys that the forward pass kept."""
    constants = f"DTYPE, WIDTH, RESTRICTED = {dtype!r}, {width}, {restricted}"
    told = [line.split(" ") for line in run_compiled(constants + SCRIPT, tmp_path).splitlines()]
    print(f"\n{dtype} {width}: kernel, registers, stack, shared memory, products")
    for line in told:
        print("  " + " ".join(line))
    products = {name: set(instructions.split(",")) for name, *_, instructions in told if instructions}
    assert set(products) == KERNELS | ({"score_keys"} if width <= 128 else set())
    for name, instructions in products.items():
        if dtype == "float32":
            assert instructions == {"mma.sync"}, name
        else:
            assert "wgmma" in instructions, name
            assert instructions == {"wgmma"} or name == "by_key", name  # whose other products have fewer rows
    assert max(int(shared) for *_, shared, _ in told) <= 227 * 1024
    assert max(int(stack) for _, _, stack, *_ in told) <= 1024
    for name, registers, _stack, shared, _ in told:
        if name == "score_keys":  # as many programs on a multiprocessor as the grid counts on, of 128 threads each
            assert 2 * (int(shared) + 1024) <= 228 * 1024
            assert 2 * 128 * int(registers) <= 2**16
