"""Cohorts of several mechanisms: they train as the runs would alone, and what cannot be mixed is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from semfocus.config import RunConfig
from semfocus.execution import train
from semfocus.execution.cohorts import form_cohorts, plan_jobs
from semfocus.experiments.registry import studies
from semfocus.experiments.run import plan
from semfocus.store import RunStore
from semfocus.tasks.corpora.named import PythonSources
from semfocus.training import Progress
from semfocus.training.cohort import Cohort, spec_of
from semfocus.training.objective import SPLITS
from tests.training.helpers import run_of, runtime, states, tensors, tiny, trained

MECHANISMS = ["full", "topk:3", "banded:3", "block_local:3"]


def _members(**changes: Any) -> list[RunConfig]:
    """Two seeds of each mechanism, seed by seed: those of one mechanism do not stand together."""
    return [tiny(seed, mechanism, **changes) for seed in (1, 2) for mechanism in MECHANISMS]


def _cohorts(configs: list[RunConfig], out: Path, **changes: Any) -> list[list[str]]:
    jobs = plan_jobs(configs, RunStore(out))
    return [[job.config.attention.mechanism for job in cohort] for cohort in form_cohorts(jobs, runtime(**changes))]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_run_learns_the_same_beside_other_mechanisms_as_alone(tmp_path: Path, dropout: float) -> None:
    configs = _members(model={"dropout": dropout})
    trained(configs, tmp_path / "mixed", mix=True)
    trained(configs, tmp_path / "alone", mix=False)
    for config in configs:
        mixed, alone = (run_of(config, tmp_path / name) for name in ("mixed", "alone"))
        assert len((mixed.status() or {})["cohort"]) == 8
        assert len((alone.status() or {})["cohort"]) == 2
        torch.testing.assert_close(tensors(mixed)["parameters"], tensors(alone)["parameters"], rtol=1e-4, atol=1e-6)
        for row, expected in zip(mixed.metrics(), alone.metrics(), strict=True):
            for split in SPLITS:
                assert row[f"{split}_loss"] == pytest.approx(expected[f"{split}_loss"], rel=1e-4)


def test_temperatures_mix_as_mechanisms_do(tmp_path: Path) -> None:
    configs = [tiny(1, attention={"inverse_temperature": value}) for value in (0.5, 1.0, 4.0)]
    mixed, alone = trained(configs, tmp_path / "mixed", mix=True), trained(configs, tmp_path / "alone", mix=False)
    for ours, expected in zip(mixed, alone, strict=True):
        torch.testing.assert_close(tensors(ours)["parameters"], tensors(expected)["parameters"], rtol=1e-4, atol=1e-6)
    assert not torch.equal(tensors(mixed[0])["parameters"], tensors(mixed[2])["parameters"])


def test_runs_of_one_mechanism_stand_together_in_a_mixed_cohort(tmp_path: Path) -> None:
    assert _cohorts(_members(), tmp_path, mix=True) == [[name for name in MECHANISMS for _ in range(2)]]


def test_mechanisms_are_not_mixed_on_a_cpu_unless_asked_for(tmp_path: Path) -> None:
    assert sorted(map(len, _cohorts(_members(), tmp_path))) == [2, 2, 2, 2]


@pytest.mark.parametrize("odd", ["banded:3+1g", "randomk:3"])
def test_other_shapes_and_random_choices_stay_apart(tmp_path: Path, odd: str) -> None:
    configs = [tiny(1), tiny(1, "topk:3"), tiny(1, odd)]
    assert _cohorts(configs, tmp_path, mix=True) == [["full", "topk:3"], [odd]]


def test_padding_to_a_multiple_of_k_keeps_lengths_apart(tmp_path: Path) -> None:
    # Rows of 8 become 9 for k = 3 and stay 8 for k = 4.
    configs = [tiny(1, mechanism, model={"pad_to_multiple": True}) for mechanism in ("topk:3", "topk:4", "banded:3")]
    assert _cohorts(configs, tmp_path, mix=True) == [["topk:3", "banded:3"], ["topk:4"]]


def test_members_of_unequal_shape_are_refused() -> None:
    configs = [tiny(1), tiny(1, "banded:3+1g")]
    with pytest.raises(ValueError, match="sequences of one shape"):
        Cohort.begin(configs, [config.task.build() for config in configs], torch.device("cpu"))


def test_a_mixed_cohort_goes_on_to_the_bit_after_an_interruption(tmp_path: Path) -> None:
    class _Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.step == 10:
            raise _Stop

    configs = _members(model={"dropout": 0.1})
    whole = trained(configs, tmp_path / "whole", mix=True)
    with pytest.raises(_Stop):
        train(configs, tmp_path / "cut", runtime(checkpoint_seconds=0, mix=True), stop)
    assert states(train(configs[::-1], tmp_path / "cut", runtime(mix=True))) == ["done"] * 8
    for run, config in zip(whole, configs, strict=True):
        again = run_of(config, tmp_path / "cut")
        assert again.metrics() == run.metrics()
        assert torch.equal(tensors(again)["parameters"], tensors(run)["parameters"])


def test_one_member_that_diverges_ends_alone(tmp_path: Path) -> None:
    configs = [tiny(1), tiny(2, "topk:3", lr=1e30, clip=None), tiny(3, "banded:3", clip=None), tiny(4, clip=None)]
    outcomes = train(configs, tmp_path, runtime(mix=True))
    assert states(outcomes) == ["done", "diverged", "done", "done"]


def test_one_mechanism_is_split_over_the_processes_of_a_cpu(tmp_path: Path) -> None:
    configs = [tiny(seed) for seed in range(6)]
    assert _cohorts(configs, tmp_path, jobs=2) == [["full"] * 3] * 2
    assert sorted(map(len, _cohorts([*configs, tiny(9, "topk:3")], tmp_path, jobs=4))) == [1, 1, 2, 3]
    assert _cohorts(configs[:1], tmp_path, jobs=2) == [["full"]]


def test_a_cohort_that_was_split_learns_what_it_learns_whole(tmp_path: Path) -> None:
    configs = [tiny(seed, "topk:3", model={"dropout": 0.1}) for seed in range(4)]
    whole = trained(configs, tmp_path / "whole")
    train(
        configs, tmp_path / "split", runtime(jobs=2), executor="serial"
    )  # as two processes would, one after the other
    for run, config in zip(whole, configs, strict=True):
        split = run_of(config, tmp_path / "split")
        assert len((split.status() or {})["cohort"]) == 2
        assert len((run.status() or {})["cohort"]) == 4
        torch.testing.assert_close(tensors(split)["parameters"], tensors(run)["parameters"], rtol=1e-4, atol=1e-6)
        for row, expected in zip(split.metrics(), run.metrics(), strict=True):
            assert [row[f"{name}_loss"] for name in SPLITS] == pytest.approx(
                [expected[f"{name}_loss"] for name in SPLITS]
            )


def test_a_driver_without_a_gpu_mixes_for_machines_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop or a login node: what no fused kernel serves stays apart, as on a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    jobs = plan_jobs([*_members(), tiny(1, "topk:3", model={"d_mlp": 200})], RunStore(tmp_path))
    assert sorted(map(len, form_cohorts(jobs, runtime(), "cuda"))) == [1, 8]
    keys = {name: runtime().mixing_key(spec_of(tiny(1, name), jobs[0].task), "cuda") for name in ("full", "fast:2")}
    assert (keys["full"][-1], keys["fast:2"][-1]) == (True, False)


def test_a_cohort_is_split_until_each_gpu_of_a_cluster_has_a_part(tmp_path: Path) -> None:
    jobs = plan_jobs(_members(), RunStore(tmp_path))
    assert [len(cohort) for cohort in form_cohorts(jobs, runtime(), "cuda", 3)] == [2, 2, 4]
    assert [len(cohort) for cohort in form_cohorts(jobs, runtime(), "cuda", 100)] == [1] * 8
    assert [len(cohort) for cohort in form_cohorts(jobs, runtime(cohort_size=4), "cuda", 100)] == [4, 4]


def test_every_study_forms_cohorts_for_gpus_that_the_driver_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        PythonSources, "_roots", lambda self: {"asyncio": Path(asyncio.__file__).parent}
    )  # less to read
    for study in studies():
        jobs = plan(study.experiment(seeds=1), tmp_path).jobs
        cohorts = form_cohorts(jobs, runtime(), "cuda", 8)
        assert {job.id for cohort in cohorts for job in cohort} == {job.id for job in jobs}
        assert len(cohorts) >= min(8, len({job.id for job in jobs}))
