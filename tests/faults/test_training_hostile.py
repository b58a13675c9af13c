"""`load` and `train` refuse untrusted run directories without effects."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from semfocus.errors import CorruptData, UsageError
from semfocus.execution import train
from semfocus.store import RunDirectory, checkpoints
from semfocus.training import load
from tests.store.helpers import Bomb, forge, plant
from tests.training.helpers import runtime, tensors, tiny, trained


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return trained([tiny(1)], tmp_path / "runs")[0]


def _plant(run: RunDirectory, data: bytes) -> None:
    """Replace the tensors of the newest checkpoint, under a valid manifest."""
    step = run.checkpoint_steps()[0]
    plant(run, data, **checkpoints.read_manifest(run.path / "checkpoints", step))


def test_a_pickle_is_refused_unread(run: RunDirectory, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    _plant(run, bomb)
    with pytest.raises(CorruptData, match="not a safetensors file"):
        load(run)
    path = tmp_path / "model.pt"
    torch.save(Bomb(tmp_path / "exploded"), path)
    with pytest.raises(UsageError, match="never loaded"):
        load(path)
    assert not (tmp_path / "exploded").exists()


def test_crafted_tensors_take_no_memory(run: RunDirectory) -> None:
    header = json.dumps({"parameters": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    overlap = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    twice = json.dumps({"parameters": overlap, "other": overlap}).encode()
    for text in (header, twice):
        _plant(run, len(text).to_bytes(8, "little") + text + bytes(4))
        tracemalloc.start()
        with pytest.raises(CorruptData, match=r"state\.safetensors"):
            load(run)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000


def test_tensors_of_another_model_are_refused_and_listed(run: RunDirectory, tmp_path: Path) -> None:
    parameters = tensors(run)["parameters"]
    cases = {
        r"parameters is F32 \(3,\), not F32 \(\d+,\)": {"parameters": parameters[:3].clone()},
        r"parameters is F64 \(\d+,\), not F32": {"parameters": parameters.double()},
        r"parameters is I32 \(\d+,\), not F32": {"parameters": parameters.int()},
        r"parameters is missing; weights is not expected": {"weights": parameters},
        r"extra is not expected": {"parameters": parameters, "extra": torch.zeros(1)},
    }
    for message, values in cases.items():
        _plant(run, save(values))
        with pytest.raises(CorruptData, match=message) as caught:
            load(run)
        assert caught.value.exit_code == 5
        with run.lock() as writer:
            writer.write_status("interrupted")
        with pytest.raises(CorruptData, match=message):
            train([tiny(1)], tmp_path / "runs", runtime())


def _forged(run: RunDirectory, section: str, values: dict[str, Any]) -> RunDirectory:
    return forge(run, lambda fields: fields[section].update(values))


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("model", {"blocks": 10**9}),
        ("model", {"blocks": -1}),
        ("model", {"d_model": "8"}),
        ("model", {"import": "os"}),
        ("attention", {"mechanism": "os.system:5"}),
        ("attention", {"mechanism": "topk:-5"}),
        ("sizes", {"vocab_size": -5}),
        ("sizes", {"num_classes": 2.5}),
        ("sizes", {"seq_len": True}),
        ("sizes", {"seq_len": None}),
        ("training", {"optimizer": "../adam"}),
    ],
)
def test_a_config_that_describes_no_model_is_refused(run: RunDirectory, section: str, values: dict[str, Any]) -> None:
    run = _forged(run, section, values)
    started = time.monotonic()
    with pytest.raises(CorruptData, match="does not describe a model"):
        load(run)
    assert time.monotonic() - started < 5  # building a billion blocks takes much longer


@pytest.mark.parametrize(
    ("section", "values"),
    [("sizes", {"vocab_size": 10**12}), ("model", {"d_model": 2**40}), ("model", {"heads": 10**9})],
)
def test_a_config_of_a_huge_model_is_refused_before_memory_is_taken(
    run: RunDirectory, section: str, values: dict[str, Any]
) -> None:
    run = _forged(run, section, values)
    with pytest.raises(CorruptData, match=r"other tensors than this model|does not describe a model"):
        load(run)
