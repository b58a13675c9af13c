"""A trained model is loaded from its run directory, at any checkpoint, without its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import CorruptData, UsageError
from semfocus.tasks import get_task
from semfocus.training import checkpoint_epochs, load
from semfocus.training.loading import config_of
from tests.store.helpers import forge
from tests.training.helpers import begin, run_of, tensors, tiny, trained


def test_a_loaded_model_computes_what_its_member_computed(tmp_path: Path) -> None:
    configs = [tiny(seed, "topk:3", model={"heads": 2}) for seed in (1, 2)]
    runs = trained(configs, tmp_path)
    batch = get_task("even_pairs", length=8).sample(21, seed=configs[1].seed, split="heldout")
    module = load(runs[1].path)
    assert not module.training
    assert torch.equal(module.row(), tensors(runs[1])["parameters"])
    predicted = module.predict(batch.tokens, batch.lengths)
    assert predicted.shape == (21,)
    accuracy = (predicted == batch.labels).double().mean().item()
    assert accuracy == pytest.approx(runs[1].metrics()[-1]["heldout_accuracy"])
    logits = module(batch.tokens, batch.lengths)
    loss = torch.nn.functional.cross_entropy(logits, batch.labels).item()
    assert loss == pytest.approx(runs[1].metrics()[-1]["heldout_loss"], rel=1e-5)
    assert torch.equal(predicted, logits.argmax(dim=-1))


def test_a_run_is_found_by_path_by_the_beginning_of_its_id_and_by_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = trained([tiny(1)], tmp_path)
    row = tensors(run)["parameters"]
    monkeypatch.setenv("SEMFOCUS_RUNS", str(tmp_path))
    for name in (run, run.path, str(run.path), run.id, run.id[:6]):
        assert torch.equal(load(name).row(), row)
    assert torch.equal(load(run.id[:6], out=tmp_path).row(), row)
    with pytest.raises(UsageError, match="zzzz"):
        load("zzzz")


def test_kept_checkpoints_load_by_their_step(tmp_path: Path) -> None:
    config = tiny(1, epochs=5)
    (run,) = trained([config], tmp_path, keep_epochs=(0, 2))
    assert torch.equal(load(run, step=0).row(), begin([config]).parameters[0])
    middle = load(run, step=10).row()
    assert not torch.equal(middle, load(run, step=0).row())
    assert not torch.equal(middle, load(run).row())
    assert torch.equal(middle, load(trained([tiny(1, epochs=2)], tmp_path)[0]).row())
    with pytest.raises(UsageError, match="no checkpoint of step 7"):
        load(run, step=7)


def test_kept_checkpoints_load_by_their_epoch_and_by_name(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=5)], tmp_path, keep_epochs=(0, 2))
    assert checkpoint_epochs(run) == {0: 0, 2: 10, 5: 25}
    assert run.kept_steps() == [10, 0]
    for epoch, step in ((0, 0), (2, 10), (5, 25)):
        expected = load(run, step=step).row()
        assert torch.equal(load(run, epoch=epoch).row(), expected)
        assert torch.equal(load(run, checkpoint=str(epoch)).row(), expected)
    assert torch.equal(load(run, checkpoint="last").row(), load(run, epoch=5).row())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"epoch": 3}, "no checkpoint of epoch 3; it has 0, 2, 5. Train with --keep 3"),
        ({"checkpoint": "first"}, "checkpoint = 'first' is neither 'last' nor an epoch"),
        ({"checkpoint": "2", "step": 10}, "give one of"),
        ({"epoch": 2, "step": 10}, "give one of"),
    ],
)
def test_a_missing_checkpoint_is_refused_with_the_existing_ones(
    tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    (run,) = trained([tiny(1, epochs=5)], tmp_path, keep_epochs=(0, 2))
    with pytest.raises(UsageError, match=message):
        load(run, **asked)


def test_a_checkpoint_cannot_be_loaded_by_epoch_if_the_status_lacks_the_number_of_steps(tmp_path: Path) -> None:
    (run,) = trained([tiny(1)], tmp_path)
    with run.lock() as writer:
        writer.write_status("done", steps="many")
    with pytest.raises(CorruptData, match="does not say how long the run is"):
        load(run, epoch=3)
    assert load(run).row().isfinite().all()


def _file_config(path: Path) -> RunConfig:
    return tiny(1, epochs=1).model_copy(update={"task": TaskConfig(name=str(path), train_rows=None, heldout_rows=None)})


def test_a_model_loads_and_predicts_without_the_data_it_was_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "words.csv"
    lines = [f"{'ab' * (i % 7 + 1)}{'xyz'[i % 3] * (i % 5)},{i % 2}" for i in range(80)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n")
    config = _file_config(path)
    (run,) = trained([config], tmp_path / "runs")
    task = config.task.build()
    batch = task.sample(task.size("heldout"), seed=0, split="heldout")
    assert (batch.lengths < task.seq_len).any()
    path.unlink()
    accuracy = (load(run).predict(batch.tokens, batch.lengths) == batch.labels).double().mean().item()
    assert accuracy == pytest.approx(run.metrics()[-1]["heldout_accuracy"])


def test_the_same_data_at_another_path_is_the_same_run_and_changed_data_another(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    text = "text,label\n" + "\n".join(f"{'ab' * (i % 9 + 1)},{i % 2}" for i in range(80)) + "\n"
    first.write_text(text)
    second.write_text(text)
    runs = trained([_file_config(first)], tmp_path / "runs") + trained([_file_config(second)], tmp_path / "runs")
    assert runs[0].id == runs[1].id
    second.write_text(text.replace("abab,1", "abab,0"))
    assert run_of(_file_config(second), tmp_path / "runs").id != runs[0].id


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    from semfocus.store import RunStore
    from semfocus.training.loading import document

    config = tiny(1)
    task = config.task.build()
    run = RunStore(tmp_path).create_or_open(config.run_id(task), document(config, task))
    with pytest.raises(UsageError, match="no checkpoint yet"):
        load(run)


def test_the_config_of_a_run_is_read_back_unchanged(tmp_path: Path) -> None:
    config = tiny(1, "banded:3+1g", stop_accuracy=0.9, clip=None).model_copy(update={"label": "mine"})
    (run,) = trained([config], tmp_path)
    assert config_of(run) == config


def test_a_config_that_describes_no_run_is_refused(tmp_path: Path) -> None:
    (run,) = trained([tiny(1)], tmp_path)
    run = forge(run, lambda fields: fields["model"].update(blocks="many"))
    with pytest.raises(CorruptData, match="does not describe a run"):
        config_of(run)
