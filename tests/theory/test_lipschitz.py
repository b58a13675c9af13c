"""Constants of one attention layer in W and in X, and the paper's conditions with its 32 numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.analysis.table6 import PUBLISHED
from semfocus.errors import UsageError
from semfocus.randomness import stream
from semfocus.theory import (
    condition_w,
    condition_x,
    dispersion,
    lipschitz_w,
    lipschitz_x,
    region,
    separation,
    sink_ratio,
)
from semfocus.theory.looseness import steepest

INF = math.inf

# The task's name in docs/theory.md; W and X as the formulas give them for Table 6 of arXiv 2506.14095, by percentile.
CONDITIONS = {
    "listops": ("ListOps", (0.9703, 0.6885, 0.5639, 0.5651), (0.8982, 0.6736, 0.5864, 0.6117)),
    "parity": ("Parity", (0.7041, 0.7586, 0.8030, 1.2200), (0.7225, 0.8076, 0.8617, 1.2863)),
    "even_pairs": ("Even Pairs", (3.1737, 1.9757, 1.3146, 1.7990), (3.0245, 2.1020, 1.4238, 1.8975)),
    "missing_duplicate": ("Missing Duplicates", (1.5310, 1.0881, 0.6658, 1.1427), (1.5286, 1.1520, 0.7184, 1.2039)),
}
CELLS = [
    (task, *cell)
    for task, (_, *conditions) in CONDITIONS.items()
    for cell in zip(*PUBLISHED[task][1], *conditions, strict=True)
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}-{cell[1]}")
def test_the_conditions_give_the_papers_numbers_to_four_digits(cell):
    _, full, heavy, gap, degree, w, x = cell
    assert round(condition_w(full, heavy, gap), 4) == w
    assert round(condition_x(full, heavy, gap, degree / 5), 4) == x


def test_the_documentation_shows_the_same_numbers():
    text = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    for task, w, x in CONDITIONS.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| {task} | W "))
        assert [float(cell) for cell in re.findall(r"\d+\.\d{4}", row)] == list(w)
        row = next(line for line in text.splitlines() if line.startswith(f"| {task} | X "))
        assert [float(cell) for cell in re.findall(r"\d+\.\d{4}", row)] == list(x)


def test_with_a_sink_ratio_of_at_least_one_listops_keeps_its_verdict():
    assert round(condition_x(8.61, 3.51, 0.016, 1.0), 4) == 0.9576
    assert round(condition_x(18.5, 6.74, 0.005, 1.0), 4) == 0.6856


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}-{cell[1]}")
def test_the_conditions_say_which_of_the_papers_constants_is_smaller(cell):
    _, full, heavy, gap, degree, w, x = cell
    size = {"upsilon": 2.0, "xi": 1.0, "form": "paper"}
    of_full, of_heavy = lipschitz_w(full, **size), lipschitz_w(heavy, separation=gap, **size)
    assert (of_heavy < of_full) == (w < 1)
    size["gamma"] = full / 2
    of_full, of_heavy = lipschitz_x(full, **size), lipschitz_x(heavy, sink_ratio=degree / 5, separation=gap, **size)
    assert (of_heavy < of_full) == (x < 1)


def test_by_the_certified_constants_in_w_heavy_hitters_never_win():
    for delta in (0.0, 1.0, 9.0):
        full = lipschitz_w(delta, xi=1.5, upsilon=2.0)
        assert full == pytest.approx(2.0 * 1.5**3)
        for gap in (0.1, 1.0, 2.0, 50.0, INF):
            assert lipschitz_w(0.0, xi=1.5, upsilon=2.0, separation=gap) == pytest.approx(full * max(1, 2 / gap))


def test_the_constants_are_the_formulas_written_in_the_documentation():
    d, g, b, gap, k = 0.4, 3.0, 1.5, 0.5, 5
    e = math.exp(d)
    assert lipschitz_w(d, xi=2, upsilon=3, form="paper") == pytest.approx(24 * e)
    assert lipschitz_w(d, xi=2, upsilon=3, separation=gap, form="paper") == pytest.approx(24 * e * 2 * 3)
    x = {"gamma": 3.0, "xi": 1.0, "upsilon": 1.0}
    assert lipschitz_x(d, **x, form="paper") == pytest.approx(e * (2 * g + 1))
    heavy = {"sink_ratio": b, "separation": gap}
    assert lipschitz_x(d, **x, **heavy, form="paper") == pytest.approx(e * (2 * g * (1 + b) * 3 + b))
    assert lipschitz_x(d, **x, sink_ratio=b) == pytest.approx(b * e * (2 * g + 1) + g)
    assert lipschitz_x(d, **x, **heavy) == pytest.approx(e * (2 * g * (1 + b) * 3 + b))
    tight = b * k / (1 + (k - 1) / e)
    assert lipschitz_x(d, **x, sink_ratio=b, separation=20.0, k=k) == pytest.approx(tight * (2 * g + 1) + g)
    assert lipschitz_x(d, **x, sink_ratio=b, separation=1.0, k=1) == pytest.approx(b + g * (2 + 2 * b))
    assert lipschitz_x(0.0, **x) == pytest.approx(2.25 * g + 1)
    assert lipschitz_x(5.0, **x) == pytest.approx(math.exp(5) * (2 * g + 1) + g)


def attention(x, w, keep=None):
    scores = x.T @ w @ x
    keep = torch.ones_like(scores, dtype=torch.bool) if keep is None else keep(scores)
    return x @ torch.where(keep, scores, -INF).softmax(-1).T, scores, keep


def heaviest(k):
    return lambda scores: torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(k, -1).indices, True)


def test_the_papers_constant_in_x_fails_for_full_attention_and_the_certified_one_holds():
    """Three tokens at +1, one at -1 and W a swap of the two axes: equal scores, so that delta is 0."""
    g = 10.0
    x = torch.tensor([[-1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    w = g * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    moved = x.clone()
    moved[1, 0] = 1e-6
    (before, scores, keep), (after, scores_after, _) = attention(x, w), attention(moved, w)
    delta = max(dispersion(scores, keep).amax().item(), dispersion(scores_after, keep).amax().item())
    assert delta < 1e-4
    slope = (after - before).norm(dim=0).sum().item() / 1e-6
    arguments = {"gamma": g, "xi": moved.norm(dim=0).max().item(), "upsilon": 1.0}
    assert slope > 22.5 > 21.1 > lipschitz_x(delta, **arguments, form="paper")
    assert slope <= lipschitz_x(delta, **arguments, form="certified")
    assert lipschitz_x(delta, **arguments, form="certified") == pytest.approx(23.5, rel=1e-3)


@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 5.0]), st.sampled_from([1e-3, 0.1, 1.0]))
@settings(max_examples=100, deadline=None)
def test_random_pairs_never_move_more_than_the_certified_constants(seed, gamma, apart):
    draw = torch.from_numpy(stream(seed, "test/attention").uniform((4, 3, 5)) * 2 - 1)
    x, other = draw[0] / draw[0].norm(dim=0).max(), draw[0] + apart * draw[1]
    other = other / max(1.0, other.norm(dim=0).max().item())
    w, w_other = (
        gamma * m[:, :3] / torch.linalg.matrix_norm(m[:, :3], ord=2) for m in (draw[2], draw[2] + apart * draw[3])
    )
    sizes = {"xi": 1.0, "upsilon": 1.0}
    for k in (5, 2):
        keep = None if k == 5 else heaviest(k)
        start = attention(x, w, keep)
        for of, end in (("w", attention(x, w_other, keep)), ("x", attention(other, w, keep))):
            delta = max(dispersion(s, m).amax().item() for _, s, m in (start, end))
            gap = None if k == 5 else min(separation(s, m).amin().item() for _, s, m in (start, end))
            moves = (end[0] - start[0]).norm(dim=0)
            if of == "w":
                distance = torch.linalg.matrix_norm(w - w_other, ord=2).item()
                assert moves.max().item() <= lipschitz_w(delta, separation=gap, **sizes) * distance * (1 + 1e-9)
                continue
            sinks = None if k == 5 else max(sink_ratio(m).item() for _, _, m in (start, end))
            for count in (None, k):
                bound = lipschitz_x(delta, gamma=gamma, sink_ratio=sinks, separation=gap, k=count, **sizes)
                assert moves.sum().item() <= bound * (x - other).norm(dim=0).sum().item() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mechanism", "of", "gamma", "k", "near"),
    [
        ("full", "w", 1.0, None, 0.98),
        ("full", "x", 10.0, None, 0.85),
        ("heavy", "w", 1.0, 2, 0.9),
        ("heavy", "x", 1.0, 2, 0.2),
    ],
)
def test_a_search_comes_near_each_certified_constant_and_exceeds_none(mechanism, of, gamma, k, near):
    witness = steepest(mechanism, of, gamma=gamma, k=k, steps=150)
    assert near < witness.ratio <= 1.0
    assert witness.ratio == pytest.approx(witness.slope / witness.bound)


@pytest.mark.parametrize(
    ("of", "gamma", "k", "length", "width", "near"),
    [("w", 0.3, 1, 3, 2, 0.9), ("w", 3.0, 3, 5, 2, 0.3), ("x", 0.3, 1, 3, 3, 0.5), ("x", 3.0, 2, 5, 3, 0.1)],
)
def test_pairs_whose_masks_change_do_not_break_the_constants_of_heavy_hitters(of, gamma, k, length, width, near):
    """With k = 1 the weights are constant: all that a change of W does, it does by changing masks."""
    witness = steepest("heavy", of, gamma=gamma, k=k, length=length, width=width, steps=60)
    assert near < witness.ratio <= 1.0


def test_the_search_refutes_the_papers_constant_in_x_by_itself():
    assert steepest("full", "x", gamma=10.0, form="paper", steps=200).ratio > 1.02


def test_equal_scores_and_flipping_masks_give_inf_never_nan():
    assert lipschitz_w(1.0, xi=1, upsilon=1, separation=0.0) == INF
    assert lipschitz_w(1.0, xi=0, upsilon=1, separation=0.0) == 0.0
    assert lipschitz_w(INF, xi=1, upsilon=1) == 1.0
    assert lipschitz_x(1.0, gamma=1, xi=1, upsilon=1, sink_ratio=1, separation=0.0, k=5) == INF
    for form in ("paper", "certified"):
        assert lipschitz_x(0.0, gamma=0, xi=1, upsilon=1, sink_ratio=1, separation=0.0, form=form) == 1.0
    assert condition_w(0.0, 0.0, 1.0) == INF
    assert condition_w(2.0, 1.0, 0.0) == INF
    for gap in (0.0, 1e-9, 1.0, INF):
        for full in (0.0, 1.0):
            for heavy in (0.0, 0.5):
                for sinks in (0.0, 0.2, 1.0, 8.0):
                    assert not math.isnan(condition_x(full, heavy, gap, sinks))
                    assert not math.isnan(condition_w(full, heavy, gap))
    assert condition_x(0.0, 0.0, 0.0, 0.5) == INF
    assert condition_x(0.0, 0.0, 2.0, 1.0) == pytest.approx(condition_x(1e-9, 0.0, 2.0, 1.0), rel=1e-4) == 2.0


def test_tensors_broadcast_and_a_nan_stays_in_its_place():
    full = torch.tensor([2.0, 4.0, math.nan])
    for result in (condition_w(full, 1.0, 0.5), condition_x(full, 1.0, 0.5, 1.0), lipschitz_w(full, xi=1, upsilon=1)):
        assert result.shape == (3,)
        assert result.isnan().tolist() == [False, False, True]
    assert condition_w(full, 1.0, 0.5)[1].item() == pytest.approx(condition_w(4.0, 1.0, 0.5))
    assert isinstance(lipschitz_x(1.0, gamma=1, xi=1, upsilon=1), float)


def test_regions_hold_the_conditions_on_the_plane():
    plane = region(4.0, 2.0, c1=[0.0, 0.25, 0.5], c2=[0.0, 0.5])
    assert plane.w.shape == plane.x.shape == plane.reachable.shape == (2, 3)
    assert plane.w[1, 2].item() == pytest.approx(condition_w(4.0, 2.0, 2.0))
    assert plane.x[1, 1].item() == pytest.approx(condition_x(4.0, 1.0, 2.0, 2.0))
    assert plane.w[0].tolist() == [INF] * 3
    assert plane.x[0].tolist() == [INF] * 3
    assert plane.reachable.tolist() == [[True] * 3, [True] * 3]


def test_within_one_model_the_conditions_can_hold_only_at_large_dispersion():
    for delta_full, possible in ((0.25, False), (1.2, False), (1.3, True), (8.0, True), (32.0, True)):
        plane = region(delta_full)
        assert bool(((plane.w < 1) & plane.reachable).any()) == possible, delta_full
    assert not region(1.0).reachable.all()


@given(st.integers(0, 10**6), st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_dispersion_plus_separation_never_passes_the_dispersion_of_the_whole_row(seed, k):
    scores = torch.from_numpy(stream(seed, "test/rows").uniform((6, 8)))
    keep = heaviest(k)(scores)
    whole = dispersion(scores, torch.ones_like(keep))
    assert (dispersion(scores, keep) + separation(scores, keep) <= whole + 1e-12).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lipschitz_w(-1, xi=1, upsilon=1), "delta = -1 must be at least 0"),
        (lambda: lipschitz_w(1, xi=-2, upsilon=1), "xi = -2 must be at least 0"),
        (lambda: lipschitz_w(1, xi=1, upsilon=1, form="sharpest"), "unknown form 'sharpest'"),
        (lambda: lipschitz_x(1, gamma=-1, xi=1, upsilon=1), "gamma = -1"),
        (lambda: lipschitz_x(1, gamma=1, xi=1, upsilon=-1), "upsilon = -1"),
        (lambda: lipschitz_x(1, gamma=1, xi=1, upsilon=1, separation=1.0), "needs sink_ratio"),
        (lambda: lipschitz_x(1, gamma=1, xi=1, upsilon=1, sink_ratio=-1), "sink_ratio = -1"),
        (lambda: lipschitz_x(1, gamma=1, xi=1, upsilon=1, k=0), "k = 0 must be at least 1"),
        (lambda: condition_w(-1, 1, 1), "delta_full = -1"),
        (lambda: condition_w(1, 1, -1), "separation = -1"),
        (lambda: condition_w(INF, 1, 1), "delta_full = inf must be finite"),
        (lambda: condition_x(1, -1, 1, 1), "delta_heavy = -1"),
        (lambda: condition_x(1, 1, 1, -0.5), "sink_ratio = -0.5"),
        (lambda: region(-1.0), "delta_full = -1"),
        (lambda: region([1.0, 2.0]), "delta_full must be one number"),
        (lambda: region(1.0, c1=[[0.0]]), "c1 must be a list of numbers"),
        (lambda: steepest("full", "v", gamma=1.0), "unknown search 'full v'"),
        (lambda: steepest("heavy", "w", gamma=1.0, k=9), "k = 9 must lie between 1 and length = 4"),
    ],
)
def test_invalid_input_is_refused_by_name(call, words):
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)


def test_a_local_mask_has_a_smaller_constant_in_the_tokens_than_an_input_of_full_attention_attains() -> None:
    """39 tokens at +e1, one at -e1, W = -2 e1 e1': moving the one moves all 39 outputs; a block has five."""
    x = torch.ones(1, 40, dtype=torch.float64)
    x[0, -1] = -1.0
    direction = torch.zeros_like(x)
    direction[0, -1] = 1.0

    def attend(x: torch.Tensor, block: int) -> torch.Tensor:
        scores = x.mT @ (-2.0 * x)
        same = torch.arange(40)[:, None] // block == torch.arange(40)[None, :] // block
        return x @ torch.where(same, scores, -torch.inf).softmax(-1).mT

    def moved(block: int) -> float:
        step = 1e-6
        change = attend(x + step * direction, block) - attend(x - step * direction, block)
        return float(change.norm(dim=0).sum()) / (2 * step)

    local = lipschitz_x(4.0, gamma=2.0, xi=1.0, upsilon=1.0, sink_ratio=1.0, k=5)
    full = lipschitz_x(4.0, gamma=2.0, xi=1.0, upsilon=1.0, k=40)
    p = math.exp(4) / (math.exp(4) + 39)
    assert (float(local), float(full)) == pytest.approx((25.3, 118.7), abs=0.05)
    assert moved(40) == pytest.approx(39 * (p + 4 * p * (1 - p)), rel=0.01)
    assert local < moved(40) < full
    assert moved(5) < local
