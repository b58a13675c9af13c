"""Measurements of trained runs agree with a plain computation, at any kept checkpoint, and are stored with the run."""

from __future__ import annotations

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from semfocus.diagnostics.aggregate import PERCENTS
from semfocus.diagnostics.checkpoint_stats import checkpoint_stats, weight_norms
from semfocus.diagnostics.runs import find_run, measure_run, tables
from semfocus.encodings import sinusoidal_encoding
from semfocus.errors import CorruptData, UsageError
from semfocus.measurements import Dispersion, keep, read
from semfocus.model.inputs import build_inputs
from semfocus.store import DamagedMeasurement, RunDirectory, read_measurement, write_measurement
from semfocus.store.measurements import changing
from semfocus.tasks.base import Batch
from semfocus.theory import stability
from semfocus.training import data, load
from semfocus.training.loading import config_of
from tests.diagnostics.models import encoder
from tests.diagnostics.reference import plain_statistics, quantile
from tests.measurements import payloads
from tests.measurements.payloads import stored
from tests.store.helpers import forge


def scores_by_hand(run: RunDirectory, split: str, rows: int) -> torch.Tensor:
    """(rows, L, L) scores of the first block, straight from the weights."""
    model, config = load(run), config_of(run)
    batch = dict(zip(("train", "heldout"), data.load(config, config.task.build()), strict=True))[split]
    ids, _ = build_inputs(batch.tokens[:rows], batch.lengths[:rows], model.spec)
    weights = {name.replace("__", "."): value.detach().double() for name, value in model.named_parameters()}
    x = weights["embedding"][ids] * math.sqrt(8) + sinusoidal_encoding(8, 8, torch.device("cpu")).double()
    x = functional.layer_norm(x, (8,))
    q, k, _ = (x @ weights["blocks.0.qkv.weight"] + weights["blocks.0.qkv.bias"]).chunk(3, -1)
    return q @ k.mT / math.sqrt(8)


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("which", [0, 1])
def test_the_first_layer_of_a_run_agrees_with_scores_computed_from_its_weights(
    runs: list[RunDirectory], split: str, which: int
) -> None:
    run = runs[which]
    measured = measure_run(run, k=3, split=split, rows=15).measured.document
    scores = scores_by_hand(run, split, 15)
    every = torch.ones(8, 8, dtype=torch.bool)
    parts = [plain_statistics(row, every, 3) for row in scores]
    layer = measured["checkpoints"]["last"]["layers"][0]
    for name in ("delta_full", "delta_heavy", "separation", "in_degree", "entropy"):
        values = [value for part in parts for value in part[name]]
        for percent in PERCENTS:
            level = int(percent) / 100
            expected = quantile(values, 1 - level if name == "separation" else level)
            assert layer[name][percent] == pytest.approx(expected, rel=1e-4, abs=1e-5), (name, percent)
    assert layer["delta"] == layer["delta_heavy" if which else "delta_full"]
    assert (measured["k"], measured["split"], measured["rows"]) == (3, split, 15)


def test_every_kept_checkpoint_can_be_measured_and_is_stored_with_the_run(runs: list[RunDirectory]) -> None:
    document = measure_run(runs[0], k=3, rows=10, checkpoint="all").measured.document
    assert read_measurement(runs[0], "dispersion") == document
    assert list(document["checkpoints"]) == ["0", "1", "2", "last"]
    assert [document["checkpoints"][key]["epoch"] for key in document["checkpoints"]] == [0.0, 1.0, 2.0, 2.0]
    assert document["checkpoints"]["2"] == document["checkpoints"]["last"]
    assert document["checkpoints"]["0"]["delta_full"] != document["checkpoints"]["last"]["delta_full"]
    for checkpoint in document["checkpoints"].values():
        for name in ("delta", "delta_full", "delta_heavy", "separation", "in_degree", "entropy"):
            assert set(checkpoint[name]) == set(PERCENTS)
        assert len(checkpoint["layers"]) == 2


def test_one_checkpoint_is_added_to_those_measured_the_same_way(runs: list[RunDirectory]) -> None:
    measure_run(runs[0], k=3, rows=10, checkpoint="0")
    assert list(measure_run(runs[0], k=3, rows=10).measured.document["checkpoints"]) == ["0", "last"]
    assert list(measure_run(runs[0], k=4, rows=10).measured.document["checkpoints"]) == ["last"]
    shown = read(runs[0], Dispersion)
    assert shown is not None
    assert shown.k == 4


def test_measuring_with_other_settings_keeps_earlier_measurements(runs: list[RunDirectory]) -> None:
    measure_run(runs[0], k=3, rows=10, checkpoint="all")
    measure_run(runs[0], k=3, rows=5, split="heldout")
    measure_run(runs[0], k=4, rows=10)
    kept = [document or {} for document in stored(runs[0]).values()]
    settings = [(document["k"], document["split"], document["rows"]) for document in kept]
    assert sorted(settings) == [(3, "heldout", 5), (3, "train", 10), (4, "train", 10)]
    again = measure_run(runs[0], k=3, rows=10, checkpoint="1").measured.document
    assert list(again["checkpoints"]) == ["0", "1", "2", "last"]
    assert read_measurement(runs[0], "dispersion") == again


def test_the_plain_name_belongs_to_the_default_settings(runs: list[RunDirectory]) -> None:
    measure_run(runs[0], k=3, rows=10)
    usual = measure_run(runs[0], checkpoint="0").measured.document
    assert (usual["k"], usual["rows"]) == (5, 60)  # it has no more
    measure_run(runs[0], split="heldout", rows=7)
    assert read_measurement(runs[0], "dispersion") == usual
    assert len(stored(runs[0])) == 3


def test_a_measurement_of_an_earlier_version_is_read_and_merged(runs: list[RunDirectory]) -> None:
    old = measure_run(runs[0], k=3, rows=10, checkpoint="0").measured.document
    for checkpoint in old["checkpoints"].values():
        del checkpoint["fewest_keys"]
    write_measurement(runs[0], "dispersion", old)
    assert list(measure_run(runs[0], k=3, rows=10).measured.document["checkpoints"]) == ["0", "last"]


def test_a_checkpoint_that_is_no_longer_the_last_is_named_by_its_epoch(runs: list[RunDirectory]) -> None:
    old = measure_run(runs[0], k=3, rows=10).measured.document
    old["checkpoints"]["last"]["epoch"] = 0.5
    for checkpoint, expected in (("1", ["0.5", "1"]), ("last", ["0.5", "last"]), ("0", ["last", "0"])):
        write_measurement(runs[0], "dispersion", old)
        run = measure_run(runs[0], k=3, rows=10, checkpoint=checkpoint)
        assert list(run.measured.document["checkpoints"]) == expected
        assert list(run.now.checkpoints) == [checkpoint]


def _keep_one(run: RunDirectory, epoch: int) -> None:
    keep(run, Dispersion.from_payload(payloads.dispersion({str(epoch): payloads.checkpoint(epoch)})))


def test_a_measurement_waits_for_another_process_and_keeps_its_checkpoints(runs: list[RunDirectory]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with changing(runs[0]):
            waiting = pool.submit(_keep_one, runs[0], 1)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
            write_measurement(runs[0], "dispersion", payloads.dispersion({"0": payloads.checkpoint(0)}))
        waiting.result(timeout=60)
    measured = read(runs[0], Dispersion)
    assert measured is not None
    assert sorted(measured.checkpoints) == ["0", "1"]


def test_a_damaged_measurement_is_replaced_and_others_are_kept(runs: list[RunDirectory]) -> None:
    measure_run(runs[0], k=3, rows=10, checkpoint="0")
    measure_run(runs[0], k=4, rows=10)
    (runs[0].path / "measurements" / "dispersion.json").write_text('{"corrupt')
    with pytest.warns(DamagedMeasurement, match=r"dispersion\.json"):
        measure_run(runs[0], k=4, rows=10)
    shown = read(runs[0], Dispersion)
    assert shown is not None
    assert shown.k == 4
    assert list(measure_run(runs[0], k=3, rows=10).measured.document["checkpoints"]) == ["0", "last"]


def test_a_top_k_run_is_measured_with_its_own_k(runs: list[RunDirectory]) -> None:
    assert measure_run(runs[1], k=5, rows=5).measured.document["k"] == 3
    assert measure_run(runs[0], k=5, rows=5).measured.document["k"] == 5


def test_exact_softmax_slopes_stay_below_their_certified_bounds(runs: list[RunDirectory]) -> None:
    last = measure_run(runs[0], k=3, rows=20).measured.document["checkpoints"]["last"]
    worst = last["stability"]["100"]
    assert 0 < worst["jacobian"] <= worst["full_certified"] * (1 + 1e-6)
    assert last["layers"][0]["stability"]["100"]["jacobian"] <= worst["jacobian"]


@pytest.mark.parametrize("k", [1, 3, 6])
def test_certified_bounds_hold_where_rows_differ_in_length(runs: list[RunDirectory], k: int) -> None:
    for run in (runs[0], runs[2]):
        config = config_of(run)
        train, _ = data.load(config, config.task.build())
        padded = Batch(train.tokens[:4], train.labels[:4], torch.tensor([1, 2, 3, 8]))
        last = checkpoint_stats(load(run), padded, k, "cpu")
        assert (last["keys"], last["fewest_keys"]) == (8, 2)  # a single key has weight 1, whatever happens
        layers = [last, *last["layers"], *(head for layer in last["layers"] for head in layer["heads"])]
        for part in layers:
            worst = part["stability"]["100"]
            assert 0 < worst["jacobian"] <= worst["full_certified"] * (1 + 1e-6)
            kept, gap = min(k, 2), part["separation"]["100"]
            bound = stability(part["delta_heavy"]["100"], kept, math.inf if gap is None else gap, 1, "certified")
            assert worst["heavy_certified"] == pytest.approx(float(bound))


def test_each_of_several_heads_is_stored(runs: list[RunDirectory]) -> None:
    last = measure_run(runs[2], k=3, rows=5).measured.document["checkpoints"]["last"]
    heads = last["layers"][0]["heads"]
    assert len(heads) == 2
    assert heads[0]["delta_full"] != heads[1]["delta_full"]
    assert len(last["layers"][0]["gamma"]) == 2
    for head in heads:
        assert set(head["jacobian"]) == set(PERCENTS)
        assert head["stability"]["100"]["jacobian"] == head["jacobian"]["100"]


def test_zero_rows_are_all_rows(runs: list[RunDirectory]) -> None:
    assert measure_run(runs[0], k=3, rows=0).measured.document["rows"] == 60


def test_table_6_has_pairs_by_task_and_seed_and_each_run_alone(runs: list[RunDirectory]) -> None:
    rows = tables([measure_run(run, k=3, rows=10) for run in runs])
    ways = [(row["way"], row.get("run")) for row in rows]
    assert ways == [
        ("two models", runs[1].id),
        *(("one model", run.id) for run in runs),
        ("published", None),
    ]
    both, full, heavy = rows[0], rows[1], rows[2]
    assert both["full"] == runs[0].id
    for percent in ("75", "90", "95", "100"):
        assert both["cells"][percent]["delta_full"] == full["cells"][percent]["delta_full"]
        assert both["cells"][percent]["delta_heavy"] == heavy["cells"][percent]["delta_heavy"]
        alone = heavy["cells"][percent]
        if percent == "100":
            assert alone["delta_heavy"] + alone["separation"] <= alone["delta_full"] + 1e-6
    json.dumps(rows, allow_nan=False)


def test_weight_norms_are_spectral_norms_of_the_weights() -> None:
    model = encoder(heads=2)
    (first, _) = weight_norms(model)
    weights = {name.replace("__", "."): value.detach().double() for name, value in model.named_parameters()}
    q, k, v = weights["blocks.0.qkv.weight"].chunk(3, dim=1)
    for h in range(2):
        own = slice(8 * h, 8 * h + 8)
        exact = torch.linalg.svdvals(q[:, own] @ k[:, own].mT / math.sqrt(8))[0]
        assert first["gamma"][h] == pytest.approx(float(exact))
        out = torch.linalg.svdvals(v[:, own] @ weights["blocks.0.o.weight"][own])[0]
        assert first["upsilon"][h] == pytest.approx(float(out))
    mlp = [torch.linalg.svdvals(weights[f"blocks.0.{name}.weight"])[0] for name in ("mlp_in", "mlp_out")]
    assert first["mlp"] == pytest.approx(float(mlp[0] * mlp[1]))


def test_invalid_options_are_refused_by_name(runs: list[RunDirectory], tmp_path: Path) -> None:
    for options, message in (
        ({"checkpoint": "7"}, "no checkpoint of epoch 7; it has 0, 1, 2"),
        ({"checkpoint": "first"}, "'first' must be last, all or an epoch"),
        ({"split": "test"}, "unknown split 'test'"),
        ({"rows": -1}, "rows = -1"),
        ({"k": 0}, "k = 0"),
        ({"k": 9}, "k = 9 exceeds the length of the rows, 8"),
    ):
        with pytest.raises(UsageError, match=message):
            measure_run(runs[0], **options)
    assert read_measurement(runs[0], "dispersion") is None


def test_a_checkpoint_of_another_library_is_refused(runs: list[RunDirectory], tmp_path: Path) -> None:
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CorruptData, match=r"config\.json"):
        measure_run(find_run(str(folder)))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="--model"):
        find_run(str(folder))
    with pytest.raises(UsageError, match="not there"):
        find_run(str(tmp_path / "nothing" / "here"))


def test_weights_that_do_not_fit_the_configuration_are_refused(runs: list[RunDirectory]) -> None:
    forged = forge(runs[0], lambda fields: fields["model"].update(d_model=16))
    with pytest.raises(CorruptData, match="other tensors than this model"):
        measure_run(forged)


def test_a_run_without_a_checkpoint_is_refused(runs: list[RunDirectory]) -> None:
    shutil.rmtree(runs[0].path / "checkpoints")
    with pytest.raises(UsageError, match="train it first"):
        measure_run(runs[0])
