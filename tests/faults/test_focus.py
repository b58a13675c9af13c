"""Rows 70 to 72: padding, models focused in part, one selection however it is computed; and which test covers which.

70  padding anywhere in a row, cached or not: never changes what other tokens see
        positions::test_padding_anywhere_in_a_row_gives_what_its_tokens_give_alone
        answers::test_padding_within_a_row_changes_no_other_token
        answers::test_text_that_goes_on_behind_padding_in_the_cache_gives_what_it_gives_alone
71  a model that can be focused or observed only in part: named; asks for partial=True
        refusals::test_torchs_own_multihead_attention_inside_a_model_is_named_and_asks_for_partial
        refusals::test_a_model_partly_outside_the_registry_is_refused_and_the_part_inside_is_accepted
        unseen::test_attention_modules_without_a_captured_call_are_named
        unseen::test_attention_written_out_is_named_whatever_its_class_is_called
72  selection under grad and no_grad, recomputation, prefill and decode, any batch: the same set, to the bit
        here::test_the_same_keys_are_kept_with_and_without_a_gradient_and_when_recomputed
        here::test_the_same_keys_are_kept_in_any_batch_and_query_by_query
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from semfocus import attend
from semfocus.attention import parse_mechanism

TESTS = Path(__file__).parent.parent
HOMES = {
    "here": "faults/test_focus.py",
    "positions": "conformance/test_attention_positions.py",
    "answers": "integrations/test_answers.py",
    "refusals": "integrations/test_refusals.py",
    "unseen": "diagnostics/test_unseen.py",
}
MECHANISMS = [
    "topk:4", "bottomk:4", "topk:3+2s+3w", "topk:4~0.5+3r", "randomk:4+3r", "banded:5", "lsh:4", "routing:4",
]  # fmt: skip
DRAWN_BY_PLACE = ("topk:4~0.5+3r", "randomk:4+3r")


def test_the_table_above_names_tests_that_exist() -> None:
    table = ast.get_docstring(ast.parse(Path(__file__).read_text())) or ""
    assert [int(row) for row in re.findall(r"^(\d\d) {2}", table, re.MULTILINE)] == [70, 71, 72]
    for home, name in re.findall(r"(\w+)::(\w+)", table):
        assert f"def {name}(" in (TESTS / HOMES[home]).read_text(), f"{home}::{name} does not exist"


def drawn(batch: int, queries: int, keys: int) -> list[Tensor]:
    """q, k and v on a grid of sixteenths: products are exact, and many scores tie."""
    generator = torch.Generator().manual_seed(7)
    shapes = (batch, 2, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 8)
    return [(torch.randn(shape, generator=generator) * 4).round() / 16 for shape in shapes]


def kept(q: Tensor, k: Tensor, v: Tensor, mechanism: str, **options) -> Tensor:
    """(.., Lq, Lk) bool: the keys that each query keeps."""
    causal = options.pop("causal", True)
    _, info = attend(q, k, v, mechanism, causal=causal, return_info=True, **options)
    keep = torch.zeros(*info.indices.shape[:-1], k.shape[-2] + 1, dtype=torch.bool)
    return keep.scatter(-1, info.indices + 1, True)[..., 1:]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("keys", [40, 320])
def test_the_same_keys_are_kept_with_and_without_a_gradient_and_when_recomputed(mechanism, keys) -> None:
    q, k, v = drawn(2, keys, keys)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    with_gradient = kept(*leaves, mechanism)
    with torch.no_grad():
        assert torch.equal(kept(q, k, v, mechanism), with_gradient)
    with torch.inference_mode():
        assert torch.equal(kept(q, k, v, mechanism), with_gradient)
    out = checkpoint(lambda *inputs: attend(*inputs, mechanism, causal=True), *leaves, use_reentrant=False)
    out.square().sum().backward()
    recomputed = [leaf.grad for leaf in leaves]
    plain = torch.autograd.grad(attend(*leaves, mechanism, causal=True).square().sum(), leaves)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(recomputed, plain, strict=True))


@pytest.mark.parametrize("mechanism", [each for each in MECHANISMS if each not in DRAWN_BY_PLACE])
@pytest.mark.parametrize("keys", [40, 320])
def test_the_same_keys_are_kept_in_any_batch_and_query_by_query(mechanism, keys) -> None:
    q, k, v = drawn(5, keys, keys)
    whole = kept(q, k, v, mechanism)
    for rows in (slice(0, 1), slice(2, 5)):
        assert torch.equal(kept(q[rows], k[rows], v[rows], mechanism), whole[rows])
    assert torch.equal(kept(q[:, :1], k[:, :1], v[:, :1], mechanism), whole[:, :1])
    for query in (0, 3, 17, keys - 1):  # decoded behind the keys so far, as a prefill would have kept
        if parse_mechanism(mechanism).refuses(1, query + 1):
            continue
        before = slice(0, query + 1)
        one = kept(q[:, :, query : query + 1], k[:, :, before], v[:, :, before], mechanism)
        assert torch.equal(one[:, :, 0], whole[:, :, query, before])
    placed = {"q_positions": torch.arange(keys), "k_positions": torch.arange(keys)}
    assert torch.equal(kept(q, k, v, mechanism, **placed), whole)
    for backend in ("reference", "dense", "local" if mechanism.startswith("banded") else "chunked"):
        assert torch.equal(kept(q, k, v, mechanism, backend=backend), whole)
