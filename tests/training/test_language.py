"""What a language model promises whatever its attention: nothing of later tokens, every batch learned, every row once,
and a run that goes on to the bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from semfocus.attention import mechanism_names
from semfocus.attention.base import size_fields
from semfocus.attention.mechanisms import mechanism_class, parse_mechanism
from semfocus.attention.normalisers import parse_normaliser
from semfocus.attention.registry import normaliser_names
from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.diagnostics.runs import measure_run
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.model.encoder import Encoder
from semfocus.model.forward import forward
from semfocus.spec import Spec, initial
from semfocus.training import load
from semfocus.training.cohort import Cohort
from semfocus.training.data import Rows
from semfocus.training.loading import checkpoint_epochs
from semfocus.training.objective import get_objective
from semfocus.training.step import TrainStep
from tests.faults.test_training_kills import _signal_at
from tests.tasks.test_text import folder_of_texts
from tests.training.helpers import CPU, assert_same_bits, exit_code, runtime, trained

OBJECTIVE = get_objective("next_token")
DECODER = {
    "heads": 2, "d_model": 16, "d_mlp": 32, "head_width": "split", "activation": "relu2", "norm_function": "rmsnorm",
    "final_norm": True, "biases": False, "tied_head": True, "init": "normal", "positions": "rope", "dropout": 0.0,
}  # fmt: skip
ADAMW = {"optimizer": "adamw", "lr": 0.01, "decay": 1.0, "beta2": 0.95, "weight_decay": 0.1, "clip": 1.0}
PLANS = ["topk:2>full@0.5", "full>topk:3@0.4", "topk:2@0.3>banded:4@0.6>full", "1*full/topk:3", "1*topk:3/full"]
LOOKING_BACK, STEPS = ("full", "topk:4", "topk:2>full@0.5"), (90, 250)
EXTRA = ["topk:3+1s+2w", "topk:4~0.5", "topk:3~0.5+2s"]


def named() -> list[str]:
    """One of each registered mechanism, with four keys where it has a size."""
    return [f"{name}:4" if size_fields(mechanism_class(name)) else name for name in mechanism_names()]


MECHANISMS = [text for text in [*named(), *EXTRA] if parse_mechanism(text).serves_causal]
NORMALISERS = [text for text in normaliser_names() if parse_normaliser(text).serves_causal]


def spec_of(mechanism: str, normaliser: str = "softmax", tokens: int = 9, length: int = 24) -> Spec:
    attention = AttentionConfig(mechanism=mechanism, normaliser=normaliser)
    model = ModelConfig(**DECODER, blocks=2)
    return Spec(model, attention, tokens, tokens, length, is_causal=True, predicts_positions=True)


def assert_no_leak(spec: Spec, seeds: Tensor | None = None) -> None:
    """Change one token: logits before it stay equal to the bit, and one from there on changes."""
    generator = torch.Generator().manual_seed(3)
    row = initial(spec, 1) * 5  # far from the start, where scores are all alike
    tokens = torch.randint(spec.vocab_size, (1, 2, spec.seq_len), generator=generator)
    parameters = spec.layout.split(row.unsqueeze(0))

    def logits(given: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(given, (0, spec.length - spec.seq_len), value=spec.vocab_size)
        return forward(parameters, padded, None, spec, seeds)

    before = logits(tokens)
    for place in (1, spec.seq_len // 2, spec.seq_len - 1):
        changed = tokens.clone()
        changed[..., place] = (changed[..., place] + 1) % spec.vocab_size
        after = logits(changed)
        assert torch.equal(before[:, :, :place], after[:, :, :place]), place
        assert not torch.equal(before[:, :, place:], after[:, :, place:])


def test_every_mechanism_has_a_causal_form_unless_it_says_why_not() -> None:
    without = {name.partition(":")[0] for name in named() if not parse_mechanism(name).serves_causal}
    assert without == {"shifted"}  # a ring: its window looks ahead
    with pytest.raises(UsageError, match="global tokens see the whole sequence"):
        spec_of("banded:4+1g")


@pytest.mark.parametrize("length", [24, 160])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_mechanism_learns_anything_of_later_tokens(mechanism: str, length: int) -> None:
    spec = spec_of(mechanism, length=length)
    assert_no_leak(spec)
    seeds = torch.arange(spec.num_dropout_sites).unsqueeze(-1) * 7919 + 1
    assert_no_leak(spec, seeds)  # as in a training step


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
def test_no_normaliser_learns_anything_of_later_tokens(mechanism: str, normaliser: str) -> None:
    assert_no_leak(spec_of(mechanism, normaliser))


@pytest.mark.parametrize("plan", PLANS)
def test_no_schedule_learns_anything_of_later_tokens_at_any_stage(plan: str) -> None:
    spec = spec_of(plan)
    stages = [spec.at(done) for done in (0.0, *spec.plan.turns(spec.seq_len))]
    assert len({str(stage.plan.of_blocks(2, 24, stage.done)) for stage in stages}) == len(stages)
    for stage in stages:
        assert_no_leak(stage)


def one_batch(mechanism: str) -> Cohort:
    """A cohort of one whose training data is a single batch: a sequence in which every pair of tokens is there once.

    For some, what follows depends on two tokens, so that a model has to look back; for the others all tokens differ.
    """
    config = RunConfig(
        task=TaskConfig(name="copy_string", options={"length": 12}, train_rows=2, heldout_rows=2),
        attention=AttentionConfig(mechanism=mechanism),
        model=ModelConfig(**{**DECODER, "d_model": 32}, blocks=2),
        training=TrainingConfig(epochs=STEPS[mechanism in LOOKING_BACK], batch_size=2, **ADAMW | {"weight_decay": 0.0}),
        seed=1,
    )
    chain = de_bruijn(5) if mechanism in LOOKING_BACK else torch.arange(26)
    spec = Spec(config.model, config.attention, 26, 26, 12, is_causal=True, predicts_positions=True)
    rows = torch.stack([chain[:13], chain[12:25]])[None]
    data = Rows(rows[..., :-1].to(torch.uint8), None, rows[..., 1:].int(), OBJECTIVE)
    row = initial(spec, 1).unsqueeze(0)
    moments = {name: torch.zeros_like(row) for name in ("first_moment", "second_moment")}
    alive, died = torch.ones(1, dtype=torch.bool), torch.full((1,), -1)
    return Cohort([config], spec, data, data, row, moments, alive, died, torch.tensor([5]))


def de_bruijn(symbols: int) -> Tensor:
    """A sequence of `symbols`^2 + 1 tokens in which no pair stands twice."""
    sequence, seen = [0], set()
    while True:
        follows = [t for t in range(symbols - 1, -1, -1) if (sequence[-1], t) not in seen]
        if not follows:
            return torch.tensor(sequence)
        seen.add((sequence[-1], follows[0]))
        sequence.append(follows[0])


@pytest.mark.parametrize("mechanism", [*MECHANISMS, *PLANS])
def test_a_small_model_learns_one_batch_by_heart_with_every_mechanism(mechanism: str) -> None:
    cohort = one_batch(mechanism)
    step = TrainStep(cohort)
    for epoch in range(cohort.total_steps):
        step.begin_epoch(epoch, 0)
        step.run(1)
    model = cohort.member(0)
    tokens, targets = cohort.train.tokens[0].long(), cohort.train.targets.long()
    assert OBJECTIVE.loss(model(tokens)[None], targets).max() < 0.01


def text_config(corpus: Path, mechanism: str = "topk:2>full@0.6", **training: Any) -> RunConfig:
    return RunConfig(
        task=TaskConfig(
            name="text", options={"corpus": str(corpus), "length": 16, "heldout_share": 0.2, "test_share": 0.1},
            train_rows=43, heldout_rows=9,
        ),
        attention=AttentionConfig(mechanism=mechanism),
        model=ModelConfig(**{**DECODER, "dropout": 0.1}, blocks=2),
        training=TrainingConfig(
            **{"epochs": 2, "batch_size": 10, "schedule": "cosine", "warmup": 0.1, **ADAMW, **training}
        ),
        seed=4,
    )  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return folder_of_texts(tmp_path / "corpus")


def _die(config: RunConfig, out: Path, step: int, seconds: float) -> None:
    with _signal_at(step, signal.SIGKILL):
        train([config], out, runtime(checkpoint_seconds=seconds, micro_batch=4))


@pytest.mark.parametrize("seconds", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_killed_language_run_goes_on_to_the_bit(corpus: Path, tmp_path: Path, seconds: float) -> None:
    """With a k that grows, gradients added up over parts of a batch, AdamW and a cosine."""
    config = text_config(corpus)
    expected = trained([config], tmp_path / "undisturbed", micro_batch=4)
    for step in (3, 7):
        assert exit_code(_die, config, tmp_path / "killed", step, seconds) == -signal.SIGKILL
    assert_same_bits(trained([config], tmp_path / "killed"), expected)  # parts of a batch as before


def test_an_epoch_of_training_has_each_row_once_and_nothing_held_out(corpus: Path) -> None:
    config = text_config(corpus)
    task = config.task.build()
    whole = config.model_copy(update={"task": config.task.model_copy(update={"train_rows": None})})
    cohort = Cohort.begin([whole], [task], CPU)
    stream = task.streams.tokens["train"]
    for epoch in (0, 1):
        order, weights = cohort.order(epoch)
        taken = order[:, 0].flatten()[weights.flatten() > 0]
        rows = cohort.train.take(torch.zeros(1, 1, dtype=torch.int64), taken.unsqueeze(0)).tokens[0]
        assert len(taken) == cohort.train.count == task.size("train") == (len(stream) - 1) // 16
        assert weights.sum() * 16 == rows.numel()
        expected = sorted(map(tuple, stream[: rows.numel()].reshape(-1, 16).tolist()))
        assert sorted(map(tuple, rows.tolist())) == expected
    assert cohort.total_steps == 2 * -(-cohort.train.count // 10)
    # Every document names itself: no name that is held out stands in what is trained on.
    trained_on, unseen = (task.decode(task.streams.tokens[split].tolist()) for split in ("train", "heldout"))
    names = [line for line in unseen.splitlines() if line.startswith("number ")]
    assert names
    assert not {*names} & {*trained_on.splitlines()}


def test_a_language_run_is_diagnosed_at_its_end_and_along_its_training(corpus: Path, tmp_path: Path) -> None:
    (run,) = trained([text_config(corpus)], tmp_path / "runs", keep_epochs=(0, 1), keep_shares=(0.2,))
    assert [*checkpoint_epochs(run)] == [0, 0.4, 1, 2]
    along = measure_run(run, checkpoint="all", rows=5).measured.checkpoints
    assert [*along] == ["0", "0.4", "1", "2", "last"]
    assert all(one.delta_full["95"] is not None and one.fewest_keys == 2 for one in along.values())
    assert measure_run(run, checkpoint="0.4", rows=5).asked == ("0.4",)
    stages = [str(load(run, epoch=epoch).spec.mechanism) for epoch in (0, 0.4, 2)]
    assert stages == ["topk:2", "topk:4", "full"]
    for document in (corpus / "part0").iterdir():
        document.write_text("other words\n")
    with pytest.raises(UsageError, match="was trained on other data"):
        measure_run(run, rows=5)


def test_a_kept_checkpoint_between_evaluations_changes_no_bit(corpus: Path, tmp_path: Path) -> None:
    config = text_config(corpus)
    plain = trained([config], tmp_path / "plain", evaluate_every=1.0)
    kept = trained([config], tmp_path / "kept", evaluate_every=1.0, keep_shares=(0.125, 0.8))
    assert sorted(kept[0].kept_steps()) == [1, 8]
    assert_same_bits(kept, plain)


def test_a_run_over_a_corpus_has_a_curve(corpus: Path, tmp_path: Path) -> None:
    (run,) = trained([text_config(corpus, epochs=1)], tmp_path)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5]
    once, often = (runtime().evaluations(100, 100 * epochs, OBJECTIVE.evaluations) for epochs in (1, 40))
    assert (once.count(), once.next_after(0)) == (40, 2)
    assert (often.count(), often.next_after(0)) == (40, 100)


def test_tokens_that_a_checkpoint_does_not_know_are_refused(corpus: Path, tmp_path: Path) -> None:
    (run,) = trained([text_config(corpus, epochs=1)], tmp_path)
    model = load(run)
    assert isinstance(model, Encoder)
    with pytest.raises(UsageError, match=r"tokens hold the id 300, and this model knows 256: 0 \.\. 255"):
        model(torch.tensor([[5, 300, 7]]))
    with pytest.raises(UsageError, match="id -1"):
        model(torch.tensor([[5, -1, 7]]))
