"""Positions: what each kind tells the model, that runs keep their ids, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semfocus.attention.inspection import observing
from semfocus.config.model import POSITIONS
from semfocus.config.run import recorded_run_id
from semfocus.encodings import distance_bias, random_positions, rotated, sinusoidal_encoding, slopes
from semfocus.errors import UsageError
from semfocus.fused.block import refuses
from semfocus.model.encoder import Encoder
from semfocus.model.forward import forward
from semfocus.model.inputs import build_inputs
from semfocus.spec import initial
from semfocus.training.loading import document
from tests.test_model import batch, engine, rows_of, spec_of
from tests.training.helpers import states, tiny, trained
from tests.training.test_learned_attention import stepped

KINDS = POSITIONS
CPU = torch.device("cpu")


def logits_of(spec, tokens: Tensor, lengths: Tensor, seed: int = 3) -> Tensor:
    return Encoder(spec, initial(spec, seed).double() * 1.5).double()(tokens, lengths)


def test_a_run_with_the_papers_positions_keeps_its_id_and_its_stored_settings() -> None:
    plain, rope = tiny(1), tiny(1, model={"positions": "rope"})
    task = plain.task.build()
    assert "positions" not in document(plain, task)["model"]
    assert document(rope, task)["model"]["positions"] == "rope"
    assert plain.run_id(task) != rope.run_id(task)
    for config in (plain, rope):
        assert recorded_run_id(document(config, task)) == config.run_id(task)


def test_only_without_positions_order_does_not_matter() -> None:
    tokens, lengths, _ = batch(padded=False)
    shuffled = tokens[..., torch.tensor([3, 1, 7, 0, 2, 6, 4, 5])]
    for kind in KINDS:
        spec = spec_of(positions=kind)
        same = torch.allclose(logits_of(spec, tokens[0], lengths[0]), logits_of(spec, shuffled[0], lengths[0]))
        assert same == (kind == "none"), kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_members_of_a_cohort_compute_what_each_computes_alone(kind, mechanism) -> None:
    spec = spec_of(mechanism, positions=kind, heads=2)
    matrix = rows_of(spec, [3, 4])
    tokens, lengths, _ = batch(members=2)
    together = engine(spec, matrix, tokens, lengths)
    for e in range(2):
        torch.testing.assert_close(together[e], Encoder(spec, matrix[e]).double()(tokens[e], lengths[e]))
        for b in range(4):  # nor does an example depend on its batch
            one = Encoder(spec, matrix[e]).double()(tokens[e, b : b + 1], lengths[e, b : b + 1])
            torch.testing.assert_close(together[e, b : b + 1], one)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("randomized", "learned")])
def test_a_sequence_has_the_same_logits_however_far_it_is_padded(kind) -> None:
    spec = spec_of("topk:3", positions=kind)
    tokens, lengths, _ = batch()
    wider = torch.nn.functional.pad(tokens, (0, 130), value=spec.vocab_size)  # long enough for alignment padding
    torch.testing.assert_close(logits_of(spec, wider[0], lengths[0]), logits_of(spec, tokens[0], lengths[0]))


def test_a_compiler_takes_the_angles_as_constants_and_turns_by_the_same() -> None:
    spec, graphs = spec_of(positions="rope", width=12), []

    def seen(graph: torch.fx.GraphModule, examples: list) -> Callable:
        graphs.append(graph.code)
        return graph.forward

    x = torch.randn(1, 2, 1, 12, 8)
    turned = torch.compile(lambda x: rotated(x, spec), backend=seen, fullgraph=True, dynamic=False)(x)
    assert torch.equal(turned, rotated(x, spec))
    assert "cos()" not in graphs[0]
    assert "arange" not in graphs[0]


def test_rotated_products_are_those_of_complex_numbers_and_depend_on_distance_alone() -> None:
    spec = spec_of(positions="rope", width=12)
    q, k = (torch.randn(1, 1, 1, 1, 8, generator=torch.Generator().manual_seed(i)).double() for i in (0, 1))
    turned = [rotated(x.expand(1, 1, 1, 12, 8), spec)[0, 0, 0] for x in (q, k)]
    products = turned[0] @ turned[1].T
    for distance in range(-11, 12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    pairs = [torch.complex(x[..., :4], x[..., 4:]).flatten() for x in (q, k)]
    angle = 10000.0 ** (-torch.arange(4).double() / 4)
    by_hand = (pairs[0] * pairs[1].conj() * torch.polar(torch.ones(4).double(), 5 * angle)).real.sum()
    torch.testing.assert_close(products[7, 2], by_hand)


def test_scores_fall_with_distance_by_each_heads_slope_and_padding_stays_hidden() -> None:
    assert slopes(4, CPU).tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    spec = spec_of("banded:3+1g", positions="alibi", heads=2)
    bias = distance_bias(spec, CPU, torch.float64)
    assert bias[0, 2, 7] == bias[0, 7, 2] == -5 * 2**-4
    assert bias[1, 0, 8] == -8 * 2**-8  # the global token stands behind the sequence
    tokens, lengths, _ = batch()
    seen = []
    with observing(lambda inputs, grouped: seen.append(inputs.bias)):
        logits_of(spec, tokens[0], lengths[0])
    for b, length in enumerate(lengths[0].tolist()):
        hidden = seen[0][0, b] == float("-inf")
        assert torch.equal(hidden, ((torch.arange(9) >= length) & (torch.arange(9) < 8)).expand(2, 9, 9))
        torch.testing.assert_close(seen[0][0, b][~hidden], bias[~hidden])


def test_learned_positions_are_looked_up_trained_and_end_where_they_were_learned() -> None:
    config = tiny(1, model={"positions": "learned"})
    cohort, before = stepped(config)
    start, moved = (cohort.spec.layout.split(matrix)["positions"] for matrix in (before, cohort.parameters))
    assert start.shape == (2, 8, 8)
    assert ((start - moved).abs().amax(dim=-1) > 0).all()  # each position is used
    spec = spec_of(positions="learned")
    tokens, lengths, _ = batch(width=9, padded=False)
    with pytest.raises(UsageError, match=r"8 positions were learned, and these sequences have 9.*learned:9"):
        logits_of(spec, tokens[0], lengths[0])
    longer = spec_of(positions="learned:9")
    assert logits_of(longer, tokens[0], lengths[0]).isfinite().all()


def test_random_positions_increase_and_fill_their_range_for_every_length() -> None:
    spec = spec_of("banded:3+1g", positions="randomized:101", width=20)
    lengths = torch.tensor([[20, 5, 1]]).repeat(2, 1)
    tokens = torch.zeros(2, 3, 21, dtype=torch.int64)
    drawn = torch.stack(
        [random_positions(spec, lengths, torch.tensor([seed, seed + 500]), tokens) for seed in range(200)]
    )  # (draws, E, B, L)
    for b, length in enumerate((20, 5, 1)):
        own = drawn[:, :, b, :length]
        assert (own.diff(dim=-1) > 0).all()
        assert own.min() >= 0
        assert own.max() < 100
        assert abs(own.double().mean() - 49.5) < 3 * 29 / (400 * length) ** 0.5 * 1.5  # uniform over the range
    assert (drawn[..., -1] == 100).all()  # the extra token
    assert not torch.equal(drawn[0, 0, 0], drawn[0, 1, 0])
    assert not torch.equal(drawn[0, 0, 0], drawn[1, 0, 0])


def test_random_positions_change_from_step_to_step_and_stand_still_in_evaluation() -> None:
    spec = spec_of(positions="randomized")
    matrix = rows_of(spec, [3])
    tokens, lengths, _ = batch()
    ids, seen = build_inputs(tokens, lengths, spec)
    parameters = spec.layout.split(matrix)
    seeds = [torch.full((spec.num_dropout_sites, 1), seed) for seed in (1, 1, 2)]
    steps = [forward(parameters, ids, seen, spec, seed) for seed in seeds]
    assert torch.equal(steps[0], steps[1])
    assert not torch.allclose(steps[0], steps[2])
    assert torch.equal(forward(parameters, ids, seen, spec), forward(parameters, ids, seen, spec))


def test_with_a_range_as_long_as_the_sequence_random_positions_are_the_papers() -> None:
    tokens, lengths, _ = batch(padded=False)
    spec = spec_of(positions="randomized:8")
    torch.testing.assert_close(logits_of(spec, tokens[0], lengths[0]), logits_of(spec_of(), tokens[0], lengths[0]))
    assert sinusoidal_encoding(8, 8, CPU).shape == (8, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_to_the_end(kind, tmp_path: Path) -> None:
    from semfocus.execution import train
    from tests.training.helpers import runtime

    assert states(train([tiny(1, "topk:3", model={"positions": kind}, epochs=1)], tmp_path, runtime())) == ["done"]
    assert trained([tiny(1, "topk:3", model={"positions": kind}, epochs=1)], tmp_path)[0].metrics()


def test_fused_blocks_refuse_positions_that_enter_the_scores() -> None:
    reasons = {kind: refuses(spec_of(positions=kind), CPU) or "" for kind in KINDS}
    assert [kind for kind in KINDS if "not into the scores" in reasons[kind]] == ["alibi", "rope"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"positions": "rope", "d_model": 9}, "rope turns pairs of channels; heads are 9 wide"),
        ({"positions": "sine:40"}, "'sine:40': sine positions take no number"),
        ({"positions": "learned:4"}, r"learned:4: sequences have 8 positions; write learned:8 or more"),
        ({"positions": "randomized:7"}, "write randomized:8 or more"),
        ({"positions": "randomized:many"}, "'many' must be a number of positions, for example randomized:64"),
        ({"positions": "cosine"}, "'cosine' is not one of sine, learned"),
    ],
)
def test_positions_that_cannot_be_are_refused_by_field(model, message) -> None:
    with pytest.raises((UsageError, ValueError), match=message):
        spec_of(**model)
