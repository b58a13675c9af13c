"""Going on with runs from what their directories say, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import CorruptData, UsageError
from semfocus.execution import resume, resuming, train
from semfocus.store import RunStore
from semfocus.training import Progress, Runtime
from tests.store.helpers import reseal
from tests.training.helpers import assert_same_bits, run_of, runtime, states, tiny, trained

PAIR = [tiny(seed, "topk:3", epochs=4) for seed in (1, 2)]


class _Stop(Exception):
    pass


def interrupted(configs: list[RunConfig], out: Path, **changes: Any) -> None:
    def stop(progress: Progress) -> None:
        if progress.step >= 10:
            raise _Stop

    with pytest.raises(_Stop):
        train(configs, out, runtime(checkpoint_seconds=0, **changes), stop)


def reviews(path: Path, last: str = "good") -> RunConfig:
    path.write_text("text,label\n" + "".join(f"{'ab' * (i % 9 + 1)} {i},{i % 2}\n" for i in range(79)) + f"{last},1\n")
    task = TaskConfig(name=str(path), train_rows=None, heldout_rows=None)
    return tiny(1, epochs=9).model_copy(update={"task": task})


def test_runs_go_on_from_their_own_directories_to_the_bit_as_they_began(tmp_path: Path) -> None:
    expected = trained(PAIR, tmp_path / "undisturbed", threads=2)
    interrupted(PAIR, tmp_path / "stopped", threads=2, keep_epochs=(3,))
    runs = resuming.unfinished(RunStore(tmp_path / "stopped"))
    outcomes = resume(runs, Runtime())
    assert states(outcomes) == ["done", "done"]
    assert [outcome.run.id for outcome in outcomes] == [run.id for run in runs]
    by_id = {outcome.run.id: outcome.run for outcome in outcomes}
    assert_same_bits([by_id[run.id] for run in expected], expected)
    assert all(run.status()["threads"] == 2 for run in by_id.values())
    assert all(run.kept_steps() == [15] for run in by_id.values())
    assert resuming.unfinished(RunStore(tmp_path / "stopped")) == []


def test_a_file_that_changed_since_the_run_began_is_refused_with_the_change_and_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    config = reviews(path)
    interrupted([config], tmp_path / "runs")
    run = run_of(config, tmp_path / "runs")
    before = run.metrics(), run.checkpoint_steps()
    reviews(path, last="bad")
    with pytest.raises(UsageError, match=r"changed since it began: .*reviews.csv \(.*sha256 was .*, is ") as caught:
        resume([run], runtime())
    assert "Restore the data to go on with it, or start new runs" in str(caught.value)
    assert caught.value.exit_code == 2
    assert (run.metrics(), run.checkpoint_steps()) == before
    reviews(path)
    assert states(resume([run], runtime())) == ["done"]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    config = reviews(tmp_path / "reviews.csv")
    interrupted([config], tmp_path / "runs")
    run = run_of(config, tmp_path / "runs")
    (tmp_path / "reviews.csv").unlink()
    with pytest.raises(UsageError, match=r"reviews\.csv"):
        resume([run], runtime())


def test_one_changed_file_keeps_all_from_going_on(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    config = reviews(path)
    interrupted([config], tmp_path / "runs")
    interrupted([tiny(1)], tmp_path / "runs")
    reviews(path, last="bad")
    runs = [run_of(tiny(1), tmp_path / "runs"), *resuming.unfinished(RunStore(tmp_path / "runs"))]
    before = runs[0].metrics()
    with pytest.raises(UsageError, match="have changed"):
        resume(runs, runtime())
    assert runs[0].metrics() == before


def test_unfinished_runs_of_a_file_that_changed_are_found_by_those_who_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    config = reviews(path)
    store = RunStore(tmp_path / "runs")
    for one in (config, tiny(1)):
        interrupted([one], store.root)
    assert resuming.stale_runs([config, tiny(1)], store) == []
    old = run_of(config, store.root).id
    reviews(path, last="bad")
    assert resuming.stale_runs([config], store) == [old]
    assert resuming.stale_runs([tiny(1)], store) == []


def test_a_config_that_was_edited_does_not_become_another_run(tmp_path: Path) -> None:
    interrupted([tiny(1)], tmp_path)
    run = run_of(tiny(1), tmp_path)
    path = run.path / "config.json"
    reseal(path, lambda document: document["config"]["training"].update(lr=0.7))
    with pytest.raises(CorruptData, match=r"is not what run .* was named after"):
        resume([run], runtime())
    assert [entry.name for entry in RunStore(tmp_path).entries()] == [run.id]


def test_a_device_that_is_not_there_any_more_is_not_replaced_silently(tmp_path: Path) -> None:
    interrupted([tiny(1)], tmp_path)
    run = run_of(tiny(1), tmp_path)
    with run.lock() as writer:
        writer.write_status("interrupted", **{**_facts(run), "device": "mps"})
    with pytest.raises(UsageError, match=r"began on 'mps': device = 'mps' is not there .* Give --device"):
        resume([run], Runtime())
    assert states(resume([run], runtime())) == ["done"]


def _facts(run: Any) -> dict[str, Any]:
    return {name: value for name, value in run.status().items() if name != "state"}


def test_those_who_trained_together_and_are_left_out_are_named(tmp_path: Path) -> None:
    interrupted(PAIR, tmp_path)
    first, second = (run_of(config, tmp_path) for config in PAIR)
    assert resuming.missing_cohort_members([first]) == [second.id]
    assert resuming.missing_cohort_members([first, second]) == []
    resume([second], runtime())
    assert resuming.missing_cohort_members([first]) == []
