"""Explicit positions: a mechanism keeps the same tokens wherever padding, unwritten keys and other texts stand.

Every registered mechanism on every backend that takes them. The wanted answer is always that of a text on its own,
without explicit positions: rows with padding are compared with what is left when the padding is cut out.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semfocus.attention.operator import attend
from semfocus.errors import UsageError
from tests.conformance.cases import MECHANISMS, Case, close, every_case
from tests.conftest import DEVICE

# Where the tokens of two texts of 7 and 5 keys stand among 11: padding before, between and behind them.
PLACES = ([0, 1, 2, 4, 5, 8, 9], [1, 4, 6, 7, 10])


def positions(places=PLACES, keys: int = 11) -> Tensor:
    """(rows, keys): 0, 1, 2, ... where a token stands, -1 elsewhere."""
    made = torch.full((len(places), keys), -1, device=DEVICE)
    for row, own in enumerate(places):
        made[row, own] = torch.arange(len(own), device=DEVICE)
    return made


def alone(case: Case, inputs, row: int, queries: list[int], keys: list[int], **options) -> list[Tensor]:
    """The oracle's answer for some queries and keys of one row."""
    q, k, v, grad = (tensor[row : row + 1] for tensor in inputs)
    return case.oracle((q[:, :, queries], k[:, :, keys], v[:, :, keys], grad[:, :, queries]), **options)


def draws_by_index(case: Case) -> bool:
    """Random choices follow the index of a key, so that cutting out padding changes what is drawn."""
    return case.mechanism.is_stochastic


@every_case
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_padding_anywhere_in_a_row_gives_what_its_tokens_give_alone(case, causal) -> None:
    if draws_by_index(case):
        pytest.skip("what is drawn depends on the index of a key")
    where = positions()
    for integers in (False, True):
        inputs = case.tensors(11, 11, integers=integers)
        inputs[2][where[:, None, :].expand(2, 3, 11) < 0] = float("nan")  # values of padding must not matter
        ours = case.run(inputs, q_positions=where, k_positions=where, causal=causal)
        for row, own in enumerate(PLACES):
            for mine, wanted in zip(ours, alone(case, inputs, row, own, own, causal=causal), strict=True):
                close(mine[row : row + 1, :, own], wanted)
                outside = [i for i in range(11) if i not in own]
                assert not mine[row, :, outside].any()


@every_case
def test_a_cache_that_is_not_full_gives_what_its_written_keys_give(case) -> None:
    if draws_by_index(case):
        pytest.skip("what is drawn depends on the index of a key")
    inputs = case.tensors(3, 11)
    written = positions(([0, 1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6]))
    queries = torch.tensor([[4, 5, 6], [2, 3, 4]], device=DEVICE)
    ours = case.run(inputs, q_positions=queries, k_positions=written, causal=True)
    for row, own in enumerate(([0, 1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6])):
        for number, (mine, wanted) in enumerate(
            zip(ours, alone(case, inputs, row, [0, 1, 2], own, causal=True), strict=True)
        ):
            close(mine[row : row + 1] if number < 2 else mine[row : row + 1, :, own], wanted)


@every_case
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_texts_packed_into_one_row_give_what_they_give_alone(case, causal) -> None:
    if draws_by_index(case):
        pytest.skip("what is drawn depends on the index of a key")
    if not causal and (case.mechanism.num_globals or case.mechanism.uses_positions):
        pytest.skip("what stands at the end of a text needs its length, and texts of one row differ in it")
    inputs = case.tensors(11, 11)
    texts = (list(range(6)), list(range(6, 11)))
    where = torch.tensor([*range(6), *range(5)], device=DEVICE)
    number = torch.tensor([0] * 6 + [1] * 5, device=DEVICE)
    ours = case.run(
        inputs, q_positions=where, k_positions=where, causal=causal, mask=number[:, None] == number[None, :]
    )
    for row in range(2):
        for own in texts:
            for mine, wanted in zip(ours, alone(case, inputs, row, own, own, causal=causal), strict=True):
                close(mine[row : row + 1, :, own], wanted)


@every_case
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dropout_p": 0.3}], ids=["", "causal", "dropout"])
def test_the_positions_that_are_taken_by_default_change_nothing_when_given(case, options) -> None:
    if options.get("dropout_p"):
        options = options | {"seed": torch.tensor(4, device=DEVICE)}
    inputs = case.tensors(7, 11)
    last = torch.arange(4, 11, device=DEVICE)
    for given in (
        {"q_positions": last, "k_positions": torch.arange(11, device=DEVICE)},
        {"q_positions": last[None]},
        {"k_positions": torch.arange(11, device=DEVICE, dtype=torch.int32).expand(2, 11)},
    ):
        for mine, wanted in zip(case.run(inputs, **given, **options), case.oracle(inputs, **options), strict=True):
            close(mine, wanted)


@every_case
def test_positions_go_with_masks_lengths_and_grouped_heads(case) -> None:
    q, k, v, grad = case.tensors(11, 11, lead=(2, 6))
    k, v = k[:, :2], v[:, :2]
    mask = torch.rand(2, 1, 11, 11, generator=torch.Generator().manual_seed(1)).to(DEVICE) > 0.3
    for options in ({}, {"mask": mask}, {"lengths": torch.tensor([6, 9], device=DEVICE), "causal": True}):
        where = {"q_positions": positions(), "k_positions": positions()} | options
        wanted = case.oracle((q, *(t.repeat_interleave(3, dim=1) for t in (k, v)), grad), **where)
        wanted = [*wanted[:2], *(spread.unflatten(1, (2, 3)).sum(dim=2) for spread in wanted[2:])]
        try:
            ours = case.run((q, k, v, grad), enable_gqa=True, **where)
        except pytest.skip.Exception:
            continue
        for mine, oracle in zip(ours, wanted, strict=True):
            close(mine, oracle)


@every_case
def test_the_kept_keys_under_positions_are_the_oracles(case) -> None:
    q, k, v, _ = case.tensors(11, 11, dtype=torch.float32, integers=True)
    for causal in (False, True):
        options = {"q_positions": positions(), "k_positions": positions(), "causal": causal, "return_info": True}
        try:
            _, mine = case.attend(q, k, v, **options)
        except pytest.skip.Exception:
            continue
        _, oracle = attend(q, k, v, case.mechanism, backend="reference", **options)
        assert torch.equal(mine.indices, oracle.indices)
        torch.testing.assert_close(mine.weights, oracle.weights)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_chosen_backend_takes_positions_for_long_rows(mechanism) -> None:
    case = Case(mechanism, "reference")
    q, k, v, _ = case.tensors(5, 400, lead=(2, 1), integers=True)
    written = torch.where(torch.arange(400, device=DEVICE) % 3 > 0, 0, -1)
    written = torch.where(written == 0, (written == 0).cumsum(0) - 1, -1)
    for causal in (False, True) if mechanism.serves_causal else (False,):
        options = {"q_positions": torch.tensor([200, 201, 50, 3, -1], device=DEVICE), "k_positions": written}
        out = attend(q, k, v, mechanism, causal=causal, **options)
        close(out, attend(q, k, v, mechanism, causal=causal, backend="reference", **options))
        assert not out[..., -1, :].any()


@pytest.mark.parametrize("backend", ["reference", "dense", "local"])
@pytest.mark.parametrize("mechanism", ["banded:2", "block_local:2", "shifted:2+3a"])
def test_a_query_behind_the_last_key_is_no_global_token(mechanism, backend) -> None:
    q, k, v, _ = Case(MECHANISMS[0], backend).tensors(1, 6)
    places = {"k_positions": torch.arange(6, device=DEVICE), "q_positions": torch.tensor([9], device=DEVICE)}
    _, info = attend(q, k, v, mechanism, backend=backend, return_info=True, **places)
    kept = {"banded:2": [4, 5], "block_local:2": [-1, -1], "shifted:2+3a": [0, 1]}[mechanism]  # 9 + 3 on a ring of 6
    assert (info.indices == torch.tensor(kept, device=DEVICE)).all()


@pytest.mark.parametrize("backend", ["reference", "dense", "chunked", "local"])
@pytest.mark.parametrize("mechanism", ["banded:3", "topk:1+2s", "topk:1+2w"])
def test_positions_that_repeat_among_the_keys_of_a_query_are_refused_where_keys_are_listed(mechanism, backend) -> None:
    q, k, v, _ = Case(MECHANISMS[0], backend).tensors(8, 8)
    repeated = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3], device=DEVICE)
    if (backend == "local") != mechanism.startswith("banded") and backend not in ("reference", "dense"):
        pytest.skip("not a backend for it")
    with pytest.raises(UsageError, match="positions repeat among the keys that one query may see"):
        attend(q, k, v, mechanism, backend=backend, k_positions=repeated, q_positions=repeated, return_info=True)
