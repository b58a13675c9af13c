"""Simulated studies of speed and accuracy, of which it is known whether a claim is true: C1 to C8 and C11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from semfocus.analysis.verdicts.generalisation import GENERALISING
from semfocus.analysis.verdicts.robustness import ADAM_DECAY, ADAM_RATES, BLOCKS, DECAYS, FIRST_FOUR, HEADS, RATES
from semfocus.analysis.verdicts.settings import TASKS
from simulated_runs import BASE, FULL, HOLDS, MIXED, NOT, OPEN, SEQ_LEN, TOPK, Arm, Cell, World, pair, speeds

COMPACT_MASKS = ("banded:5", "block_local:5", "banded:5+1g", "block_local:5+1g")
HEADLINE = {FULL: 20, TOPK: 20, **dict.fromkeys(COMPACT_MASKS, 10)}


def c1() -> list[World]:
    world = partial(World, "C1")
    slow = {"slow": 0.3}
    return [
        world("1x on all", NOT, speeds(1.0)),
        world("1.15x on all", HOLDS, speeds(1.15)),
        world("1.3x on all", HOLDS, speeds(1.3)),
        world("2x on all", HOLDS, speeds(2.0)),
        world("2x on one, 0.7x on seven", NOT, speeds(0.7, 2.0)),
        world("2x on seven, 1x on one", NOT, speeds(2.0, 1.0)),
        world("1.3x, 60 % of full censored", HOLDS, speeds(1.3, median=1.07)),
        world("1x, 60 % of both censored", NOT, speeds(1.0, median=1.07)),
        world("1.3x, 30 % of runs three times as slow", HOLDS, speeds(1.3, **slow)),
        world("1x, 30 % of runs three times as slow", NOT, speeds(1.0, **slow)),
        world("1.3x on seven, one never run", HOLDS, speeds(1.3)[:-1]),
        world("2x on three, five never run", OPEN, speeds(2.0)[:3]),
    ]


def c2() -> list[World]:
    def cells(listops: float, largest: float, others: float = 1.3, **more: Any) -> list[Cell]:
        by_task = dict.fromkeys(TASKS, others) | {"listops": listops, "even_pairs": largest}
        return [pair(task, ratio, **more) for task, ratio in by_task.items()]

    world = partial(World, "C2")
    return [
        world("1.3x, 8.83x", HOLDS, cells(1.3, 8.83)),
        world("1x, 1x", NOT, cells(1.0, 1.0, 1.0)),
        world("1.15x, 1.15x", MIXED, cells(1.15, 1.15, 1.15)),
        world("1.3x, 1.3x", MIXED, cells(1.3, 1.3)),
        world("2x, 2x", NOT, cells(2.0, 2.0, 2.0)),
        world("1.625x and 7.06x: both on the edge", NOT, cells(1.62, 7.06)),
        world("1.3x, 8.83x, 60 % of full censored", HOLDS, cells(1.3, 8.83, median=1.07)),
        world("2x, 5x, 30 % of runs three times as slow", NOT, cells(2.0, 5.0, slow=0.3)),
    ]


def c3() -> list[World]:
    def cells(ratio: float, example: float, first: float | None = None) -> list[Cell]:
        made = []
        for i, task in enumerate(TASKS):
            own = example if task == "even_pairs" else first if first is not None and i == 0 else ratio
            arms = {FULL: Arm(BASE), **dict.fromkeys(COMPACT_MASKS, Arm(BASE / own))}
            made.append(Cell(task, arms, HEADLINE))
        return made

    world = partial(World, "C3")
    return [
        world("slower on all, never fit Even Pairs", HOLDS, cells(0.5, 0.01)),
        world("as the headline: 1.6x on one, never fit Even Pairs", HOLDS, cells(0.6, 0.01, 1.6)),
        world("1x on all", MIXED, cells(1.0, 1.0)),
        world("1.15x on all", NOT, cells(1.15, 1.15)),
        world("1.3x on all", NOT, cells(1.3, 1.3)),
        world("2x on all", NOT, cells(2.0, 2.0)),
        world("2x on one, 0.7x on seven", MIXED, cells(0.7, 0.7, 2.0)),
    ]


def c4() -> list[World]:
    bars = {
        "stack_manipulation": 0.834,
        "listops": 0.36,
        "modular_arithmetic": 0.292,
        "cycle_navigation": 0.2,
        "solve_equation": 0.2,
    }

    def cells(above: Mapping[str, float], otherwise: float = 0.0, **more: Any) -> list[Cell]:
        made = []
        for task in TASKS:
            bar = bars.get(task, 0.5)
            gain = above.get(task, (1 - bar) / 2 if task in GENERALISING else otherwise)
            made.append(Cell(task, {FULL: Arm(BASE, heldout=bar + gain, **more)}, 20))
        return made

    world = partial(World, "C4")
    edges = dict.fromkeys(TASKS, 0.02)
    return [
        world("as the paper says", HOLDS, cells({})),
        world("ListOps 9 points below its shortcut", MIXED, cells({"listops": -0.09})),
        world("ListOps exactly 2 points above it", NOT, cells({"listops": 0.02})),
        world("all exactly 2 points above, 3 points of spread", OPEN, cells(edges, noise=0.03)),
        world("Parity generalises", MIXED, cells({"parity": 0.4})),
        world("20 % of runs stuck at the bar", HOLDS, cells({}, stuck=0.2)),
        world(
            "no run fits",
            MIXED,
            [replace(c, arms={FULL: replace(c.arms[FULL], fits=False, median=9.0)}) for c in cells({})],
        ),
    ]


def c5() -> list[World]:
    world = partial(World, "C5")
    worse = partial(speeds, noise=0.01)
    stuck = {"stuck": 0.3, "heldout": 0.97}
    return [
        world("as good, 1x", MIXED, speeds(1.0)),
        world("as good, 1.15x earlier", HOLDS, speeds(1.15)),
        world("as good, 1.3x earlier", HOLDS, speeds(1.3)),
        world("as good, 2x earlier", HOLDS, speeds(2.0)),
        world("as good, 2x earlier on one, 0.7x on seven", MIXED, speeds(0.7, 2.0)),
        world("2 points worse, 2x earlier", OPEN, worse(2.0, topk={"heldout": 0.88})),
        world("4 points worse, 2x earlier", MIXED, worse(2.0, topk={"heldout": 0.86})),
        world("4 points worse, 0.7x", NOT, worse(0.7, topk={"heldout": 0.86})),
        world("neither generalises on four; 2x earlier on four", HOLDS,
              [pair(t, 2.0, heldout=0.9 if i % 2 else 0.1) for i, t in enumerate(TASKS)]),
        world("30 % of full stuck, 30 % of top-k; 2x", HOLDS, speeds(2.0, **stuck)),
        world("20 % of full stuck, 40 % of top-k; 2x", MIXED,
              speeds(2.0, stuck=0.2, heldout=0.97, topk={"stuck": 0.4})),
        world("60 % of full censored, 1.3x", HOLDS, speeds(1.3, median=1.07)),
    ]  # fmt: skip


def c6() -> list[World]:
    def cells(ratio: float, first: float | None = None, **more: Any) -> list[Cell]:
        made = speeds(2.0)  # ReLU
        for name, tasks in (("gelu", TASKS), ("mish", FIRST_FOUR)):
            made += [
                pair(task, first if first is not None and i == 0 else ratio, {"model.activation": name}, 10, **more)
                for i, task in enumerate(tasks)
            ]
        return made

    return _speed_worlds("C6", cells)


def c7() -> list[World]:
    changes = [{"model.blocks": n} for n in BLOCKS] + [{"model.heads": n} for n in HEADS]
    return _speed_worlds("C7", partial(_ablated, changes))


def c8() -> list[World]:
    changes: list[dict[str, Any]] = [{"training.lr": rate} for rate in RATES[:1] + RATES[2:]]
    changes += [{"training.decay": decay} for decay in DECAYS]
    adam = {"training.optimizer": "adam", "training.decay": ADAM_DECAY}
    return _speed_worlds(
        "C8", partial(_ablated, [{}, *changes, *(adam | {"training.lr": rate} for rate in ADAM_RATES)])
    )


def _ablated(changes: Sequence[Mapping[str, Any]], ratio: float, first: float | None = None, **more: Any) -> list[Cell]:
    """ListOps under each change; the setting of the paper, where it is one of them, is 2x."""
    return [
        pair("listops", first if first is not None and i == 0 else ratio, change, 10, **more)
        for i, change in enumerate(changes)
    ]


def _speed_worlds(claim: str, cells: Any) -> list[World]:
    world = partial(World, claim)
    return [
        world("1x everywhere", MIXED, cells(1.0)),
        world("1.15x everywhere", HOLDS, cells(1.15)),
        world("1.3x everywhere", HOLDS, cells(1.3)),
        world("2x everywhere", HOLDS, cells(2.0)),
        world("2x in one case, 0.7x in the others", MIXED, cells(0.7, 2.0)),
        world("1.3x, 60 % of full censored at 95 %", HOLDS, cells(1.3, median=1.07)),
        world("2x, 30 % of runs of either arm stuck", HOLDS, cells(2.0, stuck=0.3, heldout=0.97)),
    ]


def c11() -> list[World]:
    def cells(ratio: float, widest: float, **more: Any) -> list[Cell]:
        full = Arm(**{"median": BASE, **more})
        arms = {
            FULL: full,
            TOPK: replace(full, median=full.median / ratio),
            f"topk:{SEQ_LEN}": replace(full, median=full.median / widest),
        }
        return [Cell(task, arms, 10) for task in TASKS]

    world = partial(World, "C11")
    return [
        world("topk:5 2x, topk:L 1x", HOLDS, cells(2.0, 1.0)),
        world("topk:5 1.3x, topk:L 1x", HOLDS, cells(1.3, 1.0)),
        world("topk:5 2x, topk:L 1.25x: on the edge", NOT, cells(2.0, 1.25)),
        world("topk:5 1x, topk:L 1x", NOT, cells(1.0, 1.0)),
        world("topk:5 2x, topk:L 2x", NOT, cells(2.0, 2.0)),
        world("topk:5 2x, topk:L 1x, 60 % of full censored", HOLDS, cells(2.0, 1.0, median=1.07)),
    ]


WORLDS = [world for worlds in (c1, c2, c3, c4, c5, c6, c7, c8, c11) for world in worlds()]
