"""Induction scores: those of the weights themselves, of a head that copies, and kept along the training of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semfocus.attention import attend
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.diagnostics.induction import induction_scores, measure_induction, repeated_halves
from semfocus.diagnostics.measuring import MEASURES, missing
from semfocus.diagnostics.shown_attention import attention_weights
from semfocus.errors import UsageError
from semfocus.measurements import Induction, Malformed
from semfocus.model.encoder import Encoder
from semfocus.spec import initial
from semfocus.training.cohort import spec_of
from tests.training.copy_task import Copy
from tests.training.helpers import runtime, tiny, trained

PAYLOAD = {"rows": 2, "half": 4, "points": {"0": {"tokens": 0, "heads": [[0.1, 0.2]], "loss": 2.0, "accuracy": 0.0}}}


class Copier(nn.Module):
    """One layer whose queries look for the key that follows their own token: an induction head by construction."""

    def __init__(self, vocab: int, mechanism: str, offset: int = 1) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.vocab, self.mechanism, self.offset = vocab, parse_mechanism(mechanism), offset

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        own = nn.functional.one_hot(tokens, self.vocab).float()  # (N, L, V)
        before = torch.roll(own, self.offset, dims=1)
        before[:, : self.offset] = 0
        out = attend(40 * own[:, None], before[:, None], own[:, None], self.mechanism, causal=True, scale=1.0)
        return out[:, 0]


def test_halves_are_distinct_tokens_that_occur_and_the_same_every_time() -> None:
    examples = torch.tensor([[3, 5, 9, 3], [7, 11, 5, 2]])
    halves = repeated_halves(examples, 5, 6)
    assert halves.shape == (6, 5)
    assert set(halves.flatten().tolist()) <= {2, 3, 5, 7, 9, 11}
    assert all(len(set(row)) == 5 for row in halves.tolist())
    assert torch.equal(halves, repeated_halves(examples, 5, 6))
    assert repeated_halves(examples, 100, 2).shape == (2, 6)
    with pytest.raises(UsageError, match="3 distinct tokens"):
        repeated_halves(examples, 3, 2)


@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
def test_a_head_that_copies_scores_one_and_one_that_looks_elsewhere_nothing(mechanism: str) -> None:
    halves = repeated_halves(torch.arange(12)[None], 8, 4)
    found = induction_scores(Copier(12, mechanism), halves)
    assert found["heads"] == [[pytest.approx(1.0, abs=1e-6)]]
    assert found["accuracy"] == 1.0
    elsewhere = induction_scores(Copier(12, mechanism, offset=2), halves)
    assert elsewhere["heads"][0][0] < 0.01  # type: ignore[index]
    assert elsewhere["accuracy"] < 0.2


@pytest.mark.parametrize("mechanism", ["full", "topk:2", "banded:3"])
def test_scores_are_the_weights_from_a_second_occurrence_to_what_followed_the_first(mechanism: str) -> None:
    config = tiny(2, mechanism, model={"blocks": 2, "heads": 2})
    spec = spec_of(config, Copy(length=8))
    model = Encoder(spec, initial(spec, 2) * 3).eval()
    halves = repeated_halves(torch.arange(spec.vocab_size)[None], 4, 3)
    tokens = torch.cat([halves, halves], dim=1)
    found = induction_scores(model, halves)
    rows = [attention_weights(model, row[None], torch.tensor([8])) for row in tokens]  # (blocks, heads, L, L) each
    for block in range(2):
        for head in range(2):
            weights = [float(row[block][head][4 + j][j + 1]) for row in rows for j in range(3)]
            assert found["heads"][block][head] == pytest.approx(sum(weights) / len(weights), abs=1e-6)  # type: ignore[index]
    logits = model(tokens, torch.full((3,), 8)).double()
    loss = nn.functional.cross_entropy(logits[:, 4:7].reshape(9, -1), tokens[:, 5:].reshape(9))
    assert found["loss"] == pytest.approx(loss.item())


def test_every_kept_checkpoint_of_a_run_is_measured_once_and_kept(tmp_path: Path, monkeypatch) -> None:
    config = tiny(1, task="copy_string", epochs=4)
    (run,) = trained([config], tmp_path, keep_shares=(0.0, 0.25, 0.5))
    assert missing(run, ("induction",)) == ["induction"]
    MEASURES["induction"](run, runtime())
    measured = measure_induction(run, runtime=runtime())
    total = max(run.checkpoint_steps())
    assert {0, total // 4, total // 2, total} <= set(measured.steps)
    batch = config.training.batch_size
    assert measured.tokens == [step * batch * config.task.build().seq_len for step in measured.steps]
    monkeypatch.setattr("semfocus.diagnostics.induction.induction_scores", None)  # it is there already
    assert measure_induction(run, runtime=runtime()).document == measured.document


def test_a_classifier_has_no_next_token(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=1)], tmp_path)
    with pytest.raises(UsageError, match="predicts no next token"):
        measure_induction(run)


def test_a_stored_measurement_is_checked_and_merges_by_step() -> None:
    first = Induction.from_payload(PAYLOAD)
    later = Induction.from_payload(PAYLOAD | {"points": {"20": {**PAYLOAD["points"]["0"], "heads": [[0.1], [0.5]]}}})
    merged = later.merged(first)
    assert merged.steps == [0, 20]
    assert merged.best_heads == [0.2, 0.5]
    point = PAYLOAD["points"]["0"]
    for wrong in ({"accuracy": 1.5}, {"heads": [[2.0]]}, {"loss": "low"}, {"heads": 3}):
        with pytest.raises(Malformed):
            Induction.from_payload(PAYLOAD | {"points": {"0": point | wrong}})
    for points in ({}, {"x": point}, {"-1": point}):
        with pytest.raises(Malformed):
            Induction.from_payload(PAYLOAD | {"points": points})
