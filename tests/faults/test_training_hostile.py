"""Rows 50 to 52 as `load` and `train` meet them: a stranger's run directory is refused, and has no effects."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from semfocus.errors import CorruptData, UsageError
from semfocus.execution import train
from semfocus.store import RunDirectory, checkpoints
from semfocus.training import load
from tests.training.helpers import runtime, tensors, tiny, trained


class _Bomb:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.place),)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return trained([tiny(1)], tmp_path / "runs")[0]


def _plant(run: RunDirectory, data: bytes) -> None:
    """Put `data` in the place of the newest tensors, under a manifest that vouches for it."""
    step = run.checkpoint_steps()[0]
    body = checkpoints.read_manifest(run.path / "checkpoints", step)
    files = {"state.safetensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    directory = run.path / "checkpoints" / str(step)
    (directory / "state.safetensors").write_bytes(data)
    (directory / "manifest.json").write_bytes(checkpoints._sealed({"format": 1, **body, "files": files}))


def test_a_pickle_is_refused_unread(run: RunDirectory, tmp_path: Path) -> None:
    """Row 50."""
    bomb = pickle.dumps(_Bomb(tmp_path / "exploded"))
    _plant(run, bomb)
    with pytest.raises(CorruptData, match="not a safetensors file"):
        load(run)
    path = tmp_path / "model.pt"
    torch.save(_Bomb(tmp_path / "exploded"), path)
    with pytest.raises(UsageError, match="never loaded"):
        load(path)
    assert not (tmp_path / "exploded").exists()


def test_crafted_tensors_take_no_memory(run: RunDirectory) -> None:
    """Row 51."""
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
    """Row 52."""
    row = tensors(run)["parameters"]
    cases = {
        r"parameters is F32 \(3,\), not F32 \(\d+,\)": {"parameters": row[:3].clone()},
        r"parameters is F64 \(\d+,\), not F32": {"parameters": row.double()},
        r"parameters is I32 \(\d+,\), not F32": {"parameters": row.int()},
        r"parameters is missing; weights is not expected": {"weights": row},
        r"extra is not expected": {"parameters": row, "extra": torch.zeros(1)},
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


def _edit_config(run: RunDirectory, section: str, **values: Any) -> None:
    path = run.path / "config.json"
    document = json.loads(path.read_text())
    document["config"][section].update(values)
    path.write_text(json.dumps(document))


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
    """Row 52."""
    _edit_config(run, section, **values)
    started = time.monotonic()
    with pytest.raises(CorruptData, match="does not describe a model"):
        load(run)
    assert time.monotonic() - started < 5  # a billion blocks would take much longer


@pytest.mark.parametrize(
    ("section", "values"),
    [("sizes", {"vocab_size": 10**12}), ("model", {"d_model": 2**40}), ("model", {"heads": 10**9})],
)
def test_a_config_of_a_huge_model_is_refused_before_memory_is_taken(
    run: RunDirectory, section: str, values: dict[str, Any]
) -> None:
    """Row 51."""
    _edit_config(run, section, **values)
    with pytest.raises(CorruptData, match=r"other tensors than this model|does not describe a model"):
        load(run)
