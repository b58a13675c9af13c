"""What each mechanism keeps, compared with loops that follow the definition; text forms; the registry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus import Banded, BlockLocal, BottomK, Full, RandomK, TopK
from semfocus.attention import Mechanism, mechanism_names, parse_mechanism, register_mechanism
from semfocus.attention.positions import Positions
from semfocus.attention.selection import best_indices, topk_mask, topk_mask_by_sorting
from semfocus.errors import UsageError
from tests.conftest import DEVICE


def kept(mechanism: Mechanism, scores, valid=None, **options) -> list[list[int]]:
    keep = mechanism.keep(torch.as_tensor(scores, device=DEVICE), valid, **options)
    return [of_query.nonzero().flatten().tolist() for of_query in keep]


def window(position: int, width: int, keys: int, causal: bool) -> set[int]:
    """The definition: (w - 1) // 2 to the left, the rest to the right, moved inward at the borders."""
    if causal:
        return {j for j in range(position - width + 1, position + 1) if 0 <= j < keys}
    start = position - (width - 1) // 2
    while start > 0 and start + width > keys:
        start -= 1
    start = max(start, 0)
    return {j for j in range(start, start + width) if j < keys}


LOCAL_SHAPES: dict[str, st.SearchStrategy] = {
    "queries": st.integers(1, 12),
    "keys": st.integers(1, 12),
    "width": st.integers(1, 14),
    "num_globals": st.integers(0, 3),
    "causal": st.booleans(),
}


@settings(max_examples=150, deadline=None)
@given(**LOCAL_SHAPES)
def test_a_band_keeps_the_window_of_the_definition(queries, keys, width, num_globals, causal) -> None:
    num_globals = 0 if causal else num_globals
    kept_keys = kept(Banded(width, globals=num_globals), torch.zeros(queries, keys), causal=causal)
    own = max(keys - num_globals, 0)
    for i, own_keys in enumerate(kept_keys):
        position = i + keys - queries
        if position >= own:
            wanted = set(range(keys)) if not causal else window(position, width, keys, causal)
        else:
            wanted = window(position, width, own, causal) | set(range(own, keys))
        assert set(own_keys) == wanted
        if not causal and position < own:
            assert len(own_keys) == min(width, own) + keys - own


@settings(max_examples=100, deadline=None)
@given(**LOCAL_SHAPES)
def test_a_block_keeps_the_aligned_block_of_the_query(queries, keys, width, num_globals, causal) -> None:
    num_globals = 0 if causal else num_globals
    kept_keys = kept(BlockLocal(width, globals=num_globals), torch.zeros(queries, keys), causal=causal)
    for i, own_keys in enumerate(kept_keys):
        p = i + keys - queries
        wanted = {
            j
            for j in range(keys)
            if (j // width == p // width or max(j, p) >= keys - num_globals) and (j <= p or not causal)
        }
        assert set(own_keys) == wanted


def test_even_and_odd_bands_have_the_documented_offset() -> None:
    assert kept(Banded(4), torch.zeros(8, 8))[3] == [2, 3, 4, 5]
    assert kept(Banded(5), torch.zeros(8, 8))[3] == [1, 2, 3, 4, 5]
    assert kept(Banded(5), torch.zeros(8, 8))[0] == [0, 1, 2, 3, 4]
    assert kept(Banded(5), torch.zeros(8, 8))[7] == [3, 4, 5, 6, 7]
    assert kept(BlockLocal(5), torch.zeros(8, 8))[6] == [5, 6, 7]


def test_top_k_ties_go_to_the_lowest_index_and_zero_has_no_sign() -> None:
    assert kept(TopK(2), [[1.0, 1.0, 1.0]]) == [[0, 1]]
    assert kept(TopK(1), [[-0.0, 0.0]]) == [[0]]
    assert kept(TopK(1), [[0.0, -0.0]]) == [[0]]
    assert kept(TopK(2), [[0.0, 5.0, 0.0, 0.0]]) == [[0, 1]]
    assert kept(BottomK(2), [[0.0, 5.0, 0.0, 0.0]]) == [[0, 2]]


def test_top_k_takes_the_best_of_the_valid_keys_and_all_when_there_are_few() -> None:
    scores = torch.tensor([[3.0, 9.0, 1.0, 7.0]])
    assert kept(TopK(2), scores, torch.tensor([[True, False, True, True]], device=DEVICE)) == [[0, 3]]
    assert kept(TopK(3), scores, torch.tensor([[False, False, True, False]], device=DEVICE)) == [[2]]
    assert kept(TopK(3), scores, torch.zeros(1, 4, dtype=torch.bool, device=DEVICE)) == [[]]
    assert kept(TopK(9), scores) == [[0, 1, 2, 3]]
    assert kept(TopK(2), torch.tensor([[float("-inf"), 1.0, float("-inf")]])) == [[1]]


def test_sinks_and_window_come_in_addition_and_do_not_use_up_k() -> None:
    scores = torch.tensor([[9.0, 0.0, 8.0, 1.0, 2.0, 7.0, 3.0, 0.0]]).expand(8, 8)
    kept_keys = kept(TopK(2, sinks=1, window=3), scores)
    assert kept_keys[3] == [0, 2, 3, 4, 5, 6]  # sink 0, window 2-4, the best of the others: 5 and 6
    causal = kept(TopK(2, sinks=1, window=3), scores, causal=True)
    assert causal[6] == [0, 2, 3, 4, 5, 6]  # sink 0, window 4-6, the best two of 1, 2, 3
    assert causal[0] == [0]
    but_own = torch.tensor([True] * 3 + [False] + [True] * 4, device=DEVICE)
    assert kept(TopK(1, window=2), scores, but_own)[3] == [0, 4]


def test_nan_comes_first_so_that_it_shows() -> None:
    assert kept(TopK(2), [[1.0, float("nan"), 3.0]]) == [[1, 2]]
    assert kept(BottomK(2), [[1.0, float("nan"), 3.0]]) == [[0, 1]]


def test_random_k_draws_without_replacement_among_the_valid_and_evenly() -> None:
    valid = torch.tensor([True] * 6 + [False] * 2, device=DEVICE)
    scores = torch.zeros(4000, 8, device=DEVICE)
    keep = RandomK(3).keep(scores, valid)
    assert (keep.sum(dim=-1) == 3).all()
    assert not keep[:, 6:].any()
    shares = keep[:, :6].float().mean(dim=0)
    assert (shares - 0.5).abs().max() < 4 * (0.25 / 4000) ** 0.5
    assert torch.equal(keep, RandomK(3).keep(scores + 1, valid)), "the choice must not depend on the input"
    assert not torch.equal(keep, RandomK(3, seed=1).keep(scores, valid))


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(st.sampled_from([float("-inf"), -1.0, -0.0, 0.0, 1.0, 2.0]), min_size=1, max_size=12),
    mask=st.integers(0, 2**12 - 1),
    k=st.integers(1, 13),
)
def test_the_fast_choices_equal_the_definition_on_tied_rows(data, mask, k) -> None:
    scores = torch.tensor([data], device=DEVICE)
    candidates = torch.tensor([[bool(mask >> i & 1) for i in range(len(data))]], device=DEVICE)
    candidates &= scores > float("-inf")
    defined = topk_mask_by_sorting(scores, candidates, k)
    ranked = sorted((j for j in range(len(data)) if candidates[0, j]), key=lambda j: (-data[j], j))
    assert sorted(ranked[:k]) == defined[0].nonzero().flatten().tolist()
    assert torch.equal(topk_mask(scores, candidates, k) & candidates, defined)
    listed = best_indices(scores, candidates, k)
    assert sorted(listed[listed >= 0].tolist()) == sorted(ranked[:k])


def test_a_compiled_choice_takes_candidates_of_minus_infinity_and_no_key_that_is_none() -> None:
    low, high = float("-inf"), float("inf")
    priority = torch.tensor([[low, low, 2.0, low, high, low], [low] * 6, [1.0, low, 1.0, low, low, 3.0]], device=DEVICE)
    candidates = torch.tensor([[0, 1, 1, 1, 0, 1], [0, 0, 1, 0, 1, 1], [1, 1, 0, 0, 1, 1]], device=DEVICE).bool()
    defined = topk_mask_by_sorting(priority, candidates, 3)
    compiled = torch.compile(topk_mask, backend="eager", dynamic=False)
    assert torch.equal(compiled(priority, candidates, 3), defined)


@pytest.mark.parametrize(
    "mechanism", [Banded(3), Banded(4, globals=2), BlockLocal(3), BlockLocal(5, globals=1)], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_lists_of_positions_are_the_pattern_again(mechanism, causal) -> None:
    if causal and mechanism.globals:
        return
    for queries, keys in ((7, 7), (5, 9), (9, 5), (1, 4)):
        positions = Positions(queries, keys, DEVICE, 0, queries)
        pattern = mechanism.pattern(positions, causal)
        for i, own_keys in enumerate(mechanism.indices(positions, causal)):
            if i + keys - queries < keys - mechanism.globals:
                assert sorted(own_keys[own_keys >= 0].tolist()) == pattern[i].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("full", Full()),
        ("topk:5", TopK(5)),
        ("topk:8+4s+16w", TopK(8, sinks=4, window=16)),
        ("banded:9+1g", Banded(9, globals=1)),
        ("block_local:5", BlockLocal(5)),
        ("bottomk:3", BottomK(3)),
        ("randomk:3+7r", RandomK(3, seed=7)),
    ],
)
def test_text_and_value_are_two_forms_of_one_thing(text, value) -> None:
    assert parse_mechanism(text) == value
    assert str(value) == text
    assert hash(parse_mechanism(text)) == hash(value)


def test_the_text_form_forgives_case_space_and_order() -> None:
    assert parse_mechanism(" TopK:8+16w+4s ") == TopK(8, sinks=4, window=16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topkk:5", "did you mean 'topk'"),
        ("topk", "needs its size k"),
        ("full:3", "takes no size"),
        ("topk:x", "must be a whole number"),
        ("topk:-3", "must be a whole number"),
        ("topk:0", "TopK.k = 0 must be at least 1"),
        ("topk:5+2g", r"'2g' is not one of its extras.*s \(sinks\), w \(window\)"),
        ("topk:5+2s+3s", "at most once"),
        ("", "must look like"),
    ],
)
def test_a_wrong_text_is_refused_with_what_would_be_right(text, message) -> None:
    with pytest.raises(UsageError, match=message):
        parse_mechanism(text)


def test_each_mechanism_says_whether_it_depends_on_the_input() -> None:
    assert TopK(3).depends_on_input
    assert BottomK(3).depends_on_input
    assert not any(m.depends_on_input for m in (Full(), Banded(3), BlockLocal(3), RandomK(3)))


def test_the_papers_mechanisms_are_registered_and_a_name_is_taken_once() -> None:
    assert {"full", "banded", "block_local", "topk", "bottomk", "randomk"} <= {*mechanism_names()}
    with pytest.raises(UsageError, match="registered already"):
        register_mechanism(type("Other", (Full,), {"name": "full"}))
