"""The study of the solvable layer: what it trains, that it resumes, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.errors import CorruptData, UsageError
from semfocus.experiments import solvable
from semfocus.experiments.solvable import ROWS, SolvableStudy

SMOKE = SolvableStudy.at_scale("smoke")


def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Path, monkeypatch) -> None:
    seen, real = [], solvable.train

    def watched(world, mechanisms):
        seen.append((world.setup.target, world.alpha, world.seed))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(world, mechanisms)

    monkeypatch.setattr(solvable, "train", watched)
    with pytest.raises(KeyboardInterrupt):
        SMOKE.run(tmp_path)
    assert len(SMOKE.left(tmp_path)) == len(SMOKE.cells) - 2
    rows = SMOKE.run(tmp_path)
    assert len(seen) == len(SMOKE.cells) + 1
    assert len(rows) == len(SMOKE.cells) * 7  # three mechanisms from two starts, and the linear mixture
    assert not SMOKE.left(tmp_path)


def test_a_data_set_that_was_cut_off_is_trained_again_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    whole = SMOKE.run(tmp_path)
    path = tmp_path / ROWS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]) + lines[-3][:20])
    assert len(SMOKE.left(tmp_path)) == 1
    assert sorted(map(repr, SMOKE.run(tmp_path))) == sorted(map(repr, whole))


def test_rows_of_another_setup_do_not_count_and_a_row_without_fields_is_named(tmp_path: Path) -> None:
    SMOKE.run(tmp_path)
    assert len(SolvableStudy.at_scale("quick").left(tmp_path)) == 160
    row = json.loads((tmp_path / ROWS).read_text().splitlines()[0])
    del row["theta"]
    (tmp_path / ROWS).write_text(json.dumps(row) + "\n")
    with pytest.raises(CorruptData, match="without theta"):
        SMOKE.read(tmp_path)


def test_the_command_says_what_it_takes_and_what_it_found(tmp_path: Path) -> None:
    def call(*words: str):
        return CliRunner().invoke(
            app, ["theory", "positional-semantic", "--scale", "smoke", "--out", str(tmp_path), *words]
        )

    before = call("--dry-run")
    assert "12 data sets, 0 there, 12 to train on" in before.stdout
    assert not list(tmp_path.iterdir())
    done = call()
    assert done.exit_code == 0, done.output
    assert done.stdout.count("target full, ") == done.stdout.count("target topk:2, ") == 3
    assert done.stdout.count("earlier than full in") == 4
    assert (tmp_path / "overlaps-topk-2.png").exists()


def test_with_two_tokens_it_is_the_sources_model_with_full_attention_alone(tmp_path: Path) -> None:
    called = CliRunner().invoke(
        app, ["theory", "positional-semantic", "--scale", "smoke", "--tokens", "2", "--json", "--out", str(tmp_path)]
    )
    assert called.exit_code == 0, called.output
    answers = json.loads(called.stdout[: called.stdout.rindex("]") + 1])
    assert [(one["target"], one["mechanism"]) for one in answers] == [("full", "full")]
    assert (tmp_path / "overlaps-full.png").exists()
    assert not (tmp_path / "overlaps-topk-2.png").exists()
    assert not SMOKE.read(tmp_path)  # another setup
    with pytest.raises(UsageError, match="tokens = 3 must be even"):
        SolvableStudy.at_scale("smoke", tokens=3)


def test_it_is_no_study_of_runs_and_a_scale_is_named(tmp_path: Path) -> None:
    called = CliRunner().invoke(app, ["run", "positional_semantic", "--out", str(tmp_path)])
    assert "semfocus theory positional-semantic" in str(called.exception)
    with pytest.raises(UsageError, match="scale"):
        SolvableStudy.at_scale("huge")
