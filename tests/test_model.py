"""The model with a member axis against the plain one of `tests.training.plain`, and what it is initialised with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from semfocus import counter_rng
from semfocus.config import AttentionConfig, ModelConfig
from semfocus.encodings import sinusoidal_encoding
from semfocus.model.encoder import Encoder
from semfocus.model.forward import _evaluation_seeds, forward
from semfocus.model.inputs import build_inputs, valid_mask
from semfocus.model.layers import linear
from semfocus.spec import Spec, initial
from semfocus.tasks import get_task
from tests.training.plain import PlainEncoder, pos_enc

SYMBOLS, CLASSES, WIDTH = 5, 3, 8
SMALL: dict[str, Any] = {"blocks": 2, "d_model": 8, "d_mlp": 12, "dropout": 0.0}


def spec_of(mechanism: str = "full", width: int = WIDTH, attention: dict[str, Any] | None = None, **model: Any) -> Spec:
    chosen = AttentionConfig(mechanism=mechanism, **(attention or {}))
    return Spec(ModelConfig(**SMALL | model), chosen, SYMBOLS, CLASSES, width)


def rows_of(spec: Spec, seeds: list[int]) -> Tensor:
    """(E, P) in float64, away from the tiny initial embeddings, so that nothing is lost in rounding."""
    return torch.stack([initial(spec, seed).double() * 1.5 for seed in seeds])


def batch(width: int = WIDTH, padded: bool = True, members: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (E, B, width), lengths and labels (E, B)."""
    draw = torch.Generator().manual_seed(seed)
    shape = (members, 4)
    lengths = torch.randint(3, width + 1, shape, generator=draw) if padded else torch.full(shape, width)
    tokens = torch.randint(SYMBOLS, (*shape, width), generator=draw)
    tokens = torch.where(torch.arange(width) < lengths.unsqueeze(-1), tokens, SYMBOLS)
    return tokens, lengths, torch.randint(CLASSES, shape, generator=draw)


def engine(spec: Spec, matrix: Tensor, tokens: Tensor, lengths: Tensor, seeds: Tensor | None = None) -> Tensor:
    ids, seen = build_inputs(tokens, lengths, spec)
    has_padding = not valid_mask(seen, spec).all()
    return forward(spec.layout.split(matrix), ids, seen if has_padding else None, spec, seeds)


def compare(spec: Spec, padded: bool, seeds: Tensor | None = None, masks: Any = None) -> None:
    """Logits and gradients of three members at once against three plain models."""
    members = 3
    tokens, lengths, labels = batch(spec.seq_len, padded, members)
    matrix = rows_of(spec, [11, 12, 13]).requires_grad_()
    logits = engine(spec, matrix, tokens, lengths, seeds)
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, matrix)
    for e in range(members):
        plain = PlainEncoder(spec, matrix[e].detach()).double()
        mine = plain(tokens[e], lengths[e], *([] if masks is None else [lambda place, x, e=e: masks(e, place, x)]))
        functional.cross_entropy(mine, labels[e], reduction="sum").backward()
        torch.testing.assert_close(logits[e], mine, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient[e], plain.row(gradients=True), rtol=1e-5, atol=1e-6)
    assert gradient.abs().max() > 0.01


SHAPES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "post-norm": {"norm": "post"},
    "gelu": {"activation": "gelu"},
    "mish": {"activation": "mish"},
    "three heads as wide as the model": {"heads": 3},
    "two heads that split the model": {"heads": 2, "head_width": "split"},
    "a CLS token is pooled": {"pooling": "cls"},
    "twice as sharp": {"attention": {"inverse_temperature": 2.0}},
    "sigmoid": {"attention": {"normaliser": "sigmoid"}},
    "first norm exact": {"first_norm_exact": True},
    "first norm exact, post-norm": {"first_norm_exact": True, "norm": "post"},
    "odd width": {"d_model": 7},
    "padding visible": {"padding_visible": True},
}
MECHANISMS = ["full", "topk:3", "banded:3", "block_local:3", "banded:3+1g", "block_local:3+2g"]


@pytest.mark.parametrize("padded", [False, True], ids=["whole rows", "padded rows"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_option_computes_what_a_plain_model_computes(shape: dict[str, Any], padded: bool) -> None:
    compare(spec_of(**shape), padded)


@pytest.mark.parametrize("padded", [False, True], ids=["whole rows", "padded rows"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_computes_what_a_plain_model_computes(mechanism: str, padded: bool) -> None:
    compare(spec_of(mechanism, heads=2), padded)


@pytest.mark.parametrize("mechanism", ["topk:3", "banded:3+1g", "block_local:3+1g"])
@pytest.mark.parametrize("visible", [False, True], ids=["masked", "visible"])
def test_the_quirks_of_the_input_compute_what_a_plain_model_with_them_computes(mechanism: str, visible: bool) -> None:
    compare(spec_of(mechanism, padding_visible=visible, pad_to_multiple=True), padded=True)
    compare(spec_of(mechanism, padding_visible=visible, pad_to_multiple=True, pooling="cls"), padded=True)


def test_sparse_rows_are_padded_to_a_multiple_of_k_and_full_ones_are_not() -> None:
    def width(mechanism: str) -> int:
        return spec_of(mechanism, width=40, pad_to_multiple=True).padded_len

    assert {name: width(name) for name in ("full", "topk:5", "topk:9", "banded:9", "block_local:9+1g")} == {
        "full": 40, "topk:5": 40, "topk:9": 45, "banded:9": 45, "block_local:9+1g": 45,
    }  # fmt: skip
    assert spec_of("topk:9", width=40).padded_len == 40


def test_what_stands_in_the_padding_changes_nothing_unless_it_is_visible() -> None:
    tokens, lengths, _ = batch()
    other = torch.where(torch.arange(WIDTH) < lengths.unsqueeze(-1), tokens, 0)
    assert not torch.equal(tokens, other)
    for mechanism in MECHANISMS:
        for visible in (False, True):
            spec = spec_of(mechanism, padding_visible=visible)
            matrix = rows_of(spec, [11])
            same = torch.equal(engine(spec, matrix, tokens, lengths), engine(spec, matrix, other, lengths))
            assert same is not visible, (mechanism, visible)


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:3+1s", "bottomk:3", "block_local:5+1g"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_filler_positions_of_long_rows_change_nothing(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, pooling: str
) -> None:
    width = 131
    tokens, lengths, _ = batch(width)
    options = {"blocks": 1, "pooling": pooling}
    aligned = spec_of(mechanism, width=width, **options)
    assert aligned.alignment_padding > 0
    assert aligned.length % 8 == 0
    monkeypatch.setattr("semfocus.spec.LONG", 10**6)
    bare = spec_of(mechanism, width=width, **options)
    assert bare.alignment_padding == 0
    matrix = rows_of(bare, [11])
    torch.testing.assert_close(
        engine(aligned, matrix, tokens, lengths), engine(bare, matrix, tokens, lengths), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("mechanism", ["banded:3", "banded:3+1g", "topk:3+4w"])
def test_a_window_that_counts_from_the_end_gets_no_filler(mechanism: str) -> None:
    assert spec_of(mechanism, width=131).alignment_padding == 0


def test_positions_first_asked_for_inside_a_transform_or_in_inference_serve_everybody_afterwards() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        return (x * sinusoidal_encoding(11, 6, torch.device("cpu"))).sum()

    sinusoidal_encoding.cache_clear()
    ones = torch.ones(11, 6)
    torch.func.grad(lambda x: torch.func.grad(inside)(x).sum())(ones)
    kept = sinusoidal_encoding(11, 6, torch.device("cpu"))
    torch.testing.assert_close(kept, pos_enc(11, 6).float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.func.grad(inside)(ones), kept, rtol=0, atol=0)
    sinusoidal_encoding.cache_clear()
    with torch.inference_mode():
        sinusoidal_encoding(11, 6, torch.device("cpu"))
    x = ones.clone().requires_grad_()
    inside(x).backward()  # saves the pos_enc, which an inference tensor refuses
    torch.testing.assert_close(x.grad, kept, rtol=0, atol=0)


def test_positions_are_sines_and_cosines_at_any_length() -> None:
    torch.testing.assert_close(
        sinusoidal_encoding(700, 6, torch.device("cpu")), pos_enc(700, 6).float(), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(sinusoidal_encoding(9, 7, torch.device("cpu")), pos_enc(9, 7).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_a_module_runs_on_rows_longer_and_shorter_than_those_it_was_trained_on(mechanism: str) -> None:
    trained = spec_of(mechanism)
    row = rows_of(trained, [11])[0]
    module = Encoder(trained, row)
    for width in (5, 21):
        tokens, lengths, _ = batch(width)
        plain = PlainEncoder(spec_of(mechanism, width=width), row).double()
        torch.testing.assert_close(module(tokens[0], lengths[0]), plain(tokens[0], lengths[0]), rtol=1e-6, atol=1e-6)
        whole = module(tokens[0].clamp(max=SYMBOLS - 1))
        torch.testing.assert_close(whole, module(tokens[0].clamp(max=SYMBOLS - 1), torch.full((4,), width)))


def test_the_module_of_a_member_gives_its_row_back() -> None:
    spec = spec_of("banded:3+1g", heads=3)
    row = initial(spec, 7)
    assert torch.equal(Encoder(spec, row).row(), row)


@pytest.mark.parametrize(("task", "blocks", "count"), [("even_pairs", 5, 125_000), ("listops", 10, 251_000)])
def test_the_paper_models_have_the_paper_number_of_parameters(task: str, blocks: int, count: int) -> None:
    source = get_task(task)
    spec = Spec(ModelConfig(blocks=blocks), AttentionConfig(), source.vocab_size, source.num_classes, source.seq_len)
    assert abs(spec.layout.num_parameters - count) < 0.002 * count
    module = PlainEncoder(spec, initial(spec, 0))
    assert sum(p.numel() for p in module.parameters()) == spec.layout.num_parameters


def test_initial_parameters_are_uniform_in_their_ranges() -> None:
    spec = Spec(ModelConfig(blocks=2, d_model=64, d_mlp=48), AttentionConfig(), 40, 30, 10)
    views = {name: view[0] for name, view in spec.layout.split(initial(spec, 3).unsqueeze(0)).items()}
    bounds = {"embedding": 0.1, "readout.weight": 0.1}
    for name, value in views.items():
        if name == "readout.bias":
            assert not value.any()
            continue
        inputs = views[name.replace(".bias", ".weight")].shape[0]
        bound = bounds.get(name, 1 / math.sqrt(inputs))
        assert value.abs().max() <= bound, name
        assert value.abs().max() > 0.9 * bound, name
        error = 4 / math.sqrt(value.numel())
        assert abs(value.mean()) < error * bound, name
        assert abs(value.std() / bound - 3**-0.5) < error, name
    scaled = torch.stack([(value / value.abs().max()).flatten()[:30] for name, value in views.items() if value.any()])
    assert scaled.unique().numel() > 0.99 * scaled.numel()  # no two parameters come from the same numbers
    torch_default = torch.nn.Linear(64, 48)
    assert torch_default.weight.abs().max() <= 1 / 8  # what "PyTorch's default" means above
    assert torch_default.bias.abs().max() <= 1 / 8


def test_an_extra_token_shifts_no_other_initial_parameter() -> None:
    bare, extended = spec_of("banded:3"), spec_of("banded:3+2g")
    before, after = (spec.layout.split(initial(spec, 5).unsqueeze(0)) for spec in (bare, extended))
    for name, value in before.items():
        assert torch.equal(value, after[name][:, : value.shape[1]]), name
    assert after["embedding"].shape[1] == before["embedding"].shape[1] + 2


def test_initial_parameters_depend_on_the_seed_and_not_on_the_mechanism() -> None:
    assert torch.equal(initial(spec_of("full"), 5), initial(spec_of("topk:3"), 5))
    assert not torch.equal(initial(spec_of("full"), 5), initial(spec_of("full"), 6))


def drop_seeds(spec: Spec, members: list[int], step: int = 4) -> Tensor:
    return counter_rng.fold_in(torch.tensor(members), torch.tensor(step), spec.num_dropout_sites)


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_acts_where_the_paper_has_it(mechanism: str, norm: str) -> None:
    """After the embedding, on attention weights, inside the MLP before the activation, and on both branches."""
    spec = spec_of(mechanism, heads=2, norm=norm, dropout=0.25)
    seeds = drop_seeds(spec, [100, 200, 300])
    used: set[int] = set()

    def masks(member: int, place: int, x: Tensor) -> Tensor:
        used.add(place)
        return counter_rng.dropout(torch.ones_like(x).unsqueeze(0), seeds[place, member : member + 1], 0.25)[0]

    compare(spec, padded=True, seeds=seeds, masks=masks)
    assert used == set(range(spec.num_dropout_sites)) == set(range(9))


def test_in_evaluation_nothing_is_dropped_and_two_forwards_are_equal() -> None:
    """Row 22."""
    for mechanism in (*MECHANISMS, "randomk:3", "randomk_replaced:3", "topk:3~0.5"):
        spec, never = spec_of(mechanism, dropout=0.5), spec_of(mechanism, dropout=0.0)
        matrix = rows_of(spec, [11, 12])
        tokens, lengths, _ = batch(members=2)
        first = engine(spec, matrix, tokens, lengths)
        assert torch.equal(first, engine(spec, matrix, tokens, lengths))
        assert torch.equal(first, engine(never, matrix, tokens, lengths))
        assert not torch.allclose(first, engine(spec, matrix, tokens, lengths, drop_seeds(spec, [1, 2])))


def test_the_quirk_drops_attention_weights_in_evaluation_and_nothing_else() -> None:
    spec = spec_of(dropout=0.3, dropout_in_evaluation=True)
    tokens, lengths, _ = batch(padded=False)
    row = rows_of(spec, [11])
    found = engine(spec, row, tokens, lengths)
    assert torch.equal(found, engine(spec, row, tokens, lengths))
    drawn = _evaluation_seeds(spec, tokens)
    assert drawn is not None
    places: set[int] = set()
    factors: list[Tensor] = []

    def masks(place: int, x: Tensor) -> Tensor:
        if place % 4 != 1:
            return torch.ones_like(x)
        places.add(place)
        one = torch.ones_like(x).unsqueeze(0)
        seeds = drawn[place // 4, 0]
        each = [counter_rng.dropout(one[:, b : b + 1], seeds[:, b], 0.3) for b in range(x.shape[0])]
        factors.append(torch.cat(each, dim=1)[0])
        return factors[-1]

    expected = PlainEncoder(spec, row[0]).double()(tokens[0], lengths[0], masks)
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)
    assert places == {1, 5}
    assert 0.2 < (torch.stack(factors) == 0).double().mean() < 0.4


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.3, "dropout_in_evaluation": True},
        {"mechanism": "randomk:3"},
        {"mechanism": "randomk_replaced:3"},
        {"mechanism": "topk:3~0.5"},
    ],
)
def test_what_a_row_draws_in_evaluation_depends_on_the_row_alone(options: dict[str, Any]) -> None:
    spec = spec_of(**options)
    tokens, lengths, _ = batch(members=3)
    matrix = rows_of(spec, [11, 12, 13])
    together = engine(spec, matrix, tokens, lengths)
    for e in range(3):
        alone = torch.cat([engine(spec, matrix[e : e + 1], tokens[e : e + 1, b : b + 1], lengths[e : e + 1, b : b + 1])
                           for b in range(4)], dim=1)  # fmt: skip
        torch.testing.assert_close(together[e : e + 1], alone, rtol=1e-9, atol=1e-9)
    drawn = _evaluation_seeds(spec, tokens)
    assert drawn is not None
    assert drawn.unique().numel() == drawn.numel()  # different rows, different draws


@pytest.mark.parametrize("mechanism", ["randomk:3", "randomk_replaced:3", "topk:3~0.5"])
def test_random_keys_are_drawn_anew_at_every_training_step_even_without_dropout(mechanism: str) -> None:
    spec = spec_of(mechanism, dropout=0.0)
    assert spec.is_stochastic
    assert not spec_of("topk:3", dropout=0.0).is_stochastic
    tokens, lengths, _ = batch(padded=False)
    row = rows_of(spec, [11])
    steps = [engine(spec, row, tokens, lengths, drop_seeds(spec, [5], step)) for step in (1, 2)]
    assert not torch.allclose(*steps)


def test_dropout_seeds_differ_by_member_step_and_place_and_not_by_cohort() -> None:
    spec = spec_of()
    members = [3, 2**40 + 3, -7]
    together = drop_seeds(spec, members)
    for i, member in enumerate(members):
        assert torch.equal(together[:, i], drop_seeds(spec, [member])[:, 0])
    every = torch.stack([drop_seeds(spec, members, step) for step in range(50)])
    assert every.unique().numel() == every.numel()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_dropout_has_its_rate_and_keeps_the_mean(rate: float) -> None:
    x = torch.ones(2, 40, 50, 64)
    dropped = counter_rng.dropout(x, torch.tensor([123, 456]), rate)
    share = (dropped == 0).double().mean(dim=(1, 2, 3))
    deviation = math.sqrt(rate * (1 - rate) / x[0].numel())
    assert (share - rate).abs().max() < 4 * deviation
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / (1 - rate)))
    joint = ((dropped[0] == 0) & (dropped[1] == 0)).double().mean()
    assert abs(joint - rate**2) < 4 * math.sqrt(rate**2 / x[0].numel())
    for shifted in (
        (dropped[:, :, :-1] == 0) & (dropped[:, :, 1:] == 0),
        (dropped[..., 1:] == 0) & (dropped[..., :-1] == 0),
    ):
        assert abs(shifted.double().mean() - rate**2) < 5 * math.sqrt(rate**2 / x.numel())


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_single_model_s_product_is_that_of_a_batch_of_one(monkeypatch: pytest.MonkeyPatch, has_bias: bool) -> None:
    x = torch.randn(1, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(1, 5, 7, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, 7, dtype=torch.float64, requires_grad=True) if has_bias else None
    leaves = [tensor for tensor in (x, weight, bias) if tensor is not None]
    found = []
    for pads in (False, True):
        monkeypatch.setattr("semfocus.model.layers._pads_odd_sizes", lambda device, pads=pads: pads)
        out = linear(x, weight, bias)
        found.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
