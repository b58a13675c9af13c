"""However a training ends, the next session continues it to the bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from semfocus.config import RunConfig
from semfocus.execution import train
from semfocus.training import Interrupted
from semfocus.training.signals import listening
from semfocus.training.step import TrainStep
from tests.store.machine import before_each_step
from tests.training.helpers import assert_same_bits, exit_code, process, run_of, runtime, states, tiny, trained

# Three members: one leaves after the first epoch, one after the third, one stays.
LEAVING = [tiny(seed, "topk:3", epochs=6, lr=0.3, stop_accuracy=0.55) for seed in (1, 4, 2)]
ADAM = [tiny(seed, epochs=4, optimizer="adam", lr=0.01) for seed in (1, 2, 3)]


def _signal_at(step: int, number: int) -> AbstractContextManager[None]:
    """Within the block, send this signal to this process before step `step` of a cohort, once."""
    sent = []

    def signal_self(train_step: TrainStep) -> None:
        if train_step.cohort.step == step and not sent:
            sent.append(step)
            os.kill(os.getpid(), number)

    return before_each_step(signal_self)


def _train_and_die(configs: list[RunConfig], out: Path, step: int, checkpoint_seconds: float) -> None:
    with _signal_at(step, signal.SIGKILL):
        train(configs, out, runtime(checkpoint_seconds=checkpoint_seconds))


@pytest.mark.parametrize("checkpoint_seconds", [0, 0.03, 1000], ids=["saved often", "sometimes", "only at ends"])
@pytest.mark.parametrize("configs", [LEAVING, ADAM], ids=["leaving", "adam"])
def test_after_kill_9_at_random_steps_a_resumed_run_is_identical_to_the_bit(
    tmp_path: Path, configs: list[RunConfig], checkpoint_seconds: float
) -> None:
    expected = trained(configs, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    dice = random.Random(int(checkpoint_seconds * 100))
    for step in sorted(dice.sample(range(1, 20), 3)):
        assert exit_code(_train_and_die, configs, out, step, checkpoint_seconds) == -signal.SIGKILL
    assert_same_bits(trained(configs, out), expected)


def _train(configs: list[RunConfig], out: Path) -> None:
    train(configs, out, runtime(checkpoint_seconds=0))


def test_after_kill_9_at_random_moments_a_resumed_run_is_identical_to_the_bit(tmp_path: Path) -> None:
    """Also in the middle of saving, evaluating, writing metrics and statuses."""
    expected = trained(LEAVING, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    dice = random.Random(5)
    kills = 0
    for attempt in range(60):
        started = process(_train, LEAVING, out)
        started.join(0.02 + dice.uniform(0, 0.04) * attempt)  # the first is killed however fast the machine is
        if started.exitcode is None:
            started.kill()
            kills += 1
        started.join()
        if started.exitcode == 0:
            break
    assert kills
    assert_same_bits(trained(LEAVING, out), expected)


def _die_at_status(configs: list[RunConfig], out: Path, state: str, written_before: int) -> None:
    """Train until a status with this state is about to be written, after so many others; then kill the process."""
    real = os.replace
    seen = []

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == "status.json" and f'"{state}"' in Path(source).read_text():
            if len(seen) == written_before:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(target)
        real(source, target)

    os.replace = replace
    train(configs, out, runtime())


DIVERGING = [tiny(seed, lr=lr, clip=None, epochs=2) for seed, lr in ((1, 0.1), (2, 1e30), (3, 0.1))]


@pytest.mark.parametrize(
    ("configs", "state", "written_before"),
    [(LEAVING, "done", 0), (LEAVING, "done", 1), (ADAM, "done", 0), (ADAM, "done", 1), (DIVERGING, "diverged", 0)],
    ids=["first leaver", "second leaver", "all at the end", "one of three at the end", "diverged"],
)
def test_a_kill_between_a_member_last_checkpoint_and_its_last_status_changes_nothing(
    tmp_path: Path, configs: list[RunConfig], state: str, written_before: int
) -> None:
    """Such a run has ended; it must neither continue for ever nor be trained past its end."""
    expected = trained(configs, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    assert exit_code(_die_at_status, configs, out, state, written_before) == -signal.SIGKILL
    outcomes = train(configs, out, runtime())
    assert set(states(outcomes)) == ({"done", "diverged"} if configs is DIVERGING else {"done"})
    assert_same_bits([outcome.run for outcome in outcomes], expected)


def _die_in_announcement(configs: list[RunConfig], out: Path) -> None:
    _die_at_status(configs, out, "running", 1)


def test_a_kill_while_the_cohort_is_announced_does_not_scatter_it(tmp_path: Path) -> None:
    """Only some members know then whom they train with."""
    expected = trained(ADAM, tmp_path / "undisturbed")
    assert exit_code(_die_in_announcement, ADAM, tmp_path / "killed") == -signal.SIGKILL
    resumed = trained(ADAM, tmp_path / "killed")
    assert_same_bits(resumed, expected)
    assert [len(run.status()["cohort"]) for run in resumed] == [3, 3, 3]


def _train_until_signal(configs: list[RunConfig], out: Path, number: int, step: int) -> None:
    try:
        with _signal_at(step, number):
            train(configs, out, runtime())
    except Interrupted as error:
        sys.exit(error.exit_code)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("configs", [LEAVING, ADAM], ids=["leaving", "adam"])
def test_a_polite_signal_saves_and_exits_and_the_run_goes_on_to_the_bit(
    tmp_path: Path, configs: list[RunConfig], number: int, code: int
) -> None:
    expected = trained(configs, tmp_path / "undisturbed")
    out = tmp_path / "stopped"
    assert exit_code(_train_until_signal, configs, out, number, 7) == code
    last = run_of(configs[-1], out)
    assert last.status()["state"] == "interrupted"
    assert last.status()["step"] == 8 == last.load_checkpoint().step
    assert [row["step"] for row in last.metrics()] == [5]
    assert exit_code(_train_until_signal, configs, out, number, 12) == code
    assert_same_bits(trained(configs, out), expected)


def test_a_signal_in_one_cohort_leaves_the_next_untouched_until_the_next_session(tmp_path: Path) -> None:
    configs = [tiny(1), tiny(2, "topk:3")]
    expected = trained(configs, tmp_path / "undisturbed")
    out = tmp_path / "stopped"
    assert exit_code(_train_until_signal, configs, out, signal.SIGTERM, 7) == 143
    assert run_of(configs[1], out).status() is None
    assert_same_bits(trained(configs, out), expected)


def test_a_member_that_died_before_the_signal_stays_dead_in_the_next_session(tmp_path: Path) -> None:
    """Whether it is alive is part of what is saved."""
    expected = trained(DIVERGING, tmp_path / "undisturbed")
    assert expected[1].status()["state"] == "diverged"
    assert expected[1].status()["step"] < 3
    out = tmp_path / "stopped"
    assert exit_code(_train_until_signal, DIVERGING, out, signal.SIGTERM, 3) == 143
    assert_same_bits(trained(DIVERGING, out), expected)


def test_a_second_ctrl_c_is_obeyed_at_once_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with listening() as request:
        os.kill(os.getpid(), signal.SIGTERM)
        _wait_for(lambda: request.signal == signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            _interrupt_and_wait()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def _interrupt_and_wait() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    _wait_for(lambda: False)


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the signal did not arrive"
        time.sleep(0.001)
