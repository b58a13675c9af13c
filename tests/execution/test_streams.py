"""Cohorts side by side: each learns what it learns alone, and an error or a signal costs nobody's work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import pytest
import torch

from semfocus.config import RunConfig
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.execution.cohorts import form_cohorts, open_runs, plan_jobs
from semfocus.execution.executor import make_executor
from semfocus.execution.streams import Turns, companies, take_turns
from semfocus.store import RunStore
from semfocus.training import Progress
from semfocus.training.session import Job, training_turns
from semfocus.training.signals import Interruption
from tests.conformance.cases import DEVICE
from tests.training.helpers import run_of, runtime, states, tensors, tiny, trained

CONFIGS = [tiny(seed, mechanism) for mechanism in ("full", "topk:3", "banded:3") for seed in (1, 2)]


def _cohorts(configs: list[RunConfig], out: Path) -> list[list[Job]]:
    store = RunStore(out)
    jobs = plan_jobs(configs, store)
    open_runs(jobs, store)
    return form_cohorts(jobs, runtime())


def _starts(configs: list[RunConfig], out: Path, interruption: Interruption, on_progress: object = None) -> list[Turns]:
    quiet = on_progress or (lambda progress: None)
    return [training_turns(jobs, runtime(), quiet, interruption) for jobs in _cohorts(configs, out)]


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_cohorts_learn_side_by_side_what_they_learn_alone(tmp_path: Path, at_once: int) -> None:
    alone = trained(CONFIGS, tmp_path / "alone")
    assert take_turns(_starts(CONFIGS, tmp_path / "beside", Interruption()), at_once, Interruption()) == []
    for run, config in zip(alone, CONFIGS, strict=True):
        beside = run_of(config, tmp_path / "beside")
        assert beside.metrics() == run.metrics()
        assert torch.equal(tensors(beside)["parameters"], tensors(run)["parameters"])


def test_they_do_take_turns(tmp_path: Path) -> None:
    order: list[str] = []

    def note(progress: Progress) -> None:
        order.append(progress.members[0].config.attention.mechanism)

    take_turns(_starts(CONFIGS, tmp_path, Interruption(), note), 2, Interruption())
    first_of_last = order.index("banded:3")
    assert {"full", "topk:3"} == set(order[:first_of_last])
    assert order[:4] == ["full", "topk:3", "full", "topk:3"]
    assert first_of_last > order.index("topk:3") + 1  # the third began when one of two had ended


def test_whoever_is_not_ready_is_passed_over() -> None:
    class _Event:
        def __init__(self, answers: list[bool]) -> None:
            self.answers = answers

        def query(self) -> bool:
            return self.answers.pop(0) if self.answers else True

    class _Stream:
        def record_event(self) -> _Event:
            return _Event([False] * 3)

    taken: list[int] = []

    def turns(number: int) -> Iterator[None]:
        for _ in range(3):
            taken.append(number)
            yield
        return [f"run {number}"]

    def in_stream(stream: object) -> object:
        return torch.no_grad()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "stream", in_stream)
        assert sorted(take_turns([turns(1), turns(2)], 2, Interruption(), _Stream)) == ["run 1", "run 2"]
    assert sorted(taken) == [1, 1, 1, 2, 2, 2]


def test_after_an_error_in_one_the_others_save_and_stop(tmp_path: Path) -> None:
    class _Broken(Exception):
        pass

    def broken(progress: Progress) -> None:
        if progress.members[0].config.attention.mechanism == "topk:3" and progress.step == 5:
            raise _Broken

    interruption = Interruption()
    with pytest.raises(_Broken):
        take_turns(_starts(CONFIGS, tmp_path, interruption, broken), 2, interruption)
    found = {config.attention.mechanism: run_of(config, tmp_path).status() for config in CONFIGS}
    assert (found["full"] or {})["state"] == "interrupted"
    assert (found["topk:3"] or {})["state"] == "failed"
    assert found["banded:3"] is None  # it never began
    assert states(train(CONFIGS, tmp_path, runtime())) == ["done"] * 6
    for run, config in zip(trained(CONFIGS, tmp_path / "alone"), CONFIGS, strict=True):
        assert run_of(config, tmp_path).metrics() == run.metrics()


def test_a_signal_makes_all_save_and_no_other_begins(tmp_path: Path) -> None:
    interruption = Interruption()

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            interruption.signal = SIGINT

    take_turns(_starts(CONFIGS, tmp_path, interruption, stop), 2, interruption)
    found = [(run_of(config, tmp_path).status() or {}).get("state") for config in CONFIGS[::2]]
    assert found == ["interrupted", "interrupted", None]


def test_a_diverged_member_and_its_cohort_do_not_disturb_the_others(tmp_path: Path) -> None:
    configs = [tiny(1, lr=1e30, clip=None), tiny(2, clip=None), *CONFIGS[2:4]]
    take_turns(_starts(configs, tmp_path, Interruption()), 2, Interruption())
    assert [(run_of(config, tmp_path).status() or {})["state"] for config in configs] == [
        "diverged",
        "done",
        "done",
        "done",
    ]


def test_only_cohorts_that_torch_does_not_compile_share_a_gpu(tmp_path: Path) -> None:
    fused = [tiny(1, "full"), tiny(1, "topk:3")]
    compiled = [tiny(1, optimizer="adam"), tiny(1, model={"activation": "gelu"}), tiny(1, weight_decay=0.1)]
    other = [RunConfig.model_validate(fused[0].model_dump(mode="json") | {"precision": "tf32"})]
    cohorts = _cohorts([*fused, *compiled, *other], tmp_path)
    here = runtime(device=DEVICE.type, compile="auto")
    assert sorted(len(company) for company in companies(cohorts, here)) == [1, 1, 1, 1, 2]
    assert [len(company) for company in companies(cohorts[:2], here)] == [2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_streams_without_a_gpu_are_refused() -> None:
    with pytest.raises(UsageError, match="'streams' needs a GPU, not cpu; take processes or serial"):
        make_executor("streams", runtime(), 2)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU: `make test-gpu`")
def test_on_a_gpu_cohorts_on_streams_learn_what_they_learn_alone(tmp_path: Path) -> None:
    sizes = {"blocks": 2, "d_model": 16, "d_mlp": 16}
    names = ("full", "topk:3", "banded:3+1g", "block_local:3")
    configs = [tiny(seed, name, model=sizes, epochs=30, lr=0.3) for name in names for seed in (1, 2)]
    how = {"device": "cuda", "compile": "auto", "mix": None}
    train(configs, tmp_path / "beside", runtime(jobs=3, **how), executor="streams")
    train(configs, tmp_path / "alone", runtime(**how | {"mix": False}), executor="serial")
    for config in configs:
        ours, expected = (run_of(config, tmp_path / name) for name in ("beside", "alone"))
        assert len(ours.metrics()) == 30
        torch.testing.assert_close(tensors(ours)["parameters"], tensors(expected)["parameters"], rtol=1e-2, atol=1e-4)
        again = [row["train_loss"] for row in expected.metrics()]
        assert [row["train_loss"] for row in ours.metrics()] == pytest.approx(again, rel=1e-3)
