"""Random configurations, arguments and data files: accepted, or refused with a reason; never a traceback.

A few dozen in every run of the tests, 300 of each in `make test-all`. Nothing is trained.
"""

from __future__ import annotations

import json
import random
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.config_files import apply_overrides, parse_config, read_config
from semfocus.errors import SemfocusError
from semfocus.execution.cohorts import plan_jobs
from semfocus.store import RunStore
from semfocus.tasks import get_task
from tests.faults.fuzz import VALUES, changed_json, damaged
from tests.training.helpers import tiny, trained

FEW, MANY = range(12), range(1000, 1300)
CONFIG = tiny(1, "topk:3").model_dump(mode="json")
WORDS = (
    "", "-1", "0", "3", "1e9", "nan", "inf", "2147483648", "1" * 400, "x", "[/x]", "\x1b[31m", "=1+1", "../..",
    "a" * 300, "topk:5", "full,topk:5", "topk:-1", "topk:99999999999", "--", "--json", "-x", "listops", "true",
    "null", "a=b", "{}", "training.lr=0.3", "model.blocks=[]", "task.options.length=2000000000", ",", "cpu", "runs",
    "caf\u00e9", "\U0001f525",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("arguments") / "runs"
    trained([tiny(1), tiny(1, "topk:3")], root)
    return root


def config_case(seed: int, folder: Path) -> None:
    """One configuration with another value, or other bytes; as TOML and YAML have the same reader, YAML."""
    dice = random.Random(seed)
    data = yaml.safe_dump(CONFIG if seed % 2 else changed_json(CONFIG, dice), allow_unicode=True).encode()
    path = folder / "run.yaml"
    path.write_bytes(damaged(data, dice) if seed % 2 else data)
    overrides = [f"{dice.choice(('training.lr', 'task.options.length', 'model', ''))}={dice.choice(WORDS)}"]
    try:
        config = parse_config(apply_overrides(read_config(path), overrides if seed % 3 == 0 else []))
        plan_jobs([config], RunStore(folder / "runs"))
    except SemfocusError:
        pass


def commands(root: Path) -> tuple[tuple[str, list[str]], ...]:
    """Commands with arguments that are right; none of them trains."""
    run = RunStore(root).entries()[0].name
    return (
        ("runs", [str(root)]),
        ("show", [run, "--out", str(root)]),
        ("clean", [str(root)]),
        ("verdicts", [str(root), "--long"]),
        ("export", [str(root), "--to", "csv", "--out", str(root.parent / "out.csv")]),
        ("resume", [run, "--out", str(root), "--device", "cpu"]),
        ("compare", ["even_pairs", "--quick", "--seeds", "2", "--out", str(root), "--executor", "nobody"]),
        ("compare", ["listops", "--attention", "full", "--set", "training.lr=0.3", "--option", "length=20",
                     "--out", str(root), "--executor", "nobody"]),
        ("run", ["figure_1", "--dry-run", "--scale", "smoke", "--seeds", "1", "--out", str(root), "--device", "cpu"]),
        ("tasks", []),
        ("studies", []),
        ("pack", [str(root.parent / "runs.tar.xz"), "--out", str(root)]),
        ("diagnose", [run, "--out", str(root), "--k", "2", "--rows", "10"]),
    )  # fmt: skip


def arguments_case(seed: int, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command of which one argument is another, is gone, or is there twice."""
    monkeypatch.chdir(folder)
    dice = random.Random(seed)
    name, words = dice.choice(commands(root))
    words = list(words)
    place = dice.randrange(len(words) + 1)
    action = dice.random()
    if action < 0.6 and words:
        words[place % len(words)] = dice.choice(WORDS)
    elif action < 0.8 and words:
        del words[place % len(words)]
    else:
        words.insert(place, dice.choice(WORDS))
    result = CliRunner().invoke(app, [name, *words])
    expected = result.exception is None or isinstance(result.exception, (SemfocusError, SystemExit))
    if not expected:
        raise AssertionError(f"{name} {words!r} raised {result.exception!r}") from result.exception


def data_case(seed: int, folder: Path) -> None:
    """One data file with other bytes, or other values, in each format."""
    dice = random.Random(seed)
    rows: list[Any] = [{"text": f"{'ab' * (i % 7 + 1)} {i % 5}", "label": str(i % 2)} for i in range(60)]
    kind = dice.choice(("csv", "tsv", "jsonl", "parquet"))
    if kind == "jsonl" and dice.random() < 0.6:
        rows = [changed_json(row, dice) if dice.random() < 0.1 else row for row in rows]
    path = folder / f"data.{kind}"
    if kind == "jsonl":
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    elif kind == "parquet":
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect() as connection:
            connection.execute(
                "COPY (SELECT 'ab ' || (i % 7) AS text, i % 2 AS label FROM range(60) t(i)) "
                f"TO '{path}' (FORMAT parquet)"
            )
        data = path.read_bytes()
    else:
        mark = "," if kind == "csv" else "\t"
        lines = [mark.join(("text", "label")), *(mark.join(row.values()) for row in rows)]
        if dice.random() < 0.4:
            lines[dice.randrange(len(lines))] = mark.join(str(dice.choice(VALUES)) for _ in range(dice.randrange(4)))
        data = "\n".join(lines).encode(errors="replace")
    path.write_bytes(damaged(data, dice) if dice.random() < 0.7 else data)
    tracemalloc.start()
    try:
        task = get_task(str(path))
        task.sample(min(3, task.size("train") or 3), seed=1, split="train")
    except SemfocusError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**28


def run_case(kind: str, seed: int, store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if kind == "configurations":
                config_case(seed, folder)
            elif kind == "arguments":
                arguments_case(seed, store, folder, monkeypatch)
            else:
                data_case(seed, folder)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("kind", ["configurations", "arguments", "data files"])
def test_random_input_is_taken_or_refused_with_a_reason(
    kind: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in FEW:
        run_case(kind, seed, store, tmp_path / str(seed), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(30))
@pytest.mark.parametrize("kind", ["configurations", "arguments", "data files"])
def test_three_hundred_random_inputs_of_each_kind(
    kind: str, tens: int, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in MANY[10 * tens : 10 * tens + 10]:
        run_case(kind, seed, store, tmp_path / str(seed), monkeypatch)
