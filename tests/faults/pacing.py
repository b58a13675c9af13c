"""Runs that take their time for as long as a test wants it: what strikes them then finds them at work, on any machine.

    with paced(tmp_path / "plugin") as pace:
        configs = [pace.run(seed) for seed in (1, 2)]
        expected = trained(configs, ...)                      at full speed
        with pace.slow():                                     forty seconds each; at full speed again after `pace.end()`
            train(configs, ..., on_progress=strike)

It is a plugin, so that workers on other machines have it too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from semfocus.config import RunConfig
from semfocus.tasks.registry import TASKS
from semfocus.training import Progress
from semfocus.training.objective import OBJECTIVES
from tests.training.helpers import tiny

NAME = "paced"  # of the module, of the task, and of the objective
SECONDS = 0.2  # a step; LONG has two hundred
PLUGIN = """
import time
from dataclasses import dataclass
from pathlib import Path
from semfocus import register_objective, register_task
from semfocus.tasks.even_pairs import EvenPairs
from semfocus.training.objective import Classification

SLOW = Path({slow!r})

@register_objective
class Paced(Classification):
    name = "paced"

    def loss(self, logits, targets):
        if SLOW.exists():
            time.sleep({seconds})
        return super().loss(logits, targets)

@register_task
@dataclass(frozen=True, kw_only=True)
class PacedEvenPairs(EvenPairs):
    name = "paced"
    objective = "paced"
"""


class Pace:
    """A plugin in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "slow"
        folder.mkdir(parents=True)
        (folder / f"{NAME}.py").write_text(PLUGIN.format(slow=str(self.file), seconds=SECONDS))

    def run(self, seed: int, epochs: int = 40) -> RunConfig:
        return tiny(seed, "full", task=NAME, epochs=epochs)

    @contextmanager
    def slow(self) -> Iterator[None]:
        self.file.touch()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        self.file.unlink(missing_ok=True)


@contextmanager
def paced(folder: Path) -> Iterator[Pace]:
    pace = Pace(folder)
    sys.path.insert(0, str(folder))
    try:
        import_module(NAME)
        yield pace
    finally:
        pace.end()
        sys.path.remove(str(folder))
        sys.modules.pop(NAME, None)
        for registry in (TASKS, OBJECTIVES):
            registry._entries.pop(NAME, None)  # other tests have no such plugin


def once(act: Callable[[], None], pace: Pace | None = None) -> Callable[[Progress], None]:
    """Strike as soon as one trains; afterwards at full speed."""
    done: list[int] = []

    def on_progress(progress: Progress) -> None:
        if not done and progress.step and progress.going_on:
            done.append(progress.step)
            act()
            if pace is not None:
                pace.end()

    return on_progress
