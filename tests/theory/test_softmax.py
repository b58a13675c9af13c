"""The stability of a masked softmax: each proved form holds for random and for adversarial pairs of inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.theory import dispersion, separation, softmax_jacobian_norm, stability, weight_bound
from semfocus.theory.witnesses import nearest_softmax_pair

INF, E = math.inf, math.e
PROVED = ("simple", "sharp", "certified")
unit = st.floats(0, 1)


@st.composite
def pairs(draw, change_masks):
    """Two rows of scores with their k heaviest keys, corners of the feasible set included."""
    k, swaps = draw(st.integers(1, 5)), 0
    if change_masks:
        swaps = draw(st.integers(1, k))
    spare = draw(st.integers(0, 2)) if change_masks else 0
    delta, gap = draw(st.sampled_from([0.0, 0.05, 1.0, 4.0])), draw(st.sampled_from([1e-3, 0.1, 1.0, 4.0]))
    keys = k + swaps + spare
    keep = torch.zeros(2, keys, dtype=torch.bool)
    keep[0, :k], keep[1, swaps : k + swaps] = True, True
    corner = draw(st.booleans())
    heights = st.sampled_from([0.0, 1.0]) if corner else unit
    free = torch.tensor(draw(st.lists(heights, min_size=2 * keys, max_size=2 * keys)), dtype=torch.float64)
    kept = delta * free.view(2, keys)
    floor = torch.where(keep, kept, INF).amin(-1, keepdim=True)
    scores = torch.where(keep, kept, floor - gap - free.view(2, keys))
    scores[1] += draw(st.floats(-3, 3))
    return scores, keep


def check(scores, keep, forms, separated):
    spread = dispersion(scores, keep).amax().item()
    gap = separation(scores, keep).amin().item() if separated else None
    k = int(keep[0].sum())
    p = torch.where(keep, scores, -INF).softmax(-1)
    for norm in (1, 2):
        moved, apart = (torch.linalg.vector_norm(pair[0] - pair[1], ord=norm).item() for pair in (p, scores))
        for form in forms:
            bound = stability(spread, k, gap, norm, form)
            assert moved <= bound * apart * (1 + 1e-9) + 1e-12, (form, norm, moved / apart, bound)


@given(pairs(change_masks=True))
@settings(max_examples=200, deadline=None)
def test_heavy_hitters_never_move_more_than_each_proved_form_says(pair):
    check(*pair, PROVED, separated=True)


@given(pairs(change_masks=False))
@settings(max_examples=100, deadline=None)
def test_fixed_masks_never_move_more_than_each_proved_form_says(pair):
    check(*pair, PROVED, separated=False)


@given(pairs(change_masks=True))
@settings(max_examples=100, deadline=None)
def test_the_papers_form_holds_in_the_2_norm_and_in_the_1_norm_up_to_separation_1(pair):
    scores, keep = pair
    spread, gap = dispersion(scores, keep).amax().item(), separation(scores, keep).amin().item()
    k, p = int(keep[0].sum()), torch.where(keep, scores, -INF).softmax(-1)
    for norm in (1, 2) if gap <= 1 else (2,):
        moved, apart = (torch.linalg.vector_norm(pair[0] - pair[1], ord=norm).item() for pair in (p, scores))
        assert moved <= stability(spread, k, gap, norm, "paper") * apart * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(("delta", "k", "gap"), [(0.05, 3, None), (1.0, 3, 0.1), (3.0, 2, 1.0), (0.05, 2, 4.0)])
def test_a_search_comes_near_the_certified_form_and_exceeds_no_proved_one(delta, k, gap, norm):
    pair = nearest_softmax_pair(delta, k, gap, norm, steps=120)
    check(pair.scores, pair.keep, PROVED, separated=gap is not None)
    assert dispersion(pair.scores, pair.keep).amax().item() <= delta * (1 + 1e-9)
    if gap is not None:
        assert separation(pair.scores, pair.keep).amin().item() >= gap - 1e-9
    assert 0.45 < pair.ratio / stability(delta, k, gap, norm, "certified") <= 1 + 1e-6


def test_the_papers_form_fails_in_the_1_norm_at_k_5_delta_005_separation_4():
    scores = torch.tensor([[0.05, 0, 0, 0, 0, -4], [0.049, 0, 0, 0, 0, -4]], dtype=torch.float64)
    keep = torch.tensor([[True] * 5 + [False]] * 2)
    assert dispersion(scores, keep).amax() <= 0.05
    assert separation(scores, keep).amin() >= 4
    p = torch.where(keep, scores, -INF).softmax(-1)
    attained = (p[0] - p[1]).abs().sum().item() / 0.001
    assert stability(0.05, 5, 4.0, norm=1, form="paper") * 5 == pytest.approx(1.314, abs=1e-3)
    assert attained * 5 > 1.59
    check(scores, keep, PROVED, separated=True)


def test_the_search_finds_the_1_norm_counterexample_by_itself():
    pair = nearest_softmax_pair(0.05, 5, 4.0, norm=1, steps=60)
    assert pair.ratio * 5 > 1.59 > 1.32 > stability(0.05, 5, 4.0, norm=1, form="paper") * 5


def test_the_papers_form_fails_in_the_1_norm_for_fixed_masks_too():
    rows = torch.zeros(1, 5)
    assert softmax_jacobian_norm(rows, norm=1).item() == pytest.approx(1.6 / 5)
    assert stability(0.0, 5, norm=1, form="paper") == pytest.approx(1 / 5)


def test_forms_give_the_formulas_written_in_the_documentation():
    delta, k, gap = 0.7, 6, 0.3
    weight, jump = math.exp(delta) / k, max(1 / gap, math.exp(delta) / (delta + gap))
    expected = {
        ("paper", 2): weight * (1 + 1 / gap),
        ("paper", 1): weight * (1 + 1 / gap),
        ("simple", 2): weight * max(1, 1 / gap),
        ("simple", 1): weight * max(2, 1 + 1 / gap),
        ("sharp", 2): math.sqrt(math.exp(2 * delta) + jump**2) / k,
        ("sharp", 1): (2 * math.exp(delta) + jump) / k,
    }
    for (form, norm), value in expected.items():
        assert stability(delta, k, gap, norm, form) == pytest.approx(value)
    assert stability(delta, k, norm=2, form="paper") == pytest.approx(weight)
    for form in ("simple", "sharp"):
        assert stability(delta, k, norm=2, form=form) == pytest.approx(weight)
        assert stability(delta, k, norm=1, form=form) == 0.5
        assert stability(9.0, k, norm=2, form=form) == 0.5


def test_without_a_name_the_smallest_proved_form_is_given():
    assert stability(0.7, 6, 0.3) == stability(0.7, 6, 0.3, 2, "certified")
    assert stability(0.7, 6, norm=1) == stability(0.7, 6, None, 1, "certified")
    assert stability(6.0, 5, 4.0) == pytest.approx(0.5)
    assert stability(6.0, 5, 4.0, form="sharp") == pytest.approx(81.1, abs=0.05)


@given(st.floats(0, 6), st.integers(1, 40), st.floats(1e-3, 8) | st.none(), st.sampled_from([1, 2]))
@settings(max_examples=200, deadline=None)
def test_certified_is_the_smallest_of_the_proved_forms(delta, k, gap, norm):
    certified = stability(delta, k, gap, norm, "certified")
    assert certified <= min(stability(delta, k, gap, norm, form) for form in ("simple", "sharp")) * (1 + 1e-12)


def test_sharp_beats_simple_only_where_separation_is_small():
    assert stability(2.0, 5, 0.1, form="sharp") < stability(2.0, 5, 0.1, form="simple")
    assert stability(2.0, 5, 2.0, form="sharp") > stability(2.0, 5, 2.0, form="simple")


def test_a_separation_of_zero_gives_inf_and_an_infinite_one_stays_finite():
    for form in ("paper", *PROVED):
        for norm in (1, 2):
            assert stability(0.0, 5, 0.0, norm, form) == INF
            assert stability(1.0, 5, 0.0, norm, form) == INF
            assert math.isfinite(stability(1.0, 5, INF, norm, form))
            assert not math.isnan(stability(INF, 5, INF, norm, form))
            assert stability(800.0, 5, 0.5, norm, form) > 0


def test_tensors_give_tensors_and_numbers_give_floats():
    deltas = torch.tensor([0.0, 1.0, math.nan])
    gaps = torch.tensor([0.5, 0.0, 1.0])
    result = stability(deltas, 5, gaps)
    assert isinstance(result, torch.Tensor)
    assert result.dtype == torch.float64
    assert result[0].item() == pytest.approx(stability(0.0, 5, 0.5))
    assert result[1].item() == INF
    assert math.isnan(result[2].item())
    assert isinstance(stability(1.0, 5), float)
    assert isinstance(weight_bound(1, 5), float)


def test_the_weight_bound_is_attained_in_its_tight_form_and_vacuous_when_the_papers_passes_1():
    row = torch.tensor([2.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert row.softmax(-1)[0].item() == pytest.approx(weight_bound(2.0, 4, form="tight"))
    assert weight_bound(2.0, 4) == pytest.approx(E**2 / 4)
    assert weight_bound(2.0, 4) > 1 > weight_bound(2.0, 4, form="tight")


@given(st.lists(st.floats(-4, 4), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_no_weight_exceeds_either_weight_bound(row):
    scores = torch.tensor(row, dtype=torch.float64)
    spread, largest = (scores.max() - scores.min()).item(), scores.softmax(-1).max().item()
    for form in ("paper", "tight"):
        assert largest <= weight_bound(spread, len(row), form) * (1 + 1e-12)


@given(st.lists(st.sampled_from([-30.0, 0.0, 0.0, 1.0]) | st.floats(-3, 3), min_size=1, max_size=9), st.data())
@settings(max_examples=100, deadline=None)
def test_the_jacobian_norm_is_the_operator_norm_of_the_matrix_written_out(row, data):
    scores = torch.tensor(row, dtype=torch.float64)
    flags = st.lists(st.booleans(), min_size=len(row), max_size=len(row)).filter(any)
    keep = torch.tensor(data.draw(flags))
    p = torch.where(keep, scores, -INF).softmax(-1)
    jacobian = torch.diag(p) - p[:, None] * p[None, :]
    for norm in (1, 2):
        expected = torch.linalg.matrix_norm(jacobian, ord=norm).item()
        assert softmax_jacobian_norm(scores, keep, norm).item() == pytest.approx(expected, abs=1e-12)
        bound = stability(dispersion(scores, keep).item(), int(keep.sum()), norm=norm, form="certified")
        assert expected <= bound + 1e-12


def test_the_jacobian_norm_takes_batches_and_isolates_bad_rows():
    scores = torch.tensor([[[0.0, 1.0], [math.nan, 1.0]], [[5.0, 5.0], [2.0, 2.0]]])
    keep = torch.tensor([[[True, True], [True, True]], [[True, False], [False, False]]])
    for norm in (1, 2):
        result = softmax_jacobian_norm(scores, keep, norm)
        assert result.shape == (2, 2)
        assert result.isnan().tolist() == [[False, True], [False, False]]
        assert result[1].abs().max() < 1e-15, "one key or none: the softmax cannot move"
    single = softmax_jacobian_norm(torch.tensor([[3.0]]))
    assert single.tolist() == [0.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stability(-0.1, 5), "delta = -0.1 must be at least 0"),
        (lambda: stability(torch.tensor([1.0, -2.0]), 5), "delta = -2 must be at least 0"),
        (lambda: stability(1.0, 0), "k = 0 must be at least 1"),
        (lambda: stability(1.0, 5, -1.0), "separation = -1 must be at least 0 (a mask that"),
        (lambda: stability(1.0, 5, norm=3), "norm = 3 must be 1 or 2"),
        (lambda: stability(1.0, 5, norm="two"), "norm = 'two' must be 1 or 2"),
        (lambda: stability(1.0, 5, form="shrap"), "unknown form 'shrap'; did you mean 'sharp'?"),
        (lambda: stability("big", 5), "delta = 'big' must be a number"),
        (lambda: stability(None, 5), "delta = None must be a number"),
        (lambda: stability(True, 5), "delta = True must be a number"),
        (lambda: stability(1j, 5), "delta must hold real numbers"),
        (lambda: weight_bound(1.0, 0.5), "k = 0.5 must be at least 1"),
        (lambda: weight_bound(1.0, 5, form="loose"), "unknown form 'loose'"),
        (lambda: softmax_jacobian_norm(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool)), "keep has shape"),
        (lambda: softmax_jacobian_norm(torch.zeros(2, 3), norm=0), "norm = 0 must be 1 or 2"),
    ],
)
def test_invalid_input_is_refused_by_name(call, words):
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)
