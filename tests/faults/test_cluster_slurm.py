"""Jobs of submitit's local mode, and of a SLURM of one node that the tests start: requeued, killed, cancelled."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semfocus.config import RunConfig
from semfocus.errors import MissingExtra, UsageError
from semfocus.execution import train
from semfocus.execution.cluster import leaving
from semfocus.execution.cluster.losing import LostWorker
from semfocus.execution.executor import make_executor
from semfocus.training import Interrupted
from tests.faults import slurm
from tests.faults.pacing import Pace, once
from tests.training.helpers import assert_same_bits, run_of, runtime, states, tiny, trained

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'semfocus[cluster]'")

# Jobs live without the process that submitted them.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
ENDLESS = [tiny(seed, "full", epochs=100_000) for seed in (1, 2)]
OFTEN = runtime(checkpoint_seconds=0, cohort_size=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    reason = slurm.why_not()
    if reason:
        pytest.skip(reason)
    cluster = slurm.Slurm(tmp_path_factory.mktemp("slurm") / "one")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        yield cluster
    finally:
        cluster.close()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def attempts(store: Path) -> list[Path]:
    return sorted(path.parent for path in store.glob("cluster/slurm/*/job.json"))


def kill_trainer_of(config: RunConfig, store: Path) -> None:
    """The process that trains, from the lock that it holds."""
    holder = run_of(config, store).holder()
    assert holder is not None
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)


def test_jobs_of_the_local_mode_give_what_one_process_gives_and_one_that_is_killed_is_sent_again(
    tmp_path: Path, pace: Pace
) -> None:
    configs, store = [pace.run(seed) for seed in (1, 2)], tmp_path / "jobs"
    expected = trained(configs, tmp_path / "alone")
    kill = once(lambda: kill_trainer_of(configs[0], store), pace)
    with pace.slow(), pytest.warns(LostWorker, match="is no more .job"):
        outcomes = train(configs, store, OFTEN, kill, executor="slurm-local:workers=1,lease=30")
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert attempts(store) == []


@pytest.mark.slow
def test_slurm_trains_in_arrays_and_requeues_what_is_preempted(
    tmp_path: Path, cluster: slurm.Slurm, pace: Pace
) -> None:
    """SLURM's warning before a time limit or a preemption: all is saved, the same job queues again and goes on."""
    configs, store = [pace.run(seed) for seed in (1, 2)], tmp_path / "jobs"
    expected = trained(configs, tmp_path / "alone", cohort_size=1)
    seen: list[str] = []

    def preempt() -> None:
        seen.extend(cluster.ask("squeue", "--noheader", "--array", "--format=%i").split())
        cluster.ask("scancel", seen[0], "--signal", "USR2")

    alone = runtime(checkpoint_seconds=0, cohort_size=1)
    with pace.slow():
        outcomes = train(configs, store, alone, once(preempt, pace), executor="slurm:lease=60,time=5")
    assert states(outcomes) == ["done"] * 2
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert "_" in seen[0], "an array"
    logs = "".join(path.read_text() for path in store.glob("cluster/slurm/submitit/*.out"))
    assert "equeue" in logs


@pytest.mark.slow
def test_a_job_of_slurm_that_is_killed_goes_on_in_another(tmp_path: Path, cluster: slurm.Slurm, pace: Pace) -> None:
    configs, store = [pace.run(seed) for seed in (1, 2)], tmp_path / "jobs"
    expected = trained(configs, tmp_path / "alone")
    kill = once(lambda: kill_trainer_of(configs[0], store), pace)
    with pace.slow(), pytest.warns(LostWorker, match="is no more .job"):
        outcomes = train(configs, store, OFTEN, kill, executor="slurm:lease=60")
    assert_same_bits([outcome.run for outcome in outcomes], expected)


@pytest.mark.slow
def test_a_job_that_slurm_kills_and_queues_again_goes_on_in_the_same_job(
    tmp_path: Path, cluster: slurm.Slurm, pace: Pace, recwarn: pytest.WarningsRecorder
) -> None:
    """As when its node fails: there is no warning, and it is not for the driver to send another one."""
    configs, store = [pace.run(seed) for seed in (1, 2)], tmp_path / "jobs"
    expected = trained(configs, tmp_path / "alone")

    jobs: list[str] = []

    def requeue() -> None:
        jobs.extend(cluster.ask("squeue", "--noheader", "--format=%i").split())
        cluster.ask("scontrol", "requeue", *jobs)

    with pace.slow():
        outcomes = train(configs, store, OFTEN, once(requeue, pace), executor="slurm:lease=60")
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert not [warning for warning in recwarn if issubclass(warning.category, LostWorker)]
    assert "Restarts=1" in cluster.ask("scontrol", "show", "job", *jobs)
    assert len(list(store.glob("cluster/slurm/submitit/*_submitted.pkl"))) == 1


@pytest.mark.slow
def test_ctrl_c_cancels_the_jobs_after_they_have_saved(tmp_path: Path, cluster: slurm.Slurm) -> None:
    interrupt = once(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        train(ENDLESS, tmp_path, runtime(cohort_size=2), interrupt, executor="slurm:lease=60")
    wait_for(lambda: not cluster.ask("squeue", "--noheader").strip())
    for config in ENDLESS:
        run = run_of(config, tmp_path)
        assert run.status()["state"] == "interrupted"
        assert run.load_checkpoint().step == run.status()["step"] > 0


@pytest.mark.slow
def test_a_driver_that_detached_leaves_its_jobs_and_the_next_one_finds_them(
    tmp_path: Path, cluster: slurm.Slurm, pace: Pace
) -> None:
    configs, store = [pace.run(seed) for seed in (1, 2)], tmp_path / "jobs"
    quick = runtime(cohort_size=2)
    expected = trained(configs, tmp_path / "alone")
    interrupt = once(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pace.slow():
        with leaving.asking(lambda: "detach"), pytest.raises(leaving.Detached):
            train(configs, store, quick, interrupt, executor="slurm:lease=60")
        (attempt,) = attempts(store)
        outcomes = train(configs, store, quick, once(lambda: None, pace), executor="slurm:lease=60")
    assert_same_bits([outcome.run for outcome in outcomes], expected)
    assert len(list(store.glob("cluster/slurm/submitit/*_submitted.pkl"))) == 1, "no second job was ever submitted"
    assert not attempt.exists()


def test_without_submitit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(
        MissingExtra, match=r"executor slurm-local needs the package submitit: pip install 'semfocus\[cluster\]'"
    ):
        make_executor("slurm-local", runtime())


def test_bad_input_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no SLURM on this machine .no sbatch.; run the command on a login node"):
        make_executor("slurm", runtime())
    with pytest.raises(
        UsageError, match="unknown option of executor slurm-local 'partitoin'; did you mean 'partition'"
    ):
        make_executor("slurm-local:partitoin=gpu", runtime())
    with pytest.raises(UsageError, match="slurm-local: time = 'long' must be a whole number"):
        make_executor("slurm-local:time=long", runtime())
    with pytest.raises(UsageError, match="jobs have no GPU unless asked for; give --executor slurm-local:gpus=1"):
        make_executor("slurm-local", runtime(device="cuda"))
    with pytest.raises(UsageError, match="executor 'serial' has no options"):
        make_executor("serial:fast", runtime())


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)
