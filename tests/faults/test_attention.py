"""Rows 23 to 44: bad input to attention is refused by name; and which test covers which row.

23  k beyond the length: all valid keys, k = L is full attention; a config refuses it
        attend::test_k_beyond_the_length_keeps_all_valid_keys
        attend::test_full_attention_equals_torchs_own_however_it_is_requested
        config::test_what_does_not_fit_the_task_is_refused
24  k below 1 or no whole number
        here::test_a_size_that_is_not_a_positive_whole_number_is_refused
25  even and odd bands: the documented offset, exactly w keys
        mechanisms::test_even_and_odd_bands_have_the_documented_offset
        mechanisms::test_a_band_keeps_the_window_of_the_definition
26  a length that is no multiple of the block: a short last block
        mechanisms::test_a_block_keeps_the_aligned_block_of_the_query
27  a fully masked query: zeros and zero gradients
        answers::test_a_query_without_keys_gives_zeros_and_zero_gradients
28  all scores -inf: the same
        attend::test_scores_of_minus_infinity_give_zeros_and_not_nan
29  fewer valid keys than k: only the valid ones
        mechanisms::test_top_k_takes_the_best_of_the_valid_keys_and_all_when_there_are_few
30  ties: the lowest index
        answers::test_outputs_and_gradients_equal_the_oracle_at_odd_sizes
        answers::test_the_kept_set_is_the_oracles_on_integer_inputs
31  a NaN score: its own query alone
        hazards::test_a_nan_score_reaches_its_own_row_alone
32  NaN in a dropped value: no effect
        hazards::test_nan_in_a_dropped_value_does_not_leak_and_in_a_kept_one_shows
        hazards::test_nan_in_the_value_of_one_key_reaches_the_rows_that_keep_it_without_a_mask_too
33  half-precision scores beyond 65504: finite
        hazards::test_half_precision_scores_beyond_65504_stay_finite
34  bfloat16, float16: at most twice eager's error
        answers::test_narrow_types_err_at_most_twice_as_much_as_eager
35  float64: kept, and gradcheck passes
        answers::test_autocast_behaves_as_torchs_own_attention
        answers::test_gradcheck_passes_away_from_ties
36  whole or complex numbers: TypeError
        here::test_bad_input_is_refused_with_the_argument_the_value_and_what_is_allowed
37  no batch entries, no queries, one query: empty or exact
        answers::test_empty_and_single_inputs_are_empty_or_exact
38  any stride: as contiguous
        hazards::test_any_stride_equals_contiguous_and_inputs_are_untouched
39  expanded input: as materialised, inputs untouched
        hazards::test_an_expanded_input_equals_a_materialised_one
40  mixed devices or types: an error that names both
        here::test_bad_input_is_refused_with_the_argument_the_value_and_what_is_allowed
41  gradients for a subset of q, k, v: the others None
        hazards::test_gradients_of_a_subset_equal_those_of_all
42  a later batch larger than the first: no stale mask
        hazards::test_a_larger_batch_after_a_smaller_one_meets_no_stale_mask
43  uninitialised memory: never read
        hazards::test_uninitialised_memory_is_never_read
44  backward repeated 50 times: the same bits
        hazards::test_repeated_runs_and_backwards_are_equal_to_the_bit
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from semfocus import Attention, Banded, BlockLocal, BottomK, Full, RandomK, Sigmoid, TopK, attend
from semfocus.errors import UsageError

TESTS = Path(__file__).parent.parent
HOMES = {
    "here": "faults/test_attention.py",
    "config": "test_config.py",
    "attend": "attention/test_attend.py",
    "mechanisms": "attention/test_mechanisms.py",
    "answers": "conformance/test_attention_answers.py",
    "hazards": "conformance/test_attention_hazards.py",
}


def test_the_table_above_names_every_row_and_tests_that_exist() -> None:
    table = ast.get_docstring(ast.parse(Path(__file__).read_text())) or ""
    rows = re.split(r"\n *(?=\d\d {2})", table)[1:]
    assert [int(row[:2]) for row in rows] == list(range(23, 45))
    for row in rows:
        named = re.findall(r"(\w+)::(\w+)", row)
        assert named, row
        for home, name in named:
            assert f"def {name}(" in (TESTS / HOMES[home]).read_text(), f"{home}::{name} does not exist"


Q = torch.zeros(2, 4, 6, 8)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(4, 6, 8), torch.zeros(4, 5, 8)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attend(Q.int(), Q.int(), Q.int()), TypeError, "q has dtype torch.int32"),
        (lambda: attend(Q, Q.to(torch.complex64), Q), TypeError, "k has dtype torch.complex64"),
        (lambda: attend(Q, Q.half(), Q), UsageError, "q and k differ in dtype: torch.float32 and torch.float16"),
        (lambda: attend(Q, Q, Q.to("meta")), UsageError, "q and v differ in device: cpu and meta"),
        (lambda: attend(Q, Q[..., :3], Q), UsageError, "head width"),
        (lambda: attend(Q, Q, Q[:, :, :3]), UsageError, "same number of keys; they have 6 and 3"),
        (lambda: attend(Q, Q[:, :3], Q[:, :3]), UsageError, "pass enable_gqa=True"),
        (lambda: attend(Q, Q[:, :3], Q[:, :3], enable_gqa=True), UsageError, "multiple of those of k and v"),
        (lambda: attend(Q[0, 0, 0], Q, Q), UsageError, r"q has shape \(8,\)"),
        (lambda: attend([1.0], Q, Q), TypeError, "q must be a tensor, not list"),
        (lambda: attend(nested(), nested(), nested()), UsageError, "q is a nested tensor.*to_padded_tensor.*lengths="),
        (lambda: attend(Q, Q, Q.to_sparse()), UsageError, r"v has the layout torch.sparse_coo.*v\.to_dense"),
        (lambda: attend(Q, Q, Q, 5), TypeError, "mechanism must be a Mechanism"),
        (lambda: attend(Q, Q, Q, "topk:0"), UsageError, "TopK.k = 0"),
        (lambda: attend(Q, Q, Q, normaliser=5), TypeError, "normaliser must be"),
        (lambda: attend(Q, Q, Q, normaliser="sigmiod"), UsageError, "unknown normaliser 'sigmiod'; did you mean 'sig"),
        (lambda: attend(Q, Q, Q, normaliser="sigmoid:x"), UsageError, "'x' must be a number .bias."),
        (lambda: attend(Q, Q, Q, normaliser="sigmoid:inf"), UsageError, "Sigmoid.bias = inf"),
        (lambda: attend(Q, Q, Q, normaliser="softmax:2"), UsageError, "softmax takes no number"),
        (lambda: attend(Q, Q, Q, dropout_p=1.0), UsageError, "dropout_p = 1.0 must be"),
        (lambda: attend(Q, Q, Q, scale=float("nan")), UsageError, "scale = nan"),
        (lambda: attend(Q, Q, Q, seed=torch.tensor(1.5)), UsageError, "seed = torch.float32"),
        (lambda: attend(Q, Q, Q, seed=torch.tensor(1), generator=torch.Generator()), UsageError, "not both"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(6, 6, dtype=torch.int64)), TypeError, "mask has dtype torch.int64"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(5, 6, dtype=torch.bool)), UsageError, r"mask has shape \(5, 6\)"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(9, 1, 4, 6, 6) > 0), UsageError, "does not broadcast"),
        (lambda: attend(Q, Q, Q, lengths=torch.tensor([1.0, 2.0])), TypeError, "whole numbers"),
        (lambda: attend(Q, Q, Q, lengths=torch.tensor([1, 2, 3])), UsageError, r"lengths has shape \(3,\)"),
        (
            lambda: attend(Q, Q, Q, k_positions=torch.zeros(6)),
            TypeError,
            "k_positions must be a tensor",
        ),
        (lambda: attend(Q, Q, Q, q_positions=torch.arange(5)), UsageError, r"q_positions has shape \(5,\).*\(2, 6\)"),
        (
            lambda: attend(Q, Q[:, :, :3], Q[:, :, :3], k_positions=torch.arange(3)),
            UsageError,
            "give q_positions as well",
        ),
        (lambda: attend(Q, Q, Q, Banded(3, globals=1), causal=True), UsageError, "banded:3.1g with causal=True"),
        (lambda: attend(Q, Q, Q, backend="trition"), UsageError, "unknown backend 'trition'"),
        (lambda: attend(Q, Q, Q, TopK(2), backend="local"), UsageError, "cannot serve this call: topk:2"),
        (lambda: attend(Q, Q, Q, Full(), backend="chunked"), UsageError, "does not choose a short list"),
        (
            lambda: attend(Q, Q, Q, TopK(2), normaliser="doubly", backend="chunked"),
            UsageError,
            "cannot serve this call: it",
        ),
        (lambda: attend(Q, Q, Q, normaliser=Sigmoid(), backend="sdpa"), UsageError, "softmax only"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(6) > 0, backend="sdpa"), UsageError, "masks and lengths"),
        (lambda: Sigmoid(bias=float("inf")), UsageError, "Sigmoid.bias = inf"),
        (lambda: Attention(0, 1, TopK(1)), UsageError, "d_model = 0"),
    ],
)
def test_bad_input_is_refused_with_the_argument_the_value_and_what_is_allowed(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), r"TopK\.k = 0 must be at least 1"),
        (lambda: TopK(-1), r"TopK\.k = -1 must be at least 1"),
        (lambda: TopK(2.0), r"TopK\.k = 2\.0 must be a whole number"),
        (lambda: TopK(True), r"TopK\.k = True must be a whole number"),
        (lambda: TopK("3"), r"TopK\.k = '3' must be a whole number"),
        (lambda: TopK(3, sinks=-1), r"TopK\.sinks = -1 must be at least 0"),
        (lambda: Banded(0), r"Banded\.width = 0 must be at least 1"),
        (lambda: Banded(3, globals=-1), r"Banded\.globals = -1 must be at least 0"),
        (lambda: BlockLocal(0), r"BlockLocal\.width = 0 must be at least 1"),
        (lambda: BottomK(0), r"BottomK\.k = 0 must be at least 1"),
        (lambda: RandomK(0), r"RandomK\.k = 0 must be at least 1"),
    ],
)
def test_a_size_that_is_not_a_positive_whole_number_is_refused(make, message) -> None:
    with pytest.raises(UsageError, match=message):
        make()
