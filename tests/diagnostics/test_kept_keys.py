"""How many keys have a weight: full, top-k, and ways that keep as many as the scores say; padding does not count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semfocus.diagnostics.kept_keys import count_kept, measure_kept_keys
from semfocus.diagnostics.measuring import MEASURES, lengths_to_test, missing
from semfocus.diagnostics.shown_attention import attention_weights
from semfocus.measurements import KeptKeys, Malformed
from semfocus.model.encoder import Encoder
from semfocus.spec import initial
from semfocus.tasks.base import Batch
from semfocus.training.cohort import spec_of
from tests.training.helpers import runtime, tiny, trained


def untrained(mechanism: str, normaliser: str = "softmax") -> Encoder:
    config = tiny(2, mechanism)
    config = config.model_copy(update={"attention": config.attention.model_copy(update={"normaliser": normaliser})})
    spec = spec_of(config, config.task.build())
    return Encoder(spec, initial(spec, 2) * 3)


def batch(rows: int = 5, length: int = 8) -> Batch:
    drawn = tiny(1).task.build().sample(rows, seed=1, split="test")
    return Batch(drawn.tokens[:, :length], drawn.labels, drawn.lengths.clamp(max=length))


@pytest.mark.parametrize(("mechanism", "keys"), [("full", 8), ("topk:3", 3), ("bottomk:2", 2), ("randomk:5", 5)])
def test_a_mechanism_with_a_budget_keeps_it(mechanism: str, keys: int) -> None:
    counts = count_kept(untrained(mechanism), batch())
    assert counts["mean"] == keys
    assert counts["keys"] == 8


@pytest.mark.parametrize("normaliser", ["sparsemax", "entmax:1.5"])
def test_sparse_weights_keep_as_many_as_are_not_zero(normaliser: str) -> None:
    model, rows = untrained("full", normaliser), batch(4)
    counts = count_kept(model, rows)
    one_by_one = [
        (attention_weights(model, rows.tokens[i : i + 1], rows.lengths[i : i + 1]) != 0).sum(-1) for i in range(4)
    ]
    expected = torch.stack([torch.from_numpy(one).double() for one in one_by_one])  # (rows, blocks, heads, queries)
    assert counts["mean"] == pytest.approx(expected.mean().item())
    assert counts["layers"] == pytest.approx(expected.mean(dim=(0, 2, 3)).tolist())
    assert counts["mean"] < 8


def test_padding_is_neither_query_nor_key() -> None:
    rows = batch(3)
    short = Batch(rows.tokens, rows.labels, torch.tensor([8, 4, 2]))
    counts = count_kept(untrained("full"), short)
    assert counts["keys"] == pytest.approx((8 * 8 + 4 * 4 + 2 * 2) / 14)
    assert counts["mean"] == pytest.approx(counts["keys"])


def test_it_is_kept_with_the_run_and_measured_once(tmp_path: Path, monkeypatch) -> None:
    (run,) = trained([tiny(1, "topk:2", epochs=1)], tmp_path)
    assert missing(run, ("kept_keys", "lengths", "unknown")) == ["kept_keys", "lengths"]
    MEASURES["kept_keys"](run, runtime())
    assert missing(run, ("kept_keys",)) == []
    monkeypatch.setattr("semfocus.diagnostics.kept_keys.count_kept", None)
    assert measure_kept_keys(run, runtime=runtime()).mean == 2


def test_lengths_are_tested_up_to_500_or_twelve_times_those_of_training() -> None:
    assert lengths_to_test(40) == [40, 80, 160, 320, 500]
    assert lengths_to_test(64) == [64, 128, 256, 500]
    assert lengths_to_test(8) == [8, 16, 32, 64, 100]
    assert lengths_to_test(1)[0] == 1


def test_a_mean_beyond_the_keys_is_malformed() -> None:
    with pytest.raises(Malformed, match="between none and all"):
        KeptKeys.from_payload({"step": 1, "rows": 2, "mean": 9.0, "layers": [9.0], "keys": 8.0})
