"""Noise on the inputs: no noise keeps every key, more noise keeps fewer, and wide gaps hold out longer."""

from __future__ import annotations

import json
import math

import pytest
import torch

from semfocus.attention.inspection import observing
from semfocus.diagnostics import masks
from semfocus.diagnostics.masks import measure_mask_stability
from semfocus.errors import UsageError
from semfocus.model.forward import forward
from semfocus.model.inputs import build_inputs
from semfocus.store import RunDirectory, read_measurement
from semfocus.tasks.base import Batch
from tests.diagnostics.models import encoder, rows


def test_without_noise_all_keys_stay_and_with_more_noise_fewer(runs: list[RunDirectory]) -> None:
    document = measure_mask_stability(runs[1], noise=(0.0, 0.1, 1.0, 10.0), rows=40).document
    assert read_measurement(runs[1], "mask_stability") == document
    assert document["k"] == 3
    assert document["kept"][0] == document["kept_low"][0] == 1.0
    assert 1.0 > document["kept"][1] > document["kept"][2] > document["kept"][3] > 3 / 8 - 0.15
    assert all(low <= mean for low, mean in zip(document["kept_low"], document["kept"], strict=True))
    assert [layer["kept"][0] for layer in document["layers"]] == [1.0, 1.0]
    assert sum(document["by_separation"]["queries"]) == 2 * 40 * 8
    json.dumps(document, allow_nan=False)


def test_keys_of_queries_with_a_larger_separation_stay_more_often(runs: list[RunDirectory]) -> None:
    document = measure_mask_stability(runs[0], k=3, noise=(0.03,), rows=60).document
    groups = document["by_separation"]
    known = [share for share, count in zip(groups["kept"][0], groups["queries"], strict=True) if count > 20]
    assert len(known) >= 2
    assert known == sorted(known)
    assert set(document["separation"]) == {"50", "75", "90", "95", "100"}


def test_the_same_call_gives_the_same_numbers_and_touches_no_global_generator(runs: list[RunDirectory]) -> None:
    state = torch.get_rng_state()
    documents = [measure_mask_stability(runs[0], k=3, noise=(0.1,), rows=20).document for _ in range(2)]
    assert documents[0] == documents[1]
    assert torch.equal(state, torch.get_rng_state())


def test_shares_agree_with_sets_compared_query_by_query() -> None:
    model, given = encoder("full", heads=2), rows(3)
    batch = Batch(given, torch.zeros(3), torch.tensor([8, 8, 4]))
    noise = torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(1))
    kept, gaps = masks._heaviest(model, batch, 2, 0.5 * noise)
    scores = []

    def look(inputs, grouped):
        scores.append(((inputs.q @ inputs.k.mT) * inputs.scale)[0])

    ids, lengths = build_inputs(given, batch.lengths, model.spec)
    parameters = {name.replace("__", "."): value.unsqueeze(0) for name, value in model.named_parameters()}
    from dataclasses import replace

    from semfocus.model.forward_fns import EAGER

    def shaken(*args):
        clean = EAGER.embed(*args)
        return clean + 0.5 * noise * clean.std(correction=0)

    with observing(look), torch.no_grad():
        forward(parameters, ids[None], lengths[None], model.spec, None, replace(EAGER, embed=shaken))
    for layer in range(2):
        for row in range(3):
            length = int(batch.lengths[row])
            for head in range(2):
                for query in range(8):
                    own = set(kept[layer][0, row, head, query].tolist())
                    if query >= length:
                        assert own == {-1}
                        continue
                    ordered = scores[layer][row, head, query, :length].sort(descending=True)
                    assert own == set(ordered.indices[:2].tolist())
                    gap = float(ordered.values[1] - ordered.values[2])
                    assert float(gaps[layer][0, row, head, query]) == pytest.approx(gap, abs=1e-5)


@pytest.mark.parametrize("noise", [(), (-0.1,), (math.nan,), (math.inf,)])
def test_invalid_noise_is_refused(runs: list[RunDirectory], noise: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="noise"):
        measure_mask_stability(runs[0], noise=noise)


def test_k_above_the_length_is_refused_and_k_equal_to_it_has_no_result(runs: list[RunDirectory]) -> None:
    with pytest.raises(UsageError, match="k = 9 exceeds the length of the rows, 8"):
        measure_mask_stability(runs[0], k=9)
    document = measure_mask_stability(runs[0], k=8, noise=(0.1,), rows=5).document
    assert document["kept"] == [None]
    assert document["kept_low"] == [None]
