"""What a run is, what its id depends on, and configurations from files, overrides and dictionaries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.config_files import apply_overrides, parse_config, read_config
from semfocus.errors import UsageError
from semfocus.tasks import get_task

BASE: dict[str, Any] = {
    "task": {"name": "even_pairs", "options": {"length": 10}, "train_rows": 50, "heldout_rows": 20},
    "attention": {"mechanism": "topk:3"},
    "seed": 7,
}


def _id(overrides: list[str]) -> str:
    config = parse_config(apply_overrides(BASE, overrides))
    return config.run_id(config.task.build())


# One other value for every field there is; a field without one fails the test below.
OTHER: dict[str, str] = {
    "task.name": "parity",
    "task.options": '{"length": 11}',
    "task.train_rows": "51",
    "task.heldout_rows": "21",
    "task.lengths": "2-10",
    "attention.mechanism": "topk:4",
    "attention.normaliser": "sigmoid",
    "attention.inverse_temperature": "2",
    "model.blocks": "4",
    "model.heads": "2",
    "model.d_model": "32",
    "model.d_mlp": "32",
    "model.head_width": "split",
    "model.activation": "gelu",
    "model.norm": "post",
    "model.pooling": "cls",
    "model.dropout": "0.02",
    "model.padding_visible": "true",
    "model.pad_to_multiple": "true",
    "model.dropout_in_evaluation": "true",
    "model.first_norm_exact": "true",
    "model.positions": "randomized:77",
    "model.norm_function": "rmsnorm",
    "model.final_norm": "true",
    "model.biases": "false",
    "model.tied_head": "true",
    "model.init": "normal",
    "training.epochs": "99",
    "training.batch_size": "24",
    "training.optimizer": "adam",
    "training.lr": "0.2",
    "training.decay": "0.9",
    "training.clip": "null",
    "training.schedule": "cosine",
    "training.warmup": "0.1",
    "training.final_lr": "0.1",
    "training.cooldown": "0.2",
    "training.beta2": "0.95",
    "training.evaluated_rows": "40",
    "training.weight_decay": "0.1",
    "training.drop_one_row": "true",
    "training.stop_accuracy": "0.95",
    "training.patience": "3",
    "training.patience_on": "validation",
    "training.evaluate_test": "true",
    "training.tuned": "lr of 0.1, 0.3",
    "seed": "8",
    "precision": "tf32",
    "label": "mine",
}
ALONGSIDE = {"training.schedule": ["training.decay=1"]}  # what another value of a field asks of others
PARTS = {"task": TaskConfig, "attention": AttentionConfig, "model": ModelConfig, "training": TrainingConfig}


def test_the_table_of_other_values_names_every_field() -> None:
    fields = [f"{part}.{name}" for part, model in PARTS.items() for name in model.model_fields]
    fields += [name for name in RunConfig.model_fields if name not in PARTS]
    assert sorted(OTHER) == sorted(fields)


@pytest.mark.parametrize("field", [field for field in OTHER if field != "label"])
def test_every_field_that_decides_the_result_changes_the_id(field: str) -> None:
    alongside = ALONGSIDE.get(field, [])
    assert _id([*alongside, f"{field}={OTHER[field]}"]) != _id(alongside)


def test_all_these_ids_are_different() -> None:
    ids = [_id([*ALONGSIDE.get(field, []), f"{field}={value}"]) for field, value in OTHER.items() if field != "label"]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "overrides",
    [
        ["label=mine"],
        ["label=" + "\u202e\U0001f600 a\u0301"],
        ["model.blocks=5", "training.lr=0.1", "training.stop_accuracy=null"],  # the defaults, written out
        ["attention.mechanism= TOPK:3 "],
        ["training.clip=0.50"],
        ["attention.inverse_temperature=1"],
        ["training.patience_on=training", "training.evaluate_test=false", "training.tuned="],  # later fields
    ],
)
def test_what_does_not_decide_the_result_leaves_the_id_as_it_is(overrides: list[str]) -> None:
    assert _id(overrides) == _id([])


def test_an_id_is_the_same_for_ever() -> None:
    """Finished runs are found again by it: a change of any default or name must raise FORMAT, knowingly."""
    assert _id([]) == "a8b35eaea4a0dae6"
    assert set(_id([])) <= set("0123456789abcdef")


def test_default_options_written_out_are_the_same_run() -> None:
    configs = [RunConfig(task=TaskConfig(name="even_pairs", options=options)) for options in ({}, {"length": 40})]
    first, second = (config.run_id(config.task.build()) for config in configs)
    assert first == second


def test_the_place_of_a_file_is_not_part_of_the_id_and_its_content_is(tmp_path: Path) -> None:
    text = "text,label\n" + "\n".join(f"{'ab' * (i % 9 + 1)},{i % 2}" for i in range(80)) + "\n"
    (tmp_path / "deep").mkdir()
    paths = [tmp_path / "a.csv", tmp_path / "deep" / "b.csv", tmp_path / "c.csv"]
    for path in paths:
        path.write_text(text if path.name != "c.csv" else text.replace("\nab,0", "\nab,1"))
    ids = []
    for path in paths:
        config = RunConfig(task=TaskConfig(name=str(path), train_rows=None, heldout_rows=None))
        ids.append(config.run_id(config.task.build()))
    assert ids[0] == ids[1] != ids[2]


def test_the_identity_is_plain_json_without_names_and_paths() -> None:
    config = parse_config(BASE)
    identity = config.identity(config.task.build())
    assert json.loads(json.dumps(identity)) == identity
    assert "label" not in identity
    assert set(identity["task"]) == {"train_rows", "heldout_rows"}
    assert identity["data"]["options"] == {"length": 10}


def test_configs_are_frozen_values() -> None:
    first, second = parse_config(BASE), parse_config(BASE)
    assert first == second
    with pytest.raises(ValidationError, match="frozen"):
        first.training.lr = 0.5
    with pytest.raises(ValidationError, match="frozen"):
        first.seed = 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.train_rows=0"], r"task\.train_rows = 0: must be greater than or equal to 1"),
        (["task.heldout_rows=1.5"], r"task\.heldout_rows = 1\.5: must be a valid integer"),
        (["model.heads=3", "model.head_width=split"], r"model\.d_model = 64 is not a multiple of model\.heads = 3"),
        (["model.dropout=1"], r"model\.dropout = 1: must be less than 1"),
        (["model.dropout=NaN"], r"model\.dropout = nan: must be a finite number"),
        (["training.decay=1.1"], r"training\.decay = 1\.1: must be less than or equal to 1"),
        (["training.clip=0"], r"training\.clip = 0: must be greater than 0"),
        (["training.stop_accuracy=1.5"], r"training\.stop_accuracy = 1\.5: must be less than or equal to 1"),
        (["training.weight_decay=-1"], r"training\.weight_decay = -1: must be greater than or equal to 0"),
        (["attention.inverse_temperature=0"], r"attention\.inverse_temperature = 0: must be greater than 0"),
        (["attention.mechanism=tpok:3"], r"attention\.mechanism: unknown mechanism 'tpok'; did you mean 'topk'"),
        (["attention.mechanism=5"], r"attention\.mechanism = 5: must be a valid string"),
        (["precision=fp16"], r"precision = 'fp16': must be 'fp32', 'tf32' or 'bf16'"),
        (["seed=9223372036854775808"], r"seed = 9223372036854775808: must be less than"),
        (["training=5"], r"training = 5 must be a section with fields of its own"),
        (["task.options=5"], r"task\.options = 5 must be a section"),
        (["task.options.name=parity"], r"task\.options cannot hold a name: write it as task\.name"),
        (["label=5"], r"label = 5: must be a valid string"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_field_and_a_fix(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_config(apply_overrides(BASE, overrides))


def test_a_config_without_a_task_says_so() -> None:
    with pytest.raises(UsageError, match="task is missing"):
        parse_config({})
    with pytest.raises(UsageError, match=r"task\.name is missing"):
        parse_config({"task": {}})


def _check(overrides: list[str]) -> None:
    config = parse_config(apply_overrides(BASE, overrides))
    config.check(config.task.build())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attention.mechanism=topk:11"], r"k = 11 exceeds the sequence length 10 of task even_pairs; choose k <= 10"),
        (["attention.mechanism=banded:11+1g"], r"width = 11 exceeds the sequence length 10"),
        (["task.train_rows=null"], r"task\.train_rows must be given: even_pairs can draw rows without end"),
        (["training.drop_one_row=true", "task.heldout_rows=1"], r"leaves nothing of task\.heldout_rows = 1"),
        (["training.drop_one_row=true", "task.train_rows=1"], r"leaves nothing of task\.train_rows = 1"),
    ],
)
def test_what_does_not_fit_the_task_is_refused(overrides: list[str], message: str) -> None:
    _check([])
    with pytest.raises(UsageError, match=message):
        _check(overrides)


def test_more_rows_than_a_file_has_are_refused_and_none_means_all(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "\n".join(f"{'ab' * (i % 9 + 1)}{i},{i % 2}" for i in range(80)) + "\n")
    task = get_task(path)
    config = RunConfig(task=TaskConfig(name=str(path), train_rows=None, heldout_rows=None))
    config.check(task)
    assert config.rows(task) == (task.size("train"), task.size("heldout"))
    greedy = config.model_copy(update={"task": TaskConfig(name=str(path), train_rows=1000, heldout_rows=None)})
    with pytest.raises(UsageError, match=r"task\.train_rows = 1000 exceeds the \d+ rows of the train split"):
        greedy.check(task)


TOML = """
label = "from a file"
seed = 7
[task]
name = "even_pairs"
options = { length = 10 }
[attention]
mechanism = "topk:5"
[training]
lr = 1e-3
stop_accuracy = 0.95
"""
YAML = """
label: from a file  # comments are fine
seed: 7
task: {name: even_pairs, options: {length: 10}}
attention:
  mechanism: topk:5
training:
  lr: 1e-3
  stop_accuracy: .95
"""


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    (tmp_path / "run.yaml").write_text(YAML)
    found = [read_config(tmp_path / name) for name in ("run.toml", "run.yaml")]
    assert found[0] == found[1]
    config = parse_config(found[0])
    assert config.training.lr == 0.001
    assert config.attention.mechanism == "topk:5"
    assert config.task.options == {"length": 10}


def test_yaml_values_are_what_they_look_like(tmp_path: Path) -> None:
    """Not what YAML 1.1 makes of them: `no` is a text, 12:30 no number, 1e-3 no text."""
    path = tmp_path / "a.yml"
    path.write_text(
        "a: no\nb: 12:30\nc: 1e-3\nd: 2020-01-01\ne: 007\nf: true\ng: null\nh: ~\ni:\nj: -5\nk: +.5\nl: 1_000\n"
        "m: 'true'\nn: .inf\no: 0x10\np: yes\nq: 1.\nr: 1e5\n"
    )
    assert read_config(path) == {
        "a": "no", "b": "12:30", "c": 0.001, "d": "2020-01-01", "e": "007", "f": True, "g": None, "h": None, "i": None,
        "j": -5, "k": 0.5, "l": "1_000", "m": "true", "n": float("inf"), "o": "0x10", "p": "yes", "q": 1.0, "r": 1e5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{}", "must end in .toml, .yaml, .yml"),
        ("a.toml", "a = = 3", "Invalid value"),
        ("a.toml", "a = 1\na = 2", "overwrite"),
        ("a.toml", "a = 2020-01-01", "a = 2020-01-01 is a date; put it in quotes"),
        ("a.yaml", "a: 1\na: 2", "a key appears twice"),
        ("a.yaml", "a: [1", "not valid YAML"),
        ("a.yaml", "- 1", "must hold a table of fields"),
        ("a.yaml", "", "must hold a table of fields"),
        ("a.yaml", "5: 1", "the key 5 is not a text"),
        ("a.yaml", "a: 1\n---\na: 2", "single document"),
        ("a.yaml", "? [1, 2]\n: 3", "not valid YAML"),
        ("a.yaml", "a: " + "9" * 5000, "digits"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_by_name(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_config(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "dir.toml").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, message in (("none.toml", "No such file"), ("dir.toml", "Is a directory"), ("binary.yaml", "utf-8")):
        with pytest.raises(UsageError, match=message):
            read_config(tmp_path / name)


def test_overrides_change_a_copy_and_the_last_one_wins() -> None:
    changed = apply_overrides(
        BASE,
        [
            "training.lr=0.3",
            "training.lr=0.4",
            "task.options.length=12",
            "label=a=b c",
            "training.clip=null",
            "seed= 3 ",
        ],
    )
    assert changed["training"] == {"lr": 0.4, "clip": None}
    assert changed["task"]["options"] == {"length": 12}
    assert changed["label"] == "a=b c"
    assert changed["seed"] == 3
    assert BASE["task"]["options"] == {"length": 10}
    assert "training" not in BASE


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr", r"must look like training\.lr=0\.3"),
        ("=3", "must look like"),
        ("a..b=3", "must look like"),
        ("task.name.x=3", r"task\.name = 'even_pairs' is a value, not a section"),
        ("task.options=" + "[" * 20 + "]" * 20, "nested deeper than 8 levels"),
        ("task.options=" + "[" * 100000, "nested deeper than 8 levels"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        apply_overrides(BASE, [override])


def test_a_config_survives_json(tmp_path: Path) -> None:
    config = parse_config(apply_overrides(BASE, ["training.stop_accuracy=0.9", "model.dropout=0", "training.lr=1"]))
    assert parse_config(json.loads(config.model_dump_json())) == config


def test_the_old_name_of_a_field_still_works_in_files_and_overrides_and_says_its_new_name() -> None:
    with pytest.warns(FutureWarning, match=r"training\.until is now training\.stop_accuracy"):
        changed = apply_overrides({"training": {"stop_accuracy": 0.95}}, ["training.until=0.9"])
    assert changed == {"training": {"stop_accuracy": 0.9}}
    with pytest.warns(FutureWarning, match=r"training\.until is now training\.stop_accuracy"):
        config = parse_config({"task": {"name": "parity"}, "training": {"until": 0.8}})
    assert config.training.stop_accuracy == 0.8
