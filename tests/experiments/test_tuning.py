"""Rates are chosen per mechanism on seeds of their own, kept, taken up again, and do not part a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import semfocus
from semfocus.analysis.results import Results
from semfocus.errors import UsageError
from semfocus.experiments import tuning
from semfocus.experiments.compare import comparison_of
from semfocus.experiments.experiment import Tuning
from semfocus.experiments.tuning import choose_rates, plan_tuning
from semfocus.recipes import PAPER_SEEDS
from tests.training.helpers import runtime

SMALL = ("model.blocks=1", "model.d_model=8", "model.d_mlp=8", "task.train_rows=60", "task.heldout_rows=30")
CHOICES = {"attention": "full,topk:2", "seeds": 2, "epochs": 3, "options": {"length": 8}, "overrides": SMALL}


def test_each_mechanism_gets_the_best_of_the_same_rates_on_seeds_of_its_own(tmp_path: Path) -> None:
    experiment = comparison_of("even_pairs", **CHOICES, out=tmp_path)
    job = plan_tuning(experiment, "lr", tmp_path)
    assert {each.config.training.lr for each in job.jobs} == {0.03, 0.1, 0.3}
    assert len(job.jobs) == 2 * 3 * 2
    assert not {each.config.seed for each in job.jobs} & {*PAPER_SEEDS}
    tuned = choose_rates(experiment, job, runtime())
    results = Results.load(tmp_path / "tuning")
    for mechanism, lr in tuned.rates.items():
        means = {}
        for rate in (0.03, 0.1, 0.3):
            runs = [r for r in results.records if r.mechanism == mechanism and r.config["training"]["lr"] == rate]
            means[rate] = sum(r.column("heldout_accuracy").mean() for r in runs) / 2
        assert means[lr] == max(means.values())
    assert [config.training.lr for config in tuned.experiment.configs] == [
        tuned.rates[config.attention.mechanism] for config in tuned.experiment.configs
    ]
    assert all(config.training.tuned == "lr of 0.03, 0.1, 0.3; 2 seeds" for config in tuned.experiment.configs)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert choose_rates(experiment, plan_tuning(experiment, "lr", tmp_path), runtime()).lines == tuned.lines
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_mechanisms_at_their_own_rates_are_one_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning, "_score", lambda records: records[0].config["training"]["lr"] * _sign(records[0].mechanism)
    )
    result = semfocus.compare("even_pairs", **CHOICES, tune="lr", threads=1, out=tmp_path, progress=False)
    rates = {run.config.attention.mechanism: run.config.training.lr for run in result.runs}
    assert rates == {"full": 0.3, "topk:2": 0.03}
    assert [arm.mechanism for arm in result.arms] == ["full", "topk:2"]
    assert "full: learning rate 0.3" in result.tuning[0]
    assert "it is the smallest of them" in result.tuning[1]
    results = Results.load(tmp_path)
    assert len(results.groups) == 1  # and the tuning's own runs are no part of it
    assert not results.faults
    assert "--tune lr" in (tmp_path / "report.html").read_text(encoding="utf-8")


def _sign(mechanism: str) -> int:
    return 1 if mechanism == "full" else -1


def test_a_diverged_rate_is_never_chosen(tmp_path: Path) -> None:
    choices = CHOICES | {"overrides": (*SMALL, "training.lr=1e30", "training.clip=null"), "attention": "full"}
    experiment = comparison_of("even_pairs", **choices, out=tmp_path)
    tuned = choose_rates(experiment, plan_tuning(experiment, "lr", tmp_path), runtime())
    assert "(0.0%)" in tuned.lines[0]


def test_a_study_tunes_each_mechanism_in_each_of_its_settings_and_by_what_it_says(tmp_path: Path) -> None:
    small = comparison_of("even_pairs", **CHOICES, out=tmp_path)
    wide = comparison_of("even_pairs", **CHOICES | {"overrides": (*SMALL, "model.d_mlp=12")}, out=tmp_path)
    study = replace(small, configs=small.configs + wide.configs, tuning=Tuning(seeds=1, by="last loss"))
    job = plan_tuning(study, out=tmp_path)
    assert len(job.jobs) == 2 * 2 * 3
    tuned = choose_rates(study, job, runtime())
    assert list(tuned.rates) == [f"{name}, d mlp {width}" for width in (8, 12) for name in ("full", "topk:2")]
    for name, lr in tuned.rates.items():
        mechanism, _, width = name.partition(", d mlp ")
        last = {
            r.config["training"]["lr"]: r.final("heldout_loss")
            for r in Results.load(tmp_path / "tuning").records
            if (r.mechanism, r.config["model"]["d_mlp"]) == (mechanism, int(width))
        }
        assert last[lr] == min(last.values())
        own = [c for c in tuned.experiment.configs if (c.attention.mechanism, c.model.d_mlp) == (mechanism, int(width))]
        assert {c.training.lr for c in own} == {lr}
        assert {c.training.tuned for c in own} == {"lr of 0.03, 0.1, 0.3; 1 seed; last loss"}
    assert "(last held-out loss, a seed of its own)" in tuned.lines[0]


def test_what_cannot_be_tuned_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown quantity to tune 'decay'; known: lr"):
        plan_tuning(comparison_of("even_pairs", out=tmp_path), "decay", tmp_path)
