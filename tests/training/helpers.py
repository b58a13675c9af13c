"""Runs so small that whole trainings take milliseconds, and what is compared of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.execution import RunOutcome, train
from semfocus.store import RunDirectory
from semfocus.training import Runtime
from semfocus.training.cohort import Cohort

CPU = torch.device("cpu")
RUNTIME = Runtime(device="cpu", threads=1, compile="off")


def tiny(
    seed: int = 1,
    mechanism: str = "full",
    *,
    task: str = "even_pairs",
    rows: tuple[int, int] = (43, 21),
    model: dict[str, Any] | None = None,
    attention: dict[str, Any] | None = None,
    **training: Any,
) -> RunConfig:
    """Five steps an epoch, the last of them short."""
    return RunConfig(
        task=TaskConfig(name=task, options={"length": 8}, train_rows=rows[0], heldout_rows=rows[1]),
        attention=AttentionConfig(mechanism=mechanism, **(attention or {})),
        model=ModelConfig(**{"blocks": 1, "d_model": 8, "d_mlp": 8, "dropout": 0.1} | (model or {})),
        training=TrainingConfig(**{"epochs": 3, "batch_size": 10} | training),
        seed=seed,
    )


def runtime(**changes: Any) -> Runtime:
    return Runtime(**{"device": "cpu", "threads": 1, "compile": "off"} | changes)


def begin(configs: Sequence[RunConfig]) -> Cohort:
    return Cohort.begin(list(configs), [config.task.build() for config in configs], CPU)


def run_of(config: RunConfig, out: Path) -> RunDirectory:
    return RunDirectory(out / config.run_id(config.task.build()))


def states(outcomes: Sequence[RunOutcome]) -> list[str]:
    return [outcome.state for outcome in outcomes]


def trained(configs: Sequence[RunConfig], out: Path, **changes: Any) -> list[RunDirectory]:
    """The runs of these configs, trained to their ends."""
    return [outcome.run for outcome in train(configs, out, runtime(**changes))]


def tensors(run: RunDirectory) -> dict[str, Tensor]:
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    return {"step": torch.tensor(checkpoint.step), **checkpoint.tensors}


def assert_same_bits(runs: Sequence[RunDirectory], expected: Sequence[RunDirectory]) -> None:
    """Same weights, same metrics, same end."""
    assert [run.id for run in runs] == [run.id for run in expected]
    for mine, other in zip(runs, expected, strict=True):
        assert mine.metrics() == other.metrics()
        weights = tensors(other)
        assert tensors(mine).keys() == weights.keys()
        for name, value in tensors(mine).items():
            assert torch.equal(value, weights[name]), (mine.id, name)
        ends = [{name: (run.status() or {}).get(name) for name in ("state", "step", "reason")} for run in (mine, other)]
        assert ends[0] == ends[1]


def process(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A fresh process at work on this; it costs milliseconds, being forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "tests.training.helpers", "semfocus.training.session"])
    started = context.Process(target=target, args=arguments)
    started.start()
    return started


def exit_code(target: Callable[..., None], *arguments: Any) -> int | None:
    """How a process that does this ends."""
    started = process(target, *arguments)
    started.join()
    return started.exitcode
