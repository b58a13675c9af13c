"""Mechanisms that change from block to block, or during training: the same as if each had been set by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semfocus.attention.inspection import observing
from semfocus.config import AttentionConfig
from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.training import load
from semfocus.training.cohort import spec_of
from semfocus.training.evaluation import Evaluator
from semfocus.training.step import TrainStep
from tests.training.helpers import assert_same_bits, begin, run_of, runtime, states, tiny, trained

# 3 epochs of 5 steps; k grows from 2 to 4 at step 3, and to all of the 8 keys at step 6.
GROWING, TURNS = "topk:2>full@0.4", {0: "topk:2", 3: "topk:4", 6: "full"}
BY_BLOCK = "1*full/topk:3"


class _Stop(Exception):
    pass


def steps(cohort, count: int) -> None:
    step = TrainStep(cohort)
    for done in range(count):
        if done % cohort.steps_per_epoch == 0:
            step.begin_epoch(done // cohort.steps_per_epoch, 0)
        step.run(1)


def test_a_growing_k_trains_as_if_each_stage_were_set_by_hand() -> None:
    planned, by_hand = begin([tiny(1, GROWING)]), begin([tiny(1, "topk:2")])
    steps(planned, 9)
    step = TrainStep(by_hand)
    for done in range(9):
        if done in TURNS:
            chosen = AttentionConfig(mechanism=TURNS[done])
            by_hand.spec = spec_of(tiny(1, TURNS[done]), tiny(1).task.build())
            assert by_hand.spec.attention == chosen
        if done % 5 == 0:
            step.begin_epoch(done // 5, 0)
        step.run(1)
    assert torch.equal(planned.parameters, by_hand.parameters)
    unchanged = begin([tiny(1, "topk:2")])
    steps(unchanged, 9)
    assert not torch.equal(planned.parameters, unchanged.parameters)


def test_an_evaluation_takes_the_mechanism_of_its_step() -> None:
    cohort = begin([tiny(1, GROWING)])
    evaluator = Evaluator(cohort)
    for step, mechanism in ((0, "topk:2"), (4, "topk:4"), (15, "full")):
        cohort.step = step
        plain = begin([tiny(1, mechanism)])
        assert evaluator.scores() == Evaluator(plain).scores()


def test_a_run_whose_k_grows_resumes_to_the_bit_from_any_stage(tmp_path: Path) -> None:
    config = tiny(1, GROWING)
    whole = trained([config], tmp_path / "whole")
    for stop_at in (5, 10):

        def stop(progress, stop_at=stop_at) -> None:
            if progress.step >= stop_at:
                raise _Stop

        out = tmp_path / str(stop_at)
        with pytest.raises(_Stop):
            train([config], out, runtime(checkpoint_seconds=0), stop)
        assert states(train([config], out, runtime())) == ["done"]
        assert_same_bits([run_of(config, out)], whole)


def test_a_kept_checkpoint_has_the_mechanism_of_its_time(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, GROWING)], tmp_path, keep_epochs=(0, 1))
    kept = [str(load(run, epoch=epoch).spec.mechanism) for epoch in (0, 1, 3)]
    assert kept == ["topk:2", "topk:4", "full"]


def test_each_block_keeps_what_its_own_mechanism_says() -> None:
    cohort = begin([tiny(1, BY_BLOCK, model={"blocks": 3})])
    batch, seen = cohort.configs[0].task.build().sample(2, seed=0), []
    with observing(lambda inputs, grouped: seen.append(str(inputs.mechanism))):
        cohort.member(0)(batch.tokens, batch.lengths)
    assert seen == ["full", "topk:3", "topk:3"]


@pytest.mark.parametrize("mechanism", [GROWING, BY_BLOCK, "topk:2@0.3>banded:3@0.5>full"])
def test_a_plan_trains_in_a_cohort_of_its_own_as_alone(mechanism) -> None:
    configs = [tiny(seed, mechanism, model={"blocks": 2}) for seed in (1, 2)]
    both = begin(configs)
    steps(both, 8)
    for i, config in enumerate(configs):
        alone = begin([config])
        steps(alone, 8)
        assert torch.allclose(both.parameters[i], alone.parameters[0], rtol=1e-4, atol=1e-6)
    mixed = runtime(mix=True)
    plain = tiny(1, model={"blocks": 2})
    keys = {mixed.mixing_key(spec_of(one, one.task.build())) for one in (plain, configs[0])}
    assert len(keys) == 2


def test_a_plan_is_refused_where_it_does_not_fit() -> None:
    def check(mechanism: str, **model) -> None:
        config = tiny(1, mechanism, model=model)
        config.check(config.task.build())

    with pytest.raises(UsageError, match=r"model\.blocks = 1"):
        check("2*full/topk:3")
    with pytest.raises(UsageError, match="k = 50 exceeds the sequence length 8"):
        check("topk:2>topk:50@0.5")
    learning = tiny(1, "1*routing:3/full", model={"blocks": 2})
    with pytest.raises(UsageError, match="learn different parameters"):
        spec_of(learning, learning.task.build())


def test_a_causal_model_with_a_plan_learns_nothing_of_later_tokens() -> None:
    for mechanism in (GROWING, "topk:2>topk:6@1", BY_BLOCK):
        config = tiny(1, mechanism, task="copy", model={"blocks": 2})
        cohort = begin([config])
        model, batch = cohort.member(0), config.task.build().sample(3, seed=0)
        changed = batch.tokens.clone()
        changed[:, 9] = (changed[:, 9] + 1) % 10
        first, second = model(batch.tokens, batch.lengths), model(changed, batch.lengths)
        assert torch.equal(first[:, :9], second[:, :9])
        assert not torch.equal(first[:, 9:], second[:, 9:])
