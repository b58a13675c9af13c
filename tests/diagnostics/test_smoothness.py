"""Smoothness of trained layers: against whole Jacobians, below its bounds, resumed length by length, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.diagnostics import smoothness as module
from semfocus.diagnostics.lengths import examples_at
from semfocus.diagnostics.smoothness import layers_of, measure_smoothness, smoothness_at
from semfocus.errors import UsageError
from semfocus.measurements import Malformed, Smoothness, read
from semfocus.model.encoder import Encoder
from semfocus.spec import initial
from semfocus.theory.smoothness import local_constant
from semfocus.training.cohort import spec_of
from semfocus.training.loading import load
from tests.training.helpers import runtime, tiny, trained

MODELS = [{}, {"heads": 2}, {"heads": 2, "head_width": "split"}, {"norm": "post"}, {"positions": "randomized"}]


def untrained(mechanism: str, **model) -> tuple[Encoder, torch.Tensor]:
    config = tiny(3, mechanism, model=model)
    spec = spec_of(config, config.task.build())
    return Encoder(spec, initial(spec, 3) * 2), examples_at(config, 9, 2)


@pytest.mark.parametrize("model", [MODELS[0], MODELS[1], MODELS[2], MODELS[4]], ids=str)
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_a_layer_is_what_a_block_adds_by_attention(mechanism: str, model: dict, monkeypatch) -> None:
    """With an MLP of zeros and without output biases, a block gives its input and what attention adds."""
    encoder, tokens = untrained(mechanism, **model)
    with torch.no_grad():
        for name, value in encoder.named_parameters():
            if "mlp_out" in name or name.endswith("__o__bias"):
                value.zero_()
    added, real = [], module.EAGER.block

    def block(x, *rest):
        out = real(x, *rest)
        added.append((out - x)[0])
        return out

    monkeypatch.setattr(module, "EAGER", replace(module.EAGER, block=block))
    layers = layers_of(encoder, tokens)
    assert len(layers) == len(added) > 0
    for layer, own in zip(layers, added, strict=True):
        torch.testing.assert_close(layer(layer.tokens), own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:1", "banded:3"])
def test_the_constant_is_the_largest_singular_value_of_the_whole_jacobian(mechanism: str, model: dict) -> None:
    encoder, tokens = untrained(mechanism, **model)
    for layer in layers_of(encoder, tokens):
        found = local_constant(layer, layer.tokens, steps=4000, tolerance=1e-12).constant
        for i, x in enumerate(layer.tokens):

            def alone(one: torch.Tensor, layer=layer, i=i) -> torch.Tensor:
                return layer(torch.cat([layer.tokens[:i], one[None], layer.tokens[i + 1 :]]))[i]

            jacobian = torch.autograd.functional.jacobian(alone, x).reshape(x.numel(), x.numel())
            expected = torch.linalg.matrix_norm(jacobian, ord=2).item()
            assert found[i].item() == pytest.approx(expected, rel=1e-6)
            assert expected <= layer.certified() * (1 + 1e-9)
            if mechanism == "full":
                assert expected <= layer.sqrt_n() * (1 + 1e-9)


def test_a_step_within_the_fixed_choice_moves_the_layer_as_its_jacobian_says() -> None:
    encoder, tokens = untrained("topk:3")
    layer = layers_of(encoder, tokens)[0]
    direction = torch.randn(layer.tokens.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    direction /= direction.flatten(1).norm(dim=1)[:, None, None]
    step = 1e-7
    moved = (layer(layer.tokens + step * direction) - layer(layer.tokens)).flatten(1).norm(dim=1) / step
    assert bool((moved <= local_constant(layer, layer.tokens).constant * (1 + 1e-3)).all())


def test_it_is_stored_length_by_length_and_goes_on_where_it_was(tmp_path: Path, monkeypatch) -> None:
    (run,) = trained([tiny(1, "topk:2", epochs=1)], tmp_path)
    seen, real = [], module.smoothness_at

    def watched(model, tokens):
        seen.append(tokens.shape[-1])
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(model, tokens)

    monkeypatch.setattr(module, "smoothness_at", watched)
    with pytest.raises(KeyboardInterrupt):
        measure_smoothness(run, (6, 9, 12), 2, runtime())
    assert read(run, Smoothness).lengths == [6]
    measured = measure_smoothness(run, (6, 9, 12), 2, runtime())
    assert seen == [6, 9, 9, 12]
    assert measured.lengths == [6, 9, 12]
    assert measured.constants[0] == pytest.approx(
        smoothness_at(load(run), examples_at_of(run, 6))["constant"], rel=1e-6
    )
    assert measured.exponent is not None


def examples_at_of(run, length: int) -> torch.Tensor:
    from semfocus.training.loading import config_of

    return examples_at(config_of(run), length, 2)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"attention": {"normaliser": "entmax:1.5"}}, "entmax:1.5"),
        ({"attention": {"normaliser": "ssmax"}}, "ssmax"),
        ({"model": {"positions": "rope"}}, "positions = rope"),
        ({"model": {"positions": "alibi"}}, "positions = alibi"),
    ],
)
def test_what_has_no_such_bound_is_refused_by_name(changes: dict, what: str) -> None:
    config = tiny(1, model=changes.get("model", {}))
    attention = config.attention.model_copy(update=changes.get("attention", {}))
    config = config.model_copy(update={"attention": attention})
    spec = spec_of(config, config.task.build())
    with pytest.raises(UsageError, match=what):
        layers_of(Encoder(spec, initial(spec, 1)), examples_at(config, 8, 1))


def test_an_exponent_is_the_slope_of_the_logarithms_and_a_constant_of_zero_is_malformed() -> None:
    point = {"certified": 2.0, "sqrt_n": 3.0, "settled": 1.0}
    payload = {"step": 1, "rows": 2, "points": {str(n): point | {"constant": 3 * n**0.25} for n in (10, 40, 90)}}
    assert Smoothness.from_payload(payload).exponent == pytest.approx(0.25)
    payload["points"]["10"]["constant"] = 0.0
    with pytest.raises(Malformed, match="length 10 is not positive"):
        Smoothness.from_payload(payload)
    assert replace(Smoothness.from_payload({**payload, "points": {"40": payload["points"]["40"]}})).exponent is None


def test_the_command_measures_runs_or_shows_the_bounds(tmp_path: Path) -> None:
    full, topk = trained([tiny(1, "full", epochs=1), tiny(1, "topk:2", epochs=1)], tmp_path / "runs")
    words = ["--length", "6", "--length", "8", "--length", "12", "--rows", "1", "--device", "cpu", "--threads", "1"]
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    called = CliRunner().invoke(app, ["theory", "smoothness", full.id, topk.id, *words, *places])
    assert called.exit_code == 0, called.output
    assert called.stdout.count("exponent") == 2
    assert (tmp_path / "smoothness-even_pairs.png").exists()
    bounds = CliRunner().invoke(app, ["theory", "smoothness", "--steps", "2", "--out", str(tmp_path)])
    assert "sqrt(n)" in bounds.stdout
    assert (tmp_path / "smoothness-bounds.png").exists()
