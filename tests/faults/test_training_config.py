"""An invalid configuration is refused with the name of its field, and has no effect."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from semfocus.config_files import MAX_BYTES, apply_overrides, parse_config, read_config
from semfocus.errors import UsageError
from semfocus.execution import train
from tests.training.helpers import runtime, tiny

TASK: dict[str, Any] = {"task": {"name": "even_pairs"}}


def _refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        parse_config(TASK | changes)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    "mechanism", ["topk:9", "bottomk:9", "randomk:9", "randomk_replaced:9", "banded:9", "block_local:9"]
)
def test_more_keys_than_the_sequence_has_are_refused_before_anything_is_made(tmp_path: Path, mechanism: str) -> None:
    with pytest.raises(UsageError, match=rf"attention.mechanism = {mechanism}: (k|width) = 9 exceeds .* 8 .* <= 8"):
        train([tiny(1, mechanism)], tmp_path / "runs", runtime())
    assert not (tmp_path / "runs").exists()


def test_as_many_keys_as_the_sequence_has_are_allowed(tmp_path: Path) -> None:
    assert train([tiny(1, "topk:8", epochs=1)], tmp_path, runtime())[0].state == "done"


@pytest.mark.parametrize("size", ["0", "-3", "2.5", "five", "", "1e3", "0x5"])
def test_a_k_that_is_no_positive_whole_number_is_refused(size: str) -> None:
    message = _refusal({"attention": {"mechanism": f"topk:{size}"}})
    assert message.startswith("attention.mechanism: ")
    assert "whole number" in message or "at least 1" in message


@pytest.mark.parametrize("rate", [-0.1, 0, 0.0, float("nan"), float("inf"), "0.1", True, None])
def test_a_learning_rate_that_is_no_positive_number_is_refused(rate: Any) -> None:
    message = _refusal({"training": {"lr": rate}})
    assert message.startswith(f"training.lr = {rate!r}: must be")


@pytest.mark.parametrize(
    ("place", "guess"),
    [
        (("training", "epoch"), "training.epochs"),
        (("training", "learning_rate"), "training.lr"),
        (("attention", "k"), "attention.mechanism"),
        (("model", "zzz"), None),
        (("training", "optimiser"), "training.optimizer"),
        (("model", "block"), "model.blocks"),
        (("model", "d_modle"), "model.d_model"),
        (("attention", "mecanism"), "attention.mechanism"),
        (("task", "option"), "task.options"),
        (("traning",), "training"),
        (("lr",), "training.lr"),
        (("batch_size",), "training.batch_size"),
        (("model", "lr"), "training.lr"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(place: tuple[str, ...], guess: str | None) -> None:
    config = apply_overrides(TASK, [f"{'.'.join(place)}=1"])
    with pytest.raises(UsageError) as caught:
        parse_config(config)
    message = str(caught.value)
    assert f"unknown key {'.'.join(place)!r}" in message
    assert (f"did you mean {guess!r}?" in message) if guess else ("did you mean" not in message)
    assert "known: " in message


def test_every_wrong_field_is_named_at_once() -> None:
    message = _refusal({"training": {"lr": -1, "epochs": 2.5}, "model": {"activation": "tanh"}, "seeds": 3, "seed": -1})
    for part in ("training.lr = -1", "training.epochs = 2.5", "model.activation = 'tanh'", "'seeds'", "seed = -1"):
        assert part in message


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".yml"])
def test_a_huge_file_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(UsageError, match=f"larger than {MAX_BYTES} bytes"):
        read_config(path)


DEEP = {
    "lists.yaml": "task: " + "[" * 5000,
    "tables.yaml": "task: " + "{a: " * 3000,
    "indented.yaml": "\n".join(f"{' ' * i}a:" for i in range(150)),
    "lists.toml": "task = " + "[" * 5000,
    "tables.toml": "task = " + "{a = " * 3000,
    "dotted.toml": ".".join(["a"] * 8000) + " = 1",
    "nine.yaml": "{a: {a: {a: {a: {a: {a: {a: {a: {a: 1}}}}}}}}}",
    "nine.toml": "a.a.a.a.a.a.a.a.a = 1",
}


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_file_is_refused_and_does_not_take_the_process_down(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(DEEP[name])
    assert len(DEEP[name]) <= MAX_BYTES
    started = time.monotonic()
    with pytest.raises(UsageError, match="nested deeper than 8 levels"):
        read_config(path)
    assert time.monotonic() - started < 20


def test_eight_levels_are_not_too_deep(tmp_path: Path) -> None:
    """The cap is where it is said to be."""
    path = tmp_path / "run.yaml"
    path.write_text("{a: {a: {a: {a: {a: {a: {a: 1}}}}}}}")
    assert read_config(path)["a"]["a"]["a"]["a"]["a"]["a"]["a"] == 1


CODE = {
    "python object": "task: !!python/object/apply:os.mkdir [{place}]",
    "python name": "task: !!python/name:os.system",
    "own tag": "task: !os.mkdir {place}",
    "standard tag": "task: !!str 5",
    "tag on a list": "task: !!python/tuple [1, 2]",
    "tag on a key": "!!python/name:os.system : 1",
    "bomb of aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "merge": "base: &base {{lr: 1}}\ntraining: {{<<: *base}}",
}


@pytest.mark.parametrize("name", CODE)
def test_a_file_is_data_and_nothing_in_it_is_run_or_expanded(tmp_path: Path, name: str) -> None:
    path, place = tmp_path / "run.yaml", tmp_path / "made"
    path.write_text(CODE[name].format(place=place))
    with pytest.raises(UsageError, match=r"the tag '.*' is not read|anchors and aliases are not read"):
        read_config(path)
    assert not place.exists()


@pytest.mark.parametrize("name", ["os.system", "tests.training.helpers", "__import__('os')", "../even_pairs"])
def test_a_dotted_name_is_a_name_and_imports_nothing(name: str) -> None:
    with pytest.raises(UsageError, match="unknown task"):
        parse_config({"task": {"name": name}}).task.build()
    with pytest.raises(UsageError, match="mechanism"):
        parse_config(TASK | {"attention": {"mechanism": name}})
