"""Whole studies, as a user runs them: sized, trained, interrupted, resumed, and not trained again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from semfocus.cli import app
from semfocus.errors import CorruptData, Diverged, Locked, UsageError
from semfocus.experiments.estimate import arithmetic, estimate
from semfocus.experiments.registry import described, get_study, markdown_table, studies
from semfocus.experiments.run import Outcome, Plan, plan, run
from semfocus.experiments.study import Study
from semfocus.store import RunDirectory
from semfocus.store.measurements import write_measurement
from semfocus.training import Interrupted, Progress, Runtime

RUNTIME = Runtime(device="cpu", threads=1, compile="off")
SMALL: dict[str, Any] = {"scale": "smoke", "tasks": ["parity"], "attention": ["full", "topk:5"], "seeds": 2}
FLAGS = ["--scale", "smoke", "--tasks", "parity", "--attention", "full,topk:5", "--seeds", "2"]
ALONE = ["--threads", "1", "--jobs", "1"]  # in this process
GUIDE = Path(__file__).parents[2] / "docs" / "studies.md"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take a second each; most tests do not look at them."""
    monkeypatch.setattr("semfocus.experiments.run._draw", lambda *drawn: [])


def planned(study: Study | str, *, out: Path, attention: list[str] | None = None, **choices: Any) -> Plan:
    declared = get_study(study) if isinstance(study, str) else study
    experiment = declared.experiment(**choices)
    return plan(experiment if attention is None else experiment.only(attention), out)


def semfocus(*arguments: str) -> None:
    app(list(arguments), standalone_mode=False)


def results(outcome: Outcome) -> list[dict[str, Any]]:
    """What was found, clocks aside."""
    found = [comparison.to_dict() for comparison in outcome.comparisons]
    for part in found:
        for arm in part["mechanisms"]:
            arm.pop("seconds_per_run")
            arm.pop("seconds_per_epoch")
    return found


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("metrics.jsonl"))}


def test_a_study_trains_prints_a_table_a_task_and_draws_its_curves(tmp_path: Path, capsys) -> None:
    common = ["--scale", "smoke", "--seeds", "1", "--attention", "full,topk:5", *ALONE, "--out", str(tmp_path)]
    semfocus("run", "figure_2", "--tasks", "listops", *common)
    out, err = capsys.readouterr()
    assert "4 runs, 0 there, 4 to train" in err
    assert "4 of 4 runs done" in err
    for activation in ("gelu", "mish"):
        assert f"listops, activation {activation}: 1 seed," in out
    assert "C6   not decided" in out  # the claim that figure 2 bears on, by these runs
    assert "C1   " not in out
    assert {path.name for path in tmp_path.glob("figure_2*")} == {"figure_2.svg", "figure_2.png"}
    drawn = (tmp_path / "figure_2.svg").read_text()
    assert all(f"listops, activation {activation}" in drawn for activation in ("gelu", "mish")), "a column each"
    assert "Content-Security-Policy" in (tmp_path / "report.html").read_text()
    assert out.count("epochs to 95 %") == 2
    assert len(contents(tmp_path)) == 4
    assert all(RunDirectory(path.parent).kept_steps() == [0] for path in contents(tmp_path))


def test_the_tables_of_a_study_come_as_json_one_a_task_and_setting(tmp_path: Path, capsys, undrawn: None) -> None:
    few = ["--scale", "smoke", "--seeds", "1", "--tasks", "listops,parity", "--attention", "full", *ALONE]
    semfocus("run", "figure_2", *few, "--out", str(tmp_path), "--json")
    found = json.loads(capsys.readouterr().out)
    names = [f"{task}, activation {activation}" for task in ("listops", "parity") for activation in ("gelu", "mish")]
    assert [part["task"] for part in found] == names


def test_a_study_whose_runs_are_all_there_trains_nothing_even_if_another_study_made_them(
    tmp_path: Path, monkeypatch, undrawn: None
) -> None:
    first = run(planned("controls", out=tmp_path, **SMALL), RUNTIME)
    assert [outcome.state for outcome in first.runs] == ["done"] * 4
    before = contents(tmp_path)
    assert len(before) == 4
    monkeypatch.setattr("semfocus.training.session.Trainer", None)
    again = planned("table_6", out=tmp_path, **SMALL)
    assert not again.waiting
    second = run(again, RUNTIME)
    assert contents(tmp_path) == before
    assert results(second) == results(first)
    assert "<h1><bdi>Dispersion and separation, trained models</bdi></h1>" in (tmp_path / "report.html").read_text()
    assert second.page == tmp_path / "report.html"
    part = run(planned("controls", out=tmp_path, **SMALL | {"attention": ["full"]}), RUNTIME)
    assert part.page == tmp_path / "controls.html", "beside other runs a study has a page of its own"
    assert "<h1><bdi>Focus, or just sparsity?</bdi></h1>" in part.page.read_text()
    assert "controls: 2 runs" in part.page.read_text()
    assert "<h1><bdi>Nothing learned: no conclusion</bdi></h1>" in (tmp_path / "report.html").read_text()
    more = planned("table_6", out=tmp_path, **SMALL | {"seeds": 3})
    assert len(more.waiting) == 2


def test_the_order_in_which_tasks_are_named_does_not_change_runs_or_results(tmp_path: Path, undrawn: None) -> None:
    choices = SMALL | {"tasks": ["parity", "even_pairs"], "seeds": 1}
    one = run(planned("controls", out=tmp_path / "one", **choices), RUNTIME)
    turned = choices | {"tasks": ["even_pairs", "parity"], "attention": ["topk:5", "full"]}
    two = run(planned("controls", out=tmp_path / "two", **turned), RUNTIME)
    assert results(one) == results(two)
    assert {p.parent.name: b for p, b in contents(tmp_path / "one").items()} == {
        p.parent.name: b for p, b in contents(tmp_path / "two").items()
    }


def test_an_interrupted_study_goes_on_where_it_was_to_the_same_numbers(tmp_path: Path, undrawn: None) -> None:
    """A study that is stopped keeps what has ended, and the same command does the rest."""
    whole = run(planned("controls", out=tmp_path / "whole", **SMALL), RUNTIME)

    def stop(progress: Progress) -> None:
        if progress.members[0].config.attention.mechanism == "topk:5" and progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    job = planned("controls", out=tmp_path / "cut", **SMALL)
    with pytest.raises(Interrupted) as caught:
        run(job, RUNTIME, stop)
    assert caught.value.exit_code == 143
    rest = planned("controls", out=tmp_path / "cut", **SMALL)
    assert sorted(job.state for job in rest.jobs) == ["done", "done", "interrupted", "interrupted"]
    assert [job.steps_to_go for job in rest.waiting] == [3, 3]
    found = run(rest, RUNTIME)
    assert results(found) == results(whole)
    assert list(contents(tmp_path / "cut").values()) == list(contents(tmp_path / "whole").values())


def test_a_run_that_another_process_holds_is_left_to_it_with_exit_code_4(tmp_path: Path, capsys, undrawn: None) -> None:
    job = planned("controls", out=tmp_path, **SMALL)
    there = run(planned("controls", out=tmp_path, **SMALL | {"attention": ["full"]}), RUNTIME).runs
    assert len(there) == 2
    held = next(each for each in job.jobs if each.config.attention.mechanism == "topk:5")
    job.store.create_or_open(held.id, saved_config(held))
    with held.run.lock(), pytest.raises(Locked, match=rf"1 runs are held elsewhere and left out: {held.id}") as caught:
        semfocus("run", "controls", *FLAGS, "--out", str(tmp_path), *ALONE)
    assert caught.value.exit_code == 4
    assert "topk:5" in capsys.readouterr().out


def saved_config(planned) -> dict[str, Any]:
    from semfocus.training.loading import document

    return document(planned.config, planned.task)


def test_a_study_with_a_diverged_run_says_so_by_its_exit_code(tmp_path: Path, undrawn: None) -> None:
    with pytest.raises(Diverged, match="4 runs diverged"):
        semfocus(
            "run", "controls", *FLAGS, "--out", str(tmp_path), *ALONE,
            "--set", "training.lr=1e30", "--set", "training.clip=null",
        )  # fmt: skip


def test_a_dry_run_tells_runs_steps_time_and_space_and_leaves_no_trace(tmp_path: Path, capsys, undrawn: None) -> None:
    out = tmp_path / "runs"
    semfocus("run", "controls", *FLAGS, "--out", str(out), "--dry-run", *ALONE)
    text = capsys.readouterr().out
    assert "4 runs, 0 there, 4 to train" in text
    assert "24 steps in all: about" in text
    assert "time from steps measured now (2 shapes)" in text
    assert "of disk space at most" in text
    assert not out.exists()
    semfocus("run", "controls", *FLAGS, "--out", str(out), *ALONE)
    capsys.readouterr()
    semfocus("run", "controls", *FLAGS[:-1], "5", "--out", str(out), "--dry-run", "--json", *ALONE)
    found = json.loads(capsys.readouterr().out)
    assert found["time"] == {"earlier": "from the clocks of earlier runs of the same shape"}
    (row,) = found["tasks"]
    assert {name: row[name] for name in ("task", "runs", "there", "waiting", "steps", "steps_per_run")} == {
        "task": "parity", "runs": 10, "there": 4, "waiting": 6, "steps": 36, "steps_per_run": [6, 6],
    }  # fmt: skip
    assert row["seconds"] == found["seconds"] > 0
    semfocus("run", "controls", *FLAGS, "--out", str(out), "--dry-run", *ALONE)
    assert "4 runs, 4 there, 0 to train" in capsys.readouterr().out


def test_the_disk_space_foretold_is_enough_and_not_far_off(tmp_path: Path, undrawn: None) -> None:
    job = planned("controls", out=tmp_path, **SMALL, overrides=["training.epochs=25"])
    foretold = estimate(job, RUNTIME).bytes
    run(job, RUNTIME)
    taken = sum(path.stat().st_size for each in job.jobs for path in each.run.path.rglob("*") if path.is_file())
    assert taken <= foretold <= 2 * taken


def test_time_is_scaled_from_what_was_measured_when_the_time_to_measure_is_up(tmp_path: Path) -> None:
    job = planned("figure_1", out=tmp_path, scale="smoke", seeds=1, tasks=["parity", "even_pairs"])
    found = estimate(job, RUNTIME, seconds_to_measure=0)
    assert found.sources == {"measured": 1, "scaled": 11}
    costs = [part.seconds / part.steps / arithmetic(part.runs[0].config, part.runs[0].task) for part in found.parts]
    assert costs == pytest.approx([costs[0]] * 12)
    everything = estimate(job, RUNTIME, seconds_to_measure=60)
    assert everything.sources == {"measured": 12}
    assert everything.steps == 12 * 6


def test_a_run_that_may_stop_early_makes_the_time_a_bound(tmp_path: Path, capsys) -> None:
    stopping = ["--set", "training.stop_accuracy=0.9", *ALONE]
    semfocus("run", "controls", *FLAGS, "--out", str(tmp_path), "--dry-run", *stopping)
    assert "steps in all: at most" in capsys.readouterr().out


def test_a_study_file_runs_by_the_same_command(tmp_path: Path, capsys, undrawn: None) -> None:
    example = GUIDE.read_text().split("```toml\n")[1].split("```")[0]
    (tmp_path / "depth.toml").write_text(example)
    file, out = str(tmp_path / "depth.toml"), str(tmp_path / "runs")
    semfocus("studies", file)
    assert "Does focus matter more in deeper models?" in capsys.readouterr().out
    few = ["--scale", "smoke", "--seeds", "1", "--tasks", "parity", "--set", "training.epochs=2", *ALONE]
    semfocus("run", file, *few, "--out", out)
    shown = capsys.readouterr().out
    assert all(f"parity, blocks {blocks}: 1 seed," in shown for blocks in (2, 4, 8))


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
def test_a_study_takes_a_user_s_own_file_as_a_task_at_every_scale(tmp_path: Path, scale) -> None:
    rows = "".join(
        f"{'good fine nice' if i % 2 else 'bad poor awful'} so very word{i % 17},{i % 2}\n" for i in range(50)
    )
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows)
    job = planned("controls", tasks=[str(tmp_path / "reviews.csv")], scale=scale, seeds=1, out=tmp_path / "runs")
    assert len(job.waiting) == 4
    assert all(0 < each.config.rows(each.task)[0] < 50 for each in job.jobs)


def test_what_a_study_still_needs_measured_is_counted(tmp_path: Path, capsys, undrawn: None) -> None:
    outcome = run(planned("dispersion_vs_speedup", out=tmp_path, **SMALL), RUNTIME)
    assert outcome.measured() == {"dispersion": 0}
    write_measurement(outcome.runs[0].run, "dispersion", {"k": 5})
    assert outcome.measured() == {"dispersion": 1}
    with pytest.raises(CorruptData, match="the measurement 'dispersion' is not shown"):  # it was made up here
        semfocus("run", "dispersion_vs_speedup", *FLAGS, "--out", str(tmp_path), *ALONE)
    assert "needs the measurement dispersion: 1 of 4 runs have it" in capsys.readouterr().out


def test_runs_that_came_without_checkpoints_are_named_and_keep_no_other_from_being_measured(
    tmp_path: Path, capsys, undrawn: None
) -> None:
    outcome = run(planned("dispersion_vs_speedup", out=tmp_path, **SMALL), RUNTIME)
    bare = outcome.runs[0].run
    shutil.rmtree(bare.path / "checkpoints")
    semfocus("run", "dispersion_vs_speedup", *FLAGS, "--out", str(tmp_path), *ALONE, "--measure")
    told = capsys.readouterr()
    assert f"not measured: {bare.id}: its checkpoints are not here" in told.err
    assert outcome.measured() == {"dispersion": 3}
    assert "needs the measurement dispersion: 3 of 4 runs have it" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "figure1"], "did you mean 'figure_1'"),
        (["run", "figure_1", "--tasks", "partiy"], "did you mean 'parity'"),
        (["run", "figure_1", "--tasks", ","], "--tasks names nothing"),
        (["run", "figure_1", "--attention", "topk:7"], "did you mean 'topk:5'"),
        (["run", "figure_1", "--attention", "topkk"], "did you mean 'topk'"),
        (["run", "figure_1", "--seeds", "0"], "seeds = 0 must be at least 1"),
        (["run", "figure_9", "--seeds", "1000"], "give --yes"),
        (["run", "figure_3", "--set", "model.blocks=2"], "the study varies model.blocks itself"),
        (["run", "figure_1", "--set", "task.options.length=3"], "unknown option of listops 'length'"),
        (["run", "figure_8", "--set", "task.options.length=4"], "exceeds the sequence length 4"),
        (["run", "nowhere.toml"], r"cannot read the configuration nowhere\.toml"),
        (["studies", "figure1"], "did you mean 'figure_1'"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_made(arguments, message, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "runs")] if arguments[0] == "run" else []
    with pytest.raises(UsageError, match=message):
        semfocus(*arguments, *out)
    assert not (tmp_path / "runs").exists()


def test_the_table_of_studies_in_the_guide_is_the_one_that_the_command_prints(capsys) -> None:
    table = markdown_table([described(each) for each in studies()])
    assert table in GUIDE.read_text(), "write the output of `semfocus studies --markdown` into docs/studies.md"
    semfocus("studies", "--markdown")
    assert capsys.readouterr().out.strip() == table
    semfocus("studies", "--json")
    assert [row["study"] for row in json.loads(capsys.readouterr().out)] == [each.name for each in studies()]
    semfocus("studies")
    shown = capsys.readouterr().out
    assert all(each.name in shown for each in studies())


def test_a_damaged_run_is_named_and_left_out_and_the_others_are_compared(tmp_path: Path, capsys, undrawn: None) -> None:
    job = planned("controls", out=tmp_path, **SMALL)
    run(job, RUNTIME)
    damaged = job.jobs[0].run
    (damaged.path / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "train_accuracy": "high"}\n')
    with pytest.raises(CorruptData, match="1 run damaged and left out"):
        semfocus("run", "controls", *FLAGS, "--out", str(tmp_path), *ALONE)
    out, err = capsys.readouterr()
    assert f"{damaged.id} is left out: corrupt" in err
    assert "parity: 2 seeds" in out
    for each in job.jobs:
        (each.run.path / "metrics.jsonl").write_text("{\n[\n")
    with pytest.raises(CorruptData, match="every run of controls is damaged"):
        run(planned("controls", out=tmp_path, **SMALL), RUNTIME)


@pytest.mark.slow
def test_every_study_runs_end_to_end(tmp_path: Path, undrawn: None) -> None:
    made = 0
    for study in studies():
        job = planned(study, scale="smoke", seeds=1, out=tmp_path)
        made += len(job.waiting)
        outcome = run(job, RUNTIME)
        assert {each.state for each in outcome.runs} <= {"done", "diverged"}, study.name
        assert sum(len(arm.times) for each in outcome.comparisons for arm in each.arms) == len(job.jobs), study.name
    assert made == len(contents(tmp_path))
