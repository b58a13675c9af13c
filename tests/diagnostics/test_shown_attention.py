"""The attention of one example, as it is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.diagnostics.shown_attention import attention_of
from semfocus.errors import UsageError
from semfocus.report.figures.attention import write_attention_figure
from semfocus.training.data import load as load_data
from tests.training.helpers import tiny, trained
from tests.training.test_lengths import spanned


def test_each_layer_and_head_keeps_k_keys_whose_weights_sum_to_one(tmp_path: Path) -> None:
    config = tiny(1, "topk:3", epochs=1, model={"blocks": 2, "heads": 2, "d_model": 8})
    (run,) = trained([config], tmp_path)
    shown = attention_of(run, 3)
    assert shown.weights.shape == (2, 2, 8, 8)
    assert ((shown.weights > 0).sum(axis=-1) == 3).all()
    np.testing.assert_allclose(shown.weights.sum(axis=-1), 1, rtol=1e-5)
    tokens = load_data(config, config.task.build())[1].tokens[3]
    assert shown.tokens == [str(token) for token in tokens.tolist()]


def test_with_one_layer_the_weights_are_softmax_of_the_products_by_hand(tmp_path: Path) -> None:
    config = tiny(1, "full", epochs=1)
    (run,) = trained([config], tmp_path)
    from semfocus.encodings import sinusoidal_encoding
    from semfocus.training.loading import load

    model = load(run)
    tokens = load_data(config, config.task.build())[0].tokens[5]
    parameters = {name.replace("__", "."): value.detach() for name, value in model.named_parameters()}
    x = parameters["embedding"][tokens] * 8**0.5 + sinusoidal_encoding(8, 8, torch.device("cpu"))
    y = torch.nn.functional.layer_norm(x, (8,))
    q, k, _ = (y @ parameters["blocks.0.qkv.weight"] + parameters["blocks.0.qkv.bias"]).chunk(3, dim=-1)
    wanted = (q @ k.T / 8**0.5).softmax(dim=-1)
    np.testing.assert_allclose(attention_of(run, 5, "train").weights[0, 0], wanted, rtol=1e-4, atol=1e-6)


def test_padding_is_not_shown_and_global_tokens_are(tmp_path: Path) -> None:
    config = spanned("2-8")
    config = config.model_copy(update={"attention": config.attention.model_copy(update={"mechanism": "banded:3+1g"})})
    (run,) = trained([config], tmp_path)
    lengths = load_data(config, config.task.build())[1].lengths
    row = int((lengths < 8).nonzero()[0])
    shown = attention_of(run, row)
    assert len(shown.tokens) == int(lengths[row]) + 1
    assert shown.tokens[-1] == "*"
    np.testing.assert_allclose(shown.weights.sum(axis=-1), 1, rtol=1e-5)


def test_the_command_draws_it_in_both_themes_and_refuses_a_row_that_is_not_there(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, "topk:3", epochs=1)], tmp_path)
    arguments = ["show-attention", run.id, "--row", "3", "--out", str(tmp_path), "--figures", str(tmp_path / "drawn")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "8 tokens, 3 keys kept by a query on average" in result.output
    names = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert {f"attention-{run.id}-heldout-3.svg", f"attention-{run.id}-heldout-3-dark.png"} <= names
    with pytest.raises(UsageError, match=r"row = 21: the heldout split of run .* has the rows 0 \.\. 20"):
        attention_of(run, 21)


def test_a_token_that_looks_like_mathematics_is_drawn_as_it_is(tmp_path: Path) -> None:
    weights = np.eye(2, dtype=np.float32)[None, None]
    assert write_attention_figure(weights, ["$x", "_^"], "two tokens", tmp_path, "strange")
