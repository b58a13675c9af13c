"""Every public formula at the ends of its arguments: never NaN, ordered as the documentation says, shapes named."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.theory import (
    BlockNorms,
    HeadNorms,
    NormRows,
    aggregate,
    block_constants,
    certify,
    condition_w,
    condition_x,
    dispersion,
    layer_norm_constant,
    lipschitz_w,
    lipschitz_x,
    measure_head,
    mlp_constant,
    region,
    separation,
    sink_ratio,
    softmax_jacobian_norm,
    spectral_norm,
    stability,
    weight_bound,
)

INF = math.inf
SIZES = (0.0, 5e-324, 1e-30, 1.0, 50.0, 1000.0, 1e30, INF)
FINITE = SIZES[:-1]
KEYS = (1, 2, 50, 1e30)
FORMS = ("paper", "simple", "sharp", "certified")


def grids(*axes):
    """A tensor a name, each along an axis of its own."""
    return torch.meshgrid(*(torch.tensor(axis, dtype=torch.float64) for axis in axes), indexing="ij")


def grows(values, axis, sign=1):
    """Whether values never fall (sign 1) or never grow (sign -1) along an axis, up to rounding."""
    low, high = (values.narrow(axis, first, values.shape[axis] - 1) for first in (0, 1))
    if sign < 0:
        low, high = high, low
    return bool((low <= high * (1 + 1e-12)).all())


@pytest.mark.parametrize("norm", [1, 2])
def test_stability_is_never_nan_and_is_ordered(norm):
    delta, k, gap = grids(SIZES, KEYS, SIZES)
    heavy = {form: stability(delta, k, gap, norm, form) for form in FORMS}
    fixed = {form: stability(delta[..., 0], k[..., 0], None, norm, form) for form in FORMS}
    for form in FORMS:
        for bound in (heavy[form], fixed[form]):
            assert not bound.isnan().any(), form
            assert grows(bound, 0), f"{form} must not fall as the dispersion grows"
        assert grows(heavy[form], 2, sign=-1), f"{form} must not grow with the separation"
        assert (heavy[form][..., 0] == INF).all(), "masks that flip at separation 0"
    for wider in ("simple", "sharp"):
        assert (heavy["certified"] <= heavy[wider] * (1 + 1e-12)).all()
        assert (fixed["certified"] <= fixed[wider] * (1 + 1e-12)).all()
    assert heavy["certified"][:, :, 2:].isfinite().all(), "it stays finite as delta grows"


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("delta", [0.0, 1.0, 1000.0, INF])
def test_at_an_infinite_separation_the_mask_is_fixed(delta, norm):
    assert stability(delta, 5, INF, norm, "certified") == stability(delta, 5, None, norm, "certified")
    loose = INF if delta > 700 else math.exp(delta) / 5
    assert stability(delta, 5, INF, norm, "sharp") == pytest.approx((3 - norm) * loose)


def test_weight_bounds_are_never_nan_and_the_tight_one_is_a_weight():
    delta, k = grids(SIZES, KEYS)
    paper, tight = weight_bound(delta, k), weight_bound(delta, k, "tight")
    assert not paper.isnan().any()
    assert ((tight > 0) & (tight <= 1) & (tight <= paper * (1 + 1e-12))).all()
    assert grows(tight, 0)
    assert grows(tight, 1, sign=-1)


@pytest.mark.parametrize("form", ["paper", "certified"])
def test_constants_of_attention_in_w_are_never_nan_and_ordered(form):
    delta, xi, upsilon, gap = grids(SIZES, SIZES, SIZES, SIZES)
    heavy = lipschitz_w(delta, xi=xi, upsilon=upsilon, separation=gap, form=form)
    fixed = lipschitz_w(delta, xi=xi, upsilon=upsilon, form=form)
    assert not heavy.isnan().any()
    assert not fixed.isnan().any()
    assert (heavy[:, 0] == 0).all(), "tokens at 0 do not move"
    assert all(grows(heavy, axis) for axis in range(3))
    assert grows(heavy, 3, sign=-1)
    assert (lipschitz_w(delta, xi=xi, upsilon=upsilon, separation=gap) <= heavy).all()


@pytest.mark.parametrize("form", ["paper", "certified"])
@pytest.mark.parametrize("k", [None, *KEYS])
def test_constants_of_attention_in_x_are_never_nan_and_ordered(form, k):
    delta, size, beta, gap = grids(SIZES, SIZES, SIZES, SIZES)
    for gamma, xi, upsilon in (
        (size, 1.0, 1.0),
        (1.0, size, 1.0),
        (0.0, size, 1.0),
        (size, 0.0, 1.0),
        (1.0, 1.0, size),
    ):
        about = {"gamma": gamma, "xi": xi, "upsilon": upsilon, "k": k, "form": form}
        full = lipschitz_x(delta, **about)
        fixed = lipschitz_x(delta, sink_ratio=beta, **about)
        heavy = lipschitz_x(delta, sink_ratio=beta, separation=gap, **about)
        for bound in (full, fixed, heavy):
            assert not bound.isnan().any()
            assert grows(bound, 0)
            assert grows(bound, 2)
        assert grows(heavy, 3, sign=-1)
        assert (fixed <= heavy * (1 + 1e-12)).all()


def test_conditions_are_never_nan_and_ordered():
    full, heavy, gap, beta = grids(FINITE, FINITE, SIZES, SIZES)
    w, x = condition_w(full, heavy, gap), condition_x(full, heavy, gap, beta)
    for condition in (w, x):
        assert not condition.isnan().any()
        assert grows(torch.nan_to_num(condition, neginf=-1e308).clamp(min=0), 1)
    assert grows(w, 2, sign=-1)
    plane = region(1e30, 1e30, c1=[0.0, 1e-30, 1.0], c2=[0.0, 1e-30, 1.0])
    assert not (plane.w.isnan() | plane.x.isnan()).any()


@given(st.lists(st.sampled_from([-INF, -1e308, -1.0, 0.0, 1e-30, 1.0, 1e308, INF]), min_size=1, max_size=6), st.data())
@settings(max_examples=200, deadline=None)
def test_rows_of_scores_without_nan_give_no_nan(row, data):
    scores = torch.tensor([row], dtype=torch.float64)
    flags = st.lists(st.booleans(), min_size=len(row), max_size=len(row))
    keep, valid = (torch.tensor([data.draw(flags)]) for _ in range(2))
    spread, gap = dispersion(scores, keep), separation(scores, keep, valid)
    assert not spread.isnan().any()
    assert (spread >= 0).all()
    assert not gap.isnan().any()
    for norm in (1, 2):
        slope = softmax_jacobian_norm(scores, keep, norm)
        assert ((slope >= 0) & (slope <= 0.5 + 1e-12)).all()
    assert not math.isnan(aggregate(row, data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))))


def test_equal_scores_at_plus_infinity_lie_0_apart_and_share_the_weight():
    scores, half = torch.full((1, 4), INF), torch.tensor([[True, True, False, False]])
    assert dispersion(scores, half).tolist() == separation(scores, half).tolist() == [0.0]
    assert separation(scores, torch.zeros_like(half)).tolist() == [INF]
    assert softmax_jacobian_norm(scores, half).tolist() == pytest.approx([0.5])


def test_between_the_two_infinities_the_nearer_one_is_the_quantile():
    assert aggregate([-INF, INF], [0.0, 0.4, 0.5, 0.6, 1.0]).tolist() == [-INF, -INF, -INF, INF, INF]
    assert aggregate([-INF, 1.0, INF], [0.25, 0.5, 0.75]).tolist() == [-INF, 1.0, INF]


@pytest.mark.parametrize(("std", "epsilon", "gain"), list(itertools.product((0.0, 1e-300, 1.0, INF), repeat=3)))
def test_constants_of_layers_are_never_nan(std, epsilon, gain):
    assert not math.isnan(layer_norm_constant(std, epsilon, gain))
    assert not math.isnan(mlp_constant(std, gain, "gelu"))


@pytest.mark.parametrize("size", [0.0, 1e-300, 1.0, 1e200, INF])
@pytest.mark.parametrize("gap", [None, 0.0, 5e-324, 1.0, INF])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_certificates_are_never_nan(size, gap, order):
    names = ("queries", "keys", "query_slope", "key_slope", "values", "spread", "value_slope", "output", "in_degree")
    for zero in (None, *names):
        head = HeadNorms(**{name: 0.0 if name == zero else size for name in names}, separation=gap)
        rows = NormRows(std=size, epsilon=0.0)
        block = BlockNorms(
            heads=(head, head), tokens=size, first=rows, second=rows, mlp_tokens=size, mlp_in=size, mlp_out=size,
            hidden=size, order=order,
        )  # fmt: skip
        gains = block_constants(block).tokens
        constants = certify([block, block], pooled=4, head=size, features=size, final=rows)
        groups = [value for group in constants.blocks for value in vars(group).values()]
        everything = [
            *vars(gains).values(),
            constants.input,
            constants.embedding,
            constants.head,
            constants.parameters,
            *groups,
        ]
        assert not any(math.isnan(value) for value in everything)


def test_the_spectral_norm_of_a_matrix_with_an_infinite_element_is_infinite():
    assert spectral_norm([[1.0, INF], [0.0, 2.0]]) == INF
    assert spectral_norm([[1.0, -INF]]) == INF
    assert math.isnan(spectral_norm([[1.0, math.nan], [INF, 0.0]]))


THREE, FOUR = torch.ones(3), torch.ones(4)
HEAD = {"query": (torch.ones(2, 4), None), "key": (torch.ones(2, 4), None), "value": (torch.ones(2, 4), None)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stability(THREE, FOUR), "do not broadcast: delta (3,), k (4,); give"),
        (lambda: stability(1.0, FOUR, THREE), "k (4,), separation (3,)"),
        (lambda: weight_bound(THREE, FOUR), "delta (3,), k (4,)"),
        (lambda: lipschitz_w(THREE, xi=FOUR, upsilon=1), "delta (3,), xi (4,)"),
        (lambda: lipschitz_w(1.0, xi=1, upsilon=FOUR, separation=THREE), "upsilon (4,), separation (3,)"),
        (lambda: lipschitz_x(THREE, gamma=FOUR, xi=1, upsilon=1), "delta (3,), gamma (4,)"),
        (lambda: lipschitz_x(1.0, gamma=1, xi=1, upsilon=1, sink_ratio=THREE, k=FOUR), "sink_ratio (3,), k (4,)"),
        (lambda: condition_w(THREE, FOUR, 1.0), "delta_full (3,), delta_heavy (4,)"),
        (lambda: condition_x(1.0, 1.0, THREE, FOUR), "separation (3,), sink_ratio (4,)"),
        (lambda: sink_ratio(torch.ones(3, 2, 2, dtype=torch.bool), k=2 * FOUR), "keep (3,), k (4,)"),
        (
            lambda: measure_head(torch.ones(3, 4), **HEAD, output=torch.ones(4, 3), scale=1.0),
            "output (4, 3) do not fit",
        ),
        (
            lambda: measure_head(
                torch.ones(3, 4), **{**HEAD, "key": (torch.ones(3, 4), None)}, output=torch.ones(4, 2), scale=1.0
            ),
            "key (3, 4)",
        ),
        (
            lambda: measure_head(
                torch.ones(3, 4), **{**HEAD, "query": (torch.ones(2, 4), THREE)}, output=torch.ones(4, 2), scale=1.0
            ),
            "query bias has shape (3,); it must be (2,)",
        ),
        (lambda: spectral_norm(torch.ones(0, 3)), "weight has shape (0, 3)"),
        (lambda: stability(1.0, INF), "k = inf must be finite"),
    ],
)
def test_shapes_that_do_not_broadcast_are_refused_by_name(call, words):
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)
