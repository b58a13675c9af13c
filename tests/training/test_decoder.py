"""Decoders of language: what they compute against a plain one, and how they are trained."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from semfocus.config import AttentionConfig, ModelConfig, TrainingConfig
from semfocus.decoders import SIZES, language
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.model.forward import forward
from semfocus.spec import Spec, initial
from semfocus.tasks import NO_TARGET
from semfocus.training.cohort import Cohort, lr_factor
from semfocus.training.evaluation import Evaluator
from semfocus.training.objective import get_objective
from semfocus.training.step import TrainStep
from tests.training.copy_task import Copy
from tests.training.helpers import assert_same_bits, begin, runtime, states, tiny, trained
from tests.training.plain_decoder import logits_of, loss_of

OBJECTIVE = get_objective("next_token")
BASE = {"blocks": 2, "d_model": 8, "heads": 2, "head_width": "split", "d_mlp": 12, "dropout": 0.0}
BIG = [pytest.param(name, marks=pytest.mark.slow) if SIZES[name].parameters > 2e7 else name for name in SIZES]


def decoder(model: ModelConfig, num_tokens: int = 11, length: int = 7) -> Spec:
    causal = {"is_causal": True, "predicts_positions": True}
    return Spec(model, AttentionConfig(), num_tokens, num_tokens, length, **causal)


def losses(spec: Spec, tokens: Tensor, seed: int = 1) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """The loss of ours and of the plain model, and their gradients by parameter, in float64."""
    split = spec.layout.split(initial(spec, seed).double().unsqueeze(0))
    generator = torch.Generator().manual_seed(seed)
    ours = {
        name: (value + 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)).requires_grad_()
        for name, value in split.items()
    }
    plain = {name: value[0].detach().clone().requires_grad_() for name, value in ours.items()}
    targets = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], NO_TARGET)], dim=1)
    mine = OBJECTIVE.loss(forward(ours, tokens[None], None, spec), targets[None]).mean()
    other = loss_of(logits_of(plain, tokens, spec.model, spec.num_classes), tokens)
    gradients = torch.autograd.grad(mine, list(ours.values()))
    expected = torch.autograd.grad(other, list(plain.values()))
    return mine.detach(), other.detach(), [one[0] for one in gradients], list(expected)


def assert_same(spec: Spec) -> None:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(spec.vocab_size, (3, spec.seq_len), generator=generator)
    mine, plain, gradients, expected = losses(spec, tokens)
    torch.testing.assert_close(mine, plain, rtol=1e-10, atol=0)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("size", BIG)
def test_every_size_has_the_loss_and_gradients_of_a_plain_model(size: str, corpus: Path) -> None:
    options = {"corpus": str(corpus), "tokenizer": "bytes", "length": 16}
    assert_same(decoder(language(size, options=options).model, num_tokens=40, length=6))


@pytest.mark.parametrize("positions", ["none", "rope", "learned"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "relu2", "swiglu"])
def test_every_option_has_the_loss_and_gradients_of_a_plain_model(activation: str, positions: str) -> None:
    for norm, final, biases, tied in product(("layernorm", "rmsnorm"), *[(False, True)] * 3):
        own = {"norm_function": norm, "final_norm": final, "biases": biases, "tied_head": tied}
        assert_same(decoder(ModelConfig(**BASE, **own, activation=activation, positions=positions)))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{number} squared is {number * number}.\n" for number in range(4000)))
    return path


def test_normal_initialisation_has_the_stated_spread() -> None:
    spec = decoder(ModelConfig(**{**BASE, "d_model": 64, "d_mlp": 256}, init="normal"))
    split = spec.layout.split(initial(spec, 1).unsqueeze(0))
    assert split["blocks.0.qkv.weight"].std() == pytest.approx(0.02, rel=0.03)
    assert split["blocks.1.o.weight"].std() == pytest.approx(0.02 / 2, rel=0.05)  # 2 blocks: sqrt(4)
    assert split["blocks.1.mlp_out.weight"].std() == pytest.approx(0.01, rel=0.03)
    assert not split["blocks.0.o.bias"].any()
    assert not torch.equal(initial(spec, 1), initial(spec, 2))


def test_what_a_size_is_said_to_have_is_what_it_has(corpus: Path) -> None:
    for name, size in SIZES.items():
        config = language(name, options={"corpus": str(corpus), "tokenizer": "bytes", "length": 16})
        spec = decoder(config.model, num_tokens=256)
        blocks = sum(math.prod(shape) for part, shape in spec.layout.shapes.items() if part.startswith("blocks"))
        assert blocks == size.parameters
        assert config.model.head_dim == 64
    assert SIZES["10m"].parameters == pytest.approx(10e6, rel=0.1)
    assert SIZES["124m"].parameters + 50_000 * 768 == pytest.approx(124e6, rel=0.02)


def test_a_small_corpus_is_read_as_often_as_the_training_needs(corpus: Path) -> None:
    config = language("tiny", options={"corpus": str(corpus)})
    rows = config.task.build().size("train")
    assert config.training.epochs == -(-1000 * 16 // rows) > 1
    steps = config.training.epochs * -(-config.task.train_rows // 16)
    assert 1000 <= steps <= 1000 + config.training.epochs
    with pytest.raises(UsageError, match="size = 'tiny' is of language models, and task parity is none"):
        language("tiny", "parity")
    with pytest.raises(UsageError, match="10m"):
        language("10M")


def test_schedules_rise_and_fall_as_documented() -> None:
    flat = {"decay": 1.0, "warmup": 0.2}
    cosine = TrainingConfig(**flat, schedule="cosine", final_lr=0.1)
    assert [lr_factor(cosine, step, 10) for step in (0, 1, 2)] == pytest.approx([0.5, 1.0, 1.0])
    assert lr_factor(cosine, 6, 10) == pytest.approx(0.1 + 0.9 * 0.5)
    assert 0.1 < lr_factor(cosine, 9, 10) < 0.15
    trapezoid = TrainingConfig(**flat, schedule="trapezoid", cooldown=0.5)
    factors = [lr_factor(trapezoid, step, 10) for step in range(10)]
    assert factors == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])
    decay = TrainingConfig(decay=0.5, warmup=0.5)
    assert [lr_factor(decay, step, 4) for step in range(4)] == pytest.approx([0.5, 1, 1, 1])


def test_each_step_has_the_rate_of_its_schedule_and_records_it(tmp_path: Path) -> None:
    config = tiny(1, schedule="cosine", decay=1.0, warmup=0.2, lr=0.5, clip=None)
    cohort = begin([config])
    step = TrainStep(cohort)
    moved = []
    for done in range(15):
        if done % 5 == 0:
            step.begin_epoch(done // 5, 0)
        before = cohort.parameters.clone()
        gradient = _gradient(cohort, step)
        step.run(1)
        moved.append(float(((before - cohort.parameters) * gradient).sum() / gradient.square().sum()))
    expected = [0.5 * lr_factor(config.training, done, 15) for done in range(15)]
    assert moved == pytest.approx(expected, rel=1e-4)
    (run,) = trained([config], tmp_path)
    assert [row["lr"] for row in run.metrics()] == pytest.approx([expected[done] for done in (4, 9, 14)], rel=1e-6)


def _gradient(cohort: Cohort, step: TrainStep) -> Tensor:
    """(E, P) the gradient of the next step."""
    indices, weights = step.order[int(step.index)], step.weights[int(step.index)]
    _, gradients = step._gradients(indices, weights, weights.sum(), step.seeds())
    return cohort.spec.layout.join(gradients)


@pytest.mark.parametrize("micro_batch", [1, 4, 10, 99])
def test_gradients_added_up_over_parts_of_a_batch_are_those_of_the_batch(micro_batch: int) -> None:
    configs = [tiny(seed, model={"dropout": 0.0}) for seed in (1, 2)]
    whole, parted = begin(configs), begin(configs)
    for cohort, size in ((whole, None), (parted, micro_batch)):
        cohort.parameters = cohort.parameters.double()
        step = TrainStep(cohort, micro_batch=size)
        step.begin_epoch(0, 0)
        step.run(5)  # the last batch is short
    torch.testing.assert_close(parted.parameters, whole.parameters, rtol=1e-10, atol=1e-12)


def test_parts_of_a_batch_draw_dropout_of_their_own() -> None:
    cohort = begin([tiny(1, model={"dropout": 0.5})])
    cohort.train = cohort.train.between(0, 1)  # the same example in every place
    order = torch.zeros(2, dtype=torch.int64)
    step = TrainStep(cohort, micro_batch=1)
    seen = []
    plain = step._gradients
    step._gradients = lambda *given: seen.append(plain(*given)[0]) or plain(*given)
    step.order = order.view(1, 1, 2)
    step.weights = torch.ones(1, 2)
    step.step()
    assert len(seen) == 2
    assert not torch.equal(*seen)


def test_sixteen_bits_are_for_products_alone(tmp_path: Path) -> None:
    exact, rough = (
        tiny(1, model={"dropout": 0.0}),
        tiny(1, model={"dropout": 0.0}).model_copy(update={"precision": "bf16"}),
    )
    assert exact.run_id(exact.task.build()) != rough.run_id(rough.task.build())
    (first,), (second,) = trained([exact], tmp_path), trained([rough], tmp_path)
    ours, theirs = second.metrics()[-1]["train_loss"], first.metrics()[-1]["train_loss"]
    assert ours != theirs
    assert ours == pytest.approx(theirs, rel=1e-2)
    parameters = second.load_checkpoint().tensors["parameters"]
    assert parameters.dtype == torch.float32
    assert not torch.equal(parameters, parameters.bfloat16().float()), "weights are kept in 32 bits"


def test_a_run_in_sixteen_bits_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    config = tiny(1, epochs=4).model_copy(update={"precision": "bf16"})
    whole = trained([config], tmp_path / "whole")
    stopped: list[int] = []

    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        stopped.append(progress.step)
        if progress.step == 10:
            raise Stop

    with pytest.raises(Stop):
        train([config], tmp_path / "parts", runtime(checkpoint_seconds=0), stop)
    assert_same_bits(trained([config], tmp_path / "parts"), whole)


def test_so_many_training_examples_are_evaluated_as_asked_for() -> None:
    few, all_of_them = begin([tiny(1, evaluated_rows=7)]), begin([tiny(1)])
    scores = Evaluator(few).scores()
    all_of_them.train = all_of_them.train.between(0, 7)
    expected = Evaluator(all_of_them).scores()
    assert scores["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-6)
    assert scores["heldout_loss"] == pytest.approx(expected["heldout_loss"], rel=1e-6)
    assert Evaluator(begin([tiny(1, evaluated_rows=1000)])).counts == [43, 21]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedule": "cosine"}, "training.schedule = cosine has a course of its own: set training.decay = 1"),
        ({"schedule": "trapezoid", "decay": 1.0, "warmup": 0.5, "cooldown": 0.6}, "choose shares whose sum"),
        ({"warmup": 1.0}, "warmup"),
        ({"schedule": "linear"}, "cosine"),
    ],
)
def test_schedules_that_have_no_meaning_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TrainingConfig(**fields)


def test_a_tied_head_needs_tokens_for_classes() -> None:
    with pytest.raises(UsageError, match=r"model\.tied_head predicts one of the 2 tokens"):
        Spec(ModelConfig(tied_head=True), AttentionConfig(), 2, 10, 8)


def test_a_decoder_learns_to_copy(tmp_path: Path) -> None:
    assert Copy.name == "copy_string"
    model = {**BASE, "d_model": 32, "d_mlp": 64, "norm_function": "rmsnorm", "final_norm": True, "biases": False}
    model |= {"tied_head": True, "init": "normal", "positions": "rope", "activation": "relu2", "dropout": 0.0}
    training = {"optimizer": "adamw", "lr": 0.01, "decay": 1.0, "schedule": "trapezoid", "warmup": 0.05}
    config = tiny(1, task="copy_string", rows=(400, 50), model=model, epochs=12, batch_size=20, clip=1.0, **training)
    outcomes = train([config], tmp_path, runtime())
    assert states(outcomes) == ["done"]
    assert outcomes[0].run.metrics()[-1]["heldout_accuracy"] > 0.95
