"""Evaluations, early stopping and kept checkpoints: none of them changes the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from semfocus.execution import train
from semfocus.training import Progress, trainer
from tests.training.helpers import assert_same_bits, begin, run_of, runtime, states, tensors, tiny, trained


def test_evaluation_cadence_changes_no_weight_and_no_number_that_both_measure(tmp_path: Path) -> None:
    configs = [tiny(seed, "topk:3", optimizer="adam", lr=0.01, epochs=4) for seed in (1, 2)]
    runs = {every: trained(configs, tmp_path / str(every), evaluate_every=every) for every in (0.5, 1.0, 3.0, 1e9)}
    epochs = {every: [row["epoch"] for row in pair[0].metrics()] for every, pair in runs.items()}
    assert epochs == {
        0.5: [0.4, 1, 1.6, 2, 2.4, 3, 3.6, 4],  # five steps an epoch: half of one is two, then three steps
        1.0: [1, 2, 3, 4],
        3.0: [3, 4],
        1e9: [4],
    }
    for i in range(2):
        by_step = {row["step"]: row for row in runs[0.5][i].metrics()}
        for pair in runs.values():
            assert torch.equal(tensors(pair[i])["parameters"], tensors(runs[1.0][i])["parameters"])
            for row in pair[i].metrics():
                assert row == by_step[row["step"]]


def test_a_row_of_metrics_holds_epoch_step_rate_losses_and_accuracies_and_no_times(tmp_path: Path) -> None:
    (run,) = trained([tiny(lr=0.2, decay=0.5)], tmp_path)
    rows = run.metrics()
    assert [list(row) for row in rows] == [
        ["epoch", "step", "lr", "train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy"]
    ] * 3
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 5), (2, 10), (3, 15)]
    assert [row["lr"] for row in rows] == pytest.approx([0.2, 0.1, 0.05])
    assert all(type(row["epoch"]) is int for row in rows)


def test_stop_accuracy_stops_each_member_at_its_own_epoch_and_the_others_continue(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 8, "lr": 0.3}
    seeds = (1, 4, 2)
    free = [run.metrics() for run in trained([tiny(s, "topk:3", **settings) for s in seeds], tmp_path / "free")]
    expected = [next((row["epoch"] for row in rows if row["train_accuracy"] >= 0.55), 8) for rows in free]
    assert expected == [1, 3, 8]
    configs = [tiny(s, "topk:3", stop_accuracy=0.55, **settings) for s in seeds]
    outcomes = train(configs, tmp_path / "until", runtime())
    assert states(outcomes) == ["done"] * 3
    for outcome, config, rows, epoch in zip(outcomes, configs, free, expected, strict=True):
        own_rows, status = outcome.run.metrics(), outcome.run.status()
        assert [row["epoch"] for row in own_rows] == list(range(1, epoch + 1))
        assert status["step"] == epoch * 5
        assert ("accuracy reached 0.55" in status["reason"]) is (epoch < 8)
        assert own_rows[0] == rows[0]
        # The cohort shrinks when a member leaves: from then on the others are the same to rounding.
        (alone,) = trained([config], tmp_path / "alone")
        torch.testing.assert_close(
            tensors(outcome.run)["parameters"], tensors(alone)["parameters"], rtol=1e-4, atol=1e-6
        )


def test_a_run_that_stops_is_until_then_the_run_that_goes_on(tmp_path: Path) -> None:
    """Verdicts count its epochs as that one's."""
    settings: dict[str, Any] = {"epochs": 8, "lr": 0.3}
    (goes_on,) = trained([tiny(4, "topk:3", **settings)], tmp_path)
    (stops,) = trained([tiny(4, "topk:3", stop_accuracy=0.55, **settings)], tmp_path)
    assert goes_on.id != stops.id
    assert len(stops.metrics()) == 3
    assert goes_on.metrics()[:3] == stops.metrics()


def test_on_a_gpu_members_leave_a_batch_some_at_a_time_and_the_others_learn_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the GPU's rule on a CPU: runs that had ended stayed in the batch to its end, and cost as much as before."""
    monkeypatch.setitem(trainer.SHARE_TO_LEAVE, "cpu", 0.5)
    sizes: list[int] = []
    prepare = trainer.Trainer._prepare

    def counted(self: trainer.Trainer) -> None:
        sizes.append(self.cohort.members)
        prepare(self)

    monkeypatch.setattr(trainer.Trainer, "_prepare", counted)
    configs = [tiny(seed, "topk:3", stop_accuracy=0.55, epochs=8, lr=0.3) for seed in (1, 4, 2)]  # end at 1, 3, 8
    together = trained(configs, tmp_path / "together")
    assert sizes == [3, 1], "one of three that has ended stays, two of three leave"
    for config, run in zip(configs, together, strict=True):
        (alone,) = trained([config], tmp_path / "alone")
        assert [row["epoch"] for row in run.metrics()] == [row["epoch"] for row in alone.metrics()]
        torch.testing.assert_close(tensors(run)["parameters"], tensors(alone)["parameters"], rtol=1e-4, atol=1e-6)


def test_patience_stops_a_member_after_that_many_epochs_without_a_gain(tmp_path: Path) -> None:
    (free,) = trained([tiny(2, epochs=12, lr=0.3)], tmp_path / "free")
    best, expected = (0.0, 0), 12
    for row in free.metrics():
        if row["train_accuracy"] > best[0]:
            best = (row["train_accuracy"], row["epoch"])
        if row["epoch"] - best[1] >= 3:
            expected = row["epoch"]
            break
    assert expected < 12
    (run,) = trained([tiny(2, epochs=12, lr=0.3, patience=3)], tmp_path / "patient")
    assert len(run.metrics()) == expected
    assert "no gain" in run.status()["reason"]


@pytest.mark.parametrize("every", [1.0, 2.0, 0.5])
def test_kept_checkpoints_stay_whatever_the_cadence_of_evaluation(tmp_path: Path, every: float) -> None:
    (run,) = trained([tiny(epochs=8)], tmp_path, keep_epochs=(0, 1, 3), evaluate_every=every, checkpoint_seconds=0)
    steps = run.checkpoint_steps()
    assert {0, 5, 15} <= set(steps)
    assert 40 in steps
    assert len(steps) <= 5
    first = run.load_checkpoint(0)
    assert torch.equal(first.tensors["parameters"], begin([tiny(epochs=8)]).parameters[0])


def test_checkpoints_are_kept_across_an_interruption_and_after_it(tmp_path: Path) -> None:
    """The second session is not given keep_epochs: the run has recorded them."""
    configs = [tiny(seed, epochs=8) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "undisturbed", keep_epochs=(0, 1, 3, 6))

    def stop(progress: Progress) -> None:
        if progress.step == 20:
            raise _Stop

    out = tmp_path / "stopped"
    with pytest.raises(_Stop):
        train(configs, out, runtime(checkpoint_seconds=0, keep_epochs=(0, 1, 3, 6)), stop)
    resumed = trained(configs, out, checkpoint_seconds=0)
    for mine, other in zip(resumed, expected, strict=True):
        assert mine.kept_steps() == other.kept_steps() == [30, 15, 5, 0]
        for step in (0, 5, 15, 30):
            weights = [run.load_checkpoint(step).tensors["parameters"] for run in (mine, other)]
            assert torch.equal(*weights)


def test_checkpoints_by_the_share_of_training_lie_between_evaluations_and_survive_an_interruption(tmp_path) -> None:
    """A tenth of five epochs is half of one: no evaluation is due there."""
    configs = [tiny(seed, epochs=5) for seed in (1, 2)]
    expected = trained(configs, tmp_path / "undisturbed", keep_shares=(0.0, 0.1, 0.5))

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise _Stop

    with pytest.raises(_Stop):
        train(configs, tmp_path / "stopped", runtime(checkpoint_seconds=0, keep_shares=(0.0, 0.1, 0.5)), stop)
    resumed = trained(configs, tmp_path / "stopped")
    for mine, other in zip(resumed, expected, strict=True):
        assert mine.kept_steps() == other.kept_steps() == [12, 2, 0]
        assert mine.metrics() == other.metrics()
        assert len(other.metrics()) == 5


def test_kept_checkpoints_are_not_part_of_the_identity_of_a_run(tmp_path: Path) -> None:
    configs = [tiny(seed) for seed in (1, 2)]
    assert_same_bits(trained(configs, tmp_path / "kept", keep_epochs=(0, 1)), trained(configs, tmp_path / "plain"))


def test_saving_more_often_changes_no_weight_and_no_metric(tmp_path: Path) -> None:
    configs = [tiny(seed) for seed in (1, 2)]
    seldom, often = trained(configs, tmp_path / "a"), trained(configs, tmp_path / "b", checkpoint_seconds=0)
    assert_same_bits(often, seldom)


def test_callbacks_receive_every_evaluation(tmp_path: Path) -> None:
    received: list[Progress] = []
    train([tiny(1), tiny(2)], tmp_path, runtime(), received.append)
    received = [
        progress for progress in received if progress.step % 5 == 0
    ]  # on a slow machine there are others in between
    assert [progress.step for progress in received] == [0, 5, 10, 15]
    assert [len(progress.members) for progress in received] == [2] * 4
    assert received[-1].total_steps == 15
    assert received[-1].members[0].last["epoch"] == 3
    assert received[-1].session_steps == 15


class _Stop(Exception):
    pass


def test_time_spent_adds_up_over_sessions(tmp_path: Path) -> None:
    config = tiny(epochs=6)

    def stop(progress: Progress) -> None:
        if progress.step == 15:
            raise _Stop

    with pytest.raises(_Stop):
        train([config], tmp_path, runtime(checkpoint_seconds=0), stop)
    before = run_of(config, tmp_path).timing()
    assert [row["step"] for row in before] == [5, 10, 15]
    (run,) = trained([config], tmp_path)
    seconds = [row["seconds"] for row in run.timing()]
    assert seconds[:3] == [row["seconds"] for row in before]
    assert seconds == sorted(seconds)
    assert [row["step"] for row in run.timing()] == [5, 10, 15, 20, 25, 30]
