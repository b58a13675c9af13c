"""Scores at the edge: huge, constant, masked, NaN, of one query; and what the sentences of a diagnosis say of them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus.diagnostics import diagnose
from tests.diagnostics.models import Fixed, sdpa_model, tokens


@pytest.mark.parametrize(("size", "dtype"), [(1e10, torch.float32), (3e38, torch.float32), (1e300, torch.float64)])
def test_scores_of_any_finite_size_are_reported(size: float, dtype: torch.dtype) -> None:
    class Huge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, size * torch.sign(x), x, scale=1.0)

    wide = torch.linspace(-1, 1, 80, dtype=dtype).reshape(1, 1, 80, 1).expand(80, -1, -1, -1)
    diagnosis = diagnose(Huge(), [wide], k=3)
    assert diagnosis.whole.not_finite == 0
    if dtype is torch.float32:
        assert diagnosis.whole.at("delta_full", "100") == pytest.approx(2 * size, rel=1e-6)
        assert diagnosis.whole.at("delta_full", "95") == pytest.approx(2 * size, rel=0.1)
    else:
        assert diagnosis.conditions()["95"].w == math.inf
        assert "delta_full" in diagnosis.to_dict()["whole"]["conditions"]["95"]["infinite"]
    assert "nan" not in (str(diagnosis) + diagnosis.to_json()).lower()


def test_k_equal_to_the_length_is_reported_to_drop_nothing() -> None:
    diagnosis = diagnose(sdpa_model(), [tokens()], k=9)
    assert diagnosis.whole.at("separation") == math.inf
    assert diagnosis.whole.at("top_share", "100") == pytest.approx(1.0)
    assert any("nothing would be dropped" in line for line in diagnosis.sentences())
    json.dumps(diagnosis.to_dict(), allow_nan=False)


def test_constant_scores_give_an_infinite_bound_and_never_nan() -> None:
    diagnosis = diagnose(Fixed(torch.ones(1, 1, 5, 2)), [()], k=2)
    cell = diagnosis.conditions()["100"]
    assert (cell.separation, cell.w, cell.x) == (0.0, math.inf, math.inf)
    described = diagnosis.to_dict()
    text = json.dumps(described, allow_nan=False)
    assert "NaN" not in text
    assert set(described["whole"]["conditions"]["100"]["infinite"]) == {"w", "x"}
    assert any("infinite" in line for line in diagnosis.sentences())
    assert "inf" in str(diagnosis)


def test_one_query_can_be_diagnosed() -> None:
    diagnosis = diagnose(Fixed(torch.ones(1, 1, 1, 2), torch.randn(1, 1, 6, 2)), [()], k=2)
    assert diagnosis.whole.queries == 1
    assert diagnosis.sentences()


def test_masked_queries_and_nan_scores_are_left_out_and_reported() -> None:
    q = torch.randn(1, 2, 6, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    q[0, 1, 4] = math.nan
    diagnosis = diagnose(Fixed(q), [(mask,)], k=2)
    assert diagnosis.whole.empty == 2
    assert diagnosis.whole.not_finite == 1 + 5 - 1  # its own query, and every query that sees its key
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert any("NaN or infinite" in line for line in diagnosis.sentences())
    assert any("may see no key" in line for line in diagnosis.sentences())


def test_a_model_of_nan_scores_is_reported_without_numbers() -> None:
    diagnosis = diagnose(Fixed(torch.full((1, 1, 4, 2), math.nan)), [()], k=2)
    assert diagnosis.whole.queries == 0
    assert diagnosis.whole.at("delta_full") is None
    assert any("No query could be counted" in line for line in diagnosis.sentences())
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert str(diagnosis)


def test_sentences_distinguish_sharp_heads_from_flat_ones() -> None:
    sharp, flat = torch.eye(8) * 40, torch.zeros(8, 8)
    q = torch.stack([sharp, flat]).unsqueeze(0)
    k = torch.eye(8).expand(1, 2, 8, 8)
    lines = diagnose(Fixed(q, k), [()], k=2).sentences()
    assert any("change little in 1 of 2 heads" in line and "layer 0 (head 0)" in line for line in lines)
    assert any("bite in 1 of 2 heads" in line and "layer 0 (head 1)" in line for line in lines)
    assert any(line.startswith("95 % of the weight") and "k = 8" in line for line in lines)
