"""What attention learns for its normaliser or mechanism, on the member axis: start, gradients, moving averages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from semfocus import Attention
from semfocus.attention.learned import starting_value
from semfocus.attention.routing import DECAY, Routing
from semfocus.attention.weights import Learned
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.model.encoder import Encoder
from semfocus.model.forward import forward
from semfocus.spec import Spec, initial
from semfocus.training.step import TrainStep
from tests.test_model import batch, engine, rows_of, spec_of
from tests.training.helpers import assert_same_bits, begin, run_of, runtime, states, tiny, trained

LEARNING = [("full", "ssmax"), ("topk:3", "asentmax"), ("routing:3", "softmax"), ("routing:3+2c", "asentmax")]
FIXED = [("lsh:3", "softmax"), ("fast:2", "softmax"), ("topk:3", "entmax:1.5"), ("full", "doubly"), ("full", "lssar")]


class _Stop(Exception):
    pass


def learned_columns(spec: Spec, matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: part for name, part in spec.layout.split(matrix).items() if ".attention." in name}


def stepped(config, steps: int = 1, seed: int = 1):
    cohort = begin([config, config.model_copy(update={"seed": seed + 1})])
    before = cohort.parameters.clone()
    step = TrainStep(cohort)
    step.begin_epoch(0, 0)
    step.run(steps)
    return cohort, before


@pytest.mark.parametrize(("mechanism", "normaliser"), LEARNING)
def test_other_parameters_start_as_they_do_without_it(mechanism, normaliser) -> None:
    spec = spec_of(mechanism, attention={"normaliser": normaliser}, heads=2)
    plain = spec_of(mechanism="topk:3", heads=2)
    ours, theirs = (value.layout.split(initial(value, 5)[None]) for value in (spec, plain))
    for name, value in theirs.items():
        assert torch.equal(ours[name], value)
    assert ours.keys() - theirs.keys() == learned_columns(spec, initial(spec, 5)[None]).keys()
    assert len(ours) > len(theirs)
    blocks = [value for name, value in ours.items() if name.startswith("blocks.0.attention.centroids")]
    for centroids in blocks:
        torch.testing.assert_close(centroids.norm(dim=-1), torch.ones(1, 2, centroids.shape[2]))


def test_what_a_parameter_starts_from_spans_its_range() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> torch.Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64)

    assert starting_value(Learned((2, 1), "constant", 0.5), draw).tolist() == [[0.5], [0.5]]
    spread = starting_value(Learned((50, 50), "uniform", 0.3), draw)
    assert 0.29 < spread.max() <= 0.3
    assert -0.3 <= spread.min() < -0.29
    directions = starting_value(Learned((20, 100, 3), "directions"), draw)
    assert directions.mean(dim=(0, 1)).abs().max() < 0.05  # they point anywhere
    assert (directions.square().mean(dim=(0, 1)) - 1 / 3).abs().max() < 0.05


def test_ssmax_is_softmax_at_the_temperature_that_its_scale_and_length_give() -> None:
    spec = spec_of("full", attention={"normaliser": "ssmax"}, blocks=1)
    matrix = rows_of(spec, [3, 4])
    scale = spec.layout.split(matrix)["blocks.0.attention.scale"]
    scale.copy_(torch.tensor([0.7, 1.9])[:, None, None])
    tokens, lengths, _ = batch(padded=False, members=2)
    ours = engine(spec, matrix, tokens, lengths)
    for member, own in enumerate((0.7, 1.9)):
        plain = spec_of("full", attention={"inverse_temperature": own * math.log(spec.length)}, blocks=1)
        parts = [
            part[member : member + 1] for name, part in spec.layout.split(matrix).items() if "attention" not in name
        ]
        theirs = engine(plain, plain.layout.join(parts), tokens[member : member + 1], lengths[member : member + 1])
        torch.testing.assert_close(ours[member : member + 1], theirs)


@pytest.mark.parametrize(("mechanism", "normaliser"), LEARNING)
def test_members_of_a_cohort_compute_what_each_computes_alone(mechanism, normaliser) -> None:
    spec = spec_of(mechanism, attention={"normaliser": normaliser}, heads=2)
    matrix = rows_of(spec, [3, 4, 5])
    for part in learned_columns(spec, matrix).values():
        part.mul_(torch.tensor([1.0, 1.3, 0.6]).view(-1, *[1] * (part.dim() - 1)))
    tokens, lengths, _ = batch(members=3)
    together = engine(spec, matrix, tokens, lengths)
    for e in range(3):
        alone = Encoder(spec, matrix[e]).double()(tokens[e], lengths[e])
        torch.testing.assert_close(together[e], alone)


@pytest.mark.parametrize("normaliser", ["ssmax", "asentmax"])
def test_what_is_learned_by_gradient_gets_that_of_finite_differences(normaliser) -> None:
    spec = spec_of("topk:3", attention={"normaliser": normaliser}, blocks=1)
    matrix = rows_of(spec, [3])
    tokens, lengths, _ = batch()
    names = list(learned_columns(spec, matrix))
    leaves = [spec.layout.split(matrix)[name].clone().requires_grad_() for name in names]

    def logits(*values: torch.Tensor) -> torch.Tensor:
        parameters = spec.layout.split(matrix) | dict(zip(names, values, strict=True))
        return forward(parameters, tokens, lengths, spec)

    assert torch.autograd.gradcheck(logits, leaves, fast_mode=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_centroids_follow_the_mean_of_what_they_attract_and_no_optimiser(optimizer, monkeypatch) -> None:
    seen = []
    gaps = Routing.gaps

    def watched(self, learned, queries, keys, valid):
        seen.append((queries.detach(), keys.detach()))
        return gaps(self, learned, queries, keys, valid)

    monkeypatch.setattr(Routing, "gaps", watched)
    config = tiny(1, "routing:3+2c", model={"heads": 2}, optimizer=optimizer, lr=0.5, clip=1e-6, weight_decay=0.3)
    cohort, before = stepped(config)
    ((queries, keys),) = seen
    old, new = (cohort.spec.layout.split(m)["blocks.0.attention.centroids"] for m in (before, cohort.parameters))
    for e, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows = torch.cat([part[e, :, h].reshape(-1, 8) for part in (queries, keys)])
        rows = rows / rows.norm(dim=-1, keepdim=True)
        own = (rows @ old[e, h].T).argmax(dim=-1)
        for number in range(2):
            mean = rows[own == number].mean(dim=0) if (own == number).any() else old[e, h, number]
            wanted = DECAY * old[e, h, number] + (1 - DECAY) * mean
            torch.testing.assert_close(new[e, h, number], wanted, rtol=1e-5, atol=1e-7)
    assert not torch.equal(old, new)


def test_centroids_follow_the_vectors_by_which_keys_are_chosen(monkeypatch) -> None:
    seen = []
    gaps = Routing.gaps

    def watched(self, learned, queries, keys, valid):
        seen.append((queries, keys))
        return gaps(self, learned, queries, keys, valid)

    monkeypatch.setattr(Routing, "gaps", watched)
    stepped(tiny(1, "routing:3+2c", attention={"normaliser": "fast:2"}))
    layer = Attention(8, 2, "routing:3+2c", normaliser="fast:2")
    layer(torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)))
    assert len(seen) == 2
    for vectors in (part for pair in seen for part in pair):
        torch.testing.assert_close(vectors.mean(dim=-1), torch.zeros_like(vectors[..., 0]), rtol=0, atol=1e-5)


def test_padding_attracts_no_centroid() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 3, 2, 8, 4, generator=generator) for _ in range(2))  # (E, B, H, L, D)
    learned = {"centroids": torch.randn(1, 2, 3, 4, generator=generator)}
    lengths = torch.tensor([[8, 5, 2]])
    valid = (torch.arange(8) < lengths[..., None])[:, :, None]
    wanted = Routing(3).gaps(learned, q, k, valid)["centroids"]
    for part in (q, k):
        part[0, 1, :, 5:] = 100.0
        part[0, 2, :, 2:] = -100.0
    torch.testing.assert_close(Routing(3).gaps(learned, q, k, valid)["centroids"], wanted)


@pytest.mark.parametrize(("mechanism", "normaliser"), LEARNING)
def test_a_step_moves_what_is_learned(mechanism, normaliser) -> None:
    config = tiny(1, mechanism, attention={"normaliser": normaliser}, lr=0.3)
    cohort, before = stepped(config, steps=2)
    moved, started = (learned_columns(cohort.spec, matrix) for matrix in (cohort.parameters, before))
    for name, value in moved.items():
        assert value.isfinite().all()
        assert not torch.equal(value[0], started[name][0])


@pytest.mark.parametrize(("mechanism", "normaliser"), [*LEARNING, *FIXED])
def test_a_run_trains_to_its_end_and_resumes_to_the_bit(mechanism, normaliser, tmp_path) -> None:
    config = tiny(1, mechanism, attention={"normaliser": normaliser}, epochs=2)
    whole = trained([config], tmp_path / "whole")

    def stop(progress) -> None:
        if progress.step >= 5:
            raise _Stop

    with pytest.raises(_Stop):
        train([config], tmp_path / "parts", runtime(checkpoint_seconds=0), stop)
    assert states(train([config], tmp_path / "parts", runtime())) == ["done"]
    assert_same_bits([run_of(config, tmp_path / "parts")], whole)


def test_members_that_learn_other_parameters_train_in_cohorts_of_their_own() -> None:
    mixed = runtime(mix=True)
    keys = [
        mixed.mixing_key(spec_of(mechanism, attention={"normaliser": normaliser}))
        for mechanism, normaliser in (("full", "softmax"), ("topk:3", "softmax"), *LEARNING)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(keys) - 1


def test_fused_kernels_refuse_what_they_cannot_learn() -> None:
    from semfocus.fused.block import refuses

    for mechanism, normaliser in LEARNING:
        spec = spec_of(mechanism, attention={"normaliser": normaliser})
        assert "learns some" in (refuses(spec, torch.device("cpu")) or "")


def test_a_config_refuses_pairs_without_a_meaning_by_field() -> None:
    with pytest.raises(ValueError, match=r"attention\.mechanism = fast:2 weighs keys by itself"):
        tiny(1, "fast:2", attention={"normaliser": "sigmoid"})
    with pytest.raises(UsageError, match=r"attention\.normaliser = doubly sums over queries, and the task's objective"):
        replace(spec_of(attention={"normaliser": "doubly"}), is_causal=True)
    config = tiny(1, "routing:3+9c")
    with pytest.raises(UsageError, match=r"attention\.mechanism = routing:3\+9c: it has 9 clusters for 8 keys"):
        config.check(config.task.build())
