"""For each claim of the paper, simulated studies of which it is known whether the claim is true.

    for world in WORLDS:
        world.claim, world.name, world.truth, world.cells

`truth` is the outcome that an endless study would have; "holds or not" marks a boundary, at which either is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from scipy.special import ndtri

from semfocus.analysis.verdicts.generalisation import GENERALISING
from semfocus.analysis.verdicts.interventions import HEATED_TASKS, LESS_NOISY, NOISY, NOISY_TASKS, TEMPERATURE
from semfocus.analysis.verdicts.measured import TABLE_TASKS
from semfocus.analysis.verdicts.robustness import ADAM_DECAY, ADAM_RATES, BLOCKS, DECAYS, FIRST_FOUR, HEADS, RATES
from semfocus.analysis.verdicts.settings import TASKS
from semfocus.measurements import Dispersion, MaskStability, Measurement, SurfaceMeta
from simulated_runs import SEQ_LEN, Arm, Cell, Floats

FULL, TOPK = "full", "topk:5"
COMPACT_MASKS = ("banded:5", "block_local:5", "banded:5+1g", "block_local:5+1g")
HEADLINE = {FULL: 20, TOPK: 20, **dict.fromkeys(COMPACT_MASKS, 10)}
BASE = 0.4  # median epochs of full attention, as a share of the horizon
HOLDS, MIXED, NOT, OPEN = "holds", "mixed", "does not hold", "not decided"
PERCENTS = ("50", "75", "90", "95", "99", "100")


@dataclass(frozen=True)
class World:
    """One simulated study."""

    claim: str
    name: str
    truth: str  # one of the outcomes
    cells: Sequence[Cell]

    @property
    def key(self) -> str:
        return f"{self.claim}/{self.name}"


def pair(
    task: str, ratio: float, changes: Mapping[str, Any] = {}, seeds: int = 20, topk: Mapping[str, Any] = {}, **both: Any
) -> Cell:
    """Full attention and top-k, `ratio` times as fast; `topk` differs in these fields, too."""
    full = Arm(**{"median": BASE, **both})
    return Cell(task, {FULL: full, TOPK: replace(full, median=full.median / ratio, **topk)}, seeds, changes)


def speeds(ratio: float, first: float | None = None, **more: Any) -> list[Cell]:
    """The eight tasks; the first one may differ."""
    return [pair(task, first if first is not None and i == 0 else ratio, **more) for i, task in enumerate(TASKS)]


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


@cache
def lognormal(median: float, spread: float, uniform: float) -> float:
    return median * math.exp(spread * float(ndtri(uniform)))


def luck(own: Floats) -> float:
    """The first of a run's uniform numbers, to a whole percent: measurements are made once and shared."""
    return min(max(round(float(own[0]), 2), 0.005), 0.995)


def attends(delta: float, own: Floats, separation: float = 1.0) -> dict[str, Measurement]:
    return {Dispersion.NAME: _dispersion(lognormal(delta, 0.2, luck(own)), separation)}


@cache
def _dispersion(delta: float, separation: float) -> Dispersion:
    quantity = dict.fromkeys(PERCENTS, delta)
    at = {
        "epoch": 0, "keys": SEQ_LEN, "delta": quantity, "delta_full": quantity, "delta_heavy": quantity,
        "separation": dict.fromkeys(PERCENTS, separation), "in_degree": dict.fromkeys(PERCENTS, 5.0),
    }  # fmt: skip
    payload = {"k": 5, "split": "train", "rows": 100, "checkpoints": {"0": at, "last": at | {"epoch": 10}}}
    return Dispersion.from_payload(payload)


def c9() -> list[World]:
    def cells(full: float, topk: float, gap: float = 1.0) -> list[Cell]:
        return [
            Cell(
                task,
                {FULL: Arm(measure=partial(attends, full)), TOPK: Arm(measure=partial(attends, topk, separation=gap))},
                10,
            )
            for task in TABLE_TASKS
        ]

    world = partial(World, "C9")
    return [
        world("4x lower, conditions met", HOLDS, cells(20, 5)),
        world("1.15x lower, conditions not met", MIXED, cells(6, 6 / 1.15)),
        world("1.3x lower, conditions not met", MIXED, cells(6, 6 / 1.3)),
        world("alike, conditions not met", NOT, cells(6, 6)),
        world("2x higher, conditions not met", NOT, cells(6, 12)),
    ]


def slopes(slope: float, own: Floats) -> dict[str, Measurement]:
    return {SurfaceMeta.NAME: _surface(lognormal(slope, 0.3, luck(own)))}


@cache
def _surface(slope: float) -> SurfaceMeta:
    table = {percent: [slope, slope] for percent in ("50", "75", "95", "99")}
    payload = {
        "grid": 51, "extent": 1.0, "rows": 100, "directions": "random", "squares": [0.1, 0.7], "per_distance": table,
        "per_step": table,
    }  # fmt: skip
    return SurfaceMeta.from_payload(payload)


def c10() -> list[World]:
    def cells(ratio: float, first: float | None = None) -> list[Cell]:
        own = [first if first is not None and i == 0 else ratio for i in range(len(TABLE_TASKS))]
        return [
            Cell(task, {FULL: Arm(measure=partial(slopes, 1.0)), TOPK: Arm(measure=partial(slopes, 1 / r))}, 10)
            for task, r in zip(TABLE_TASKS, own, strict=True)
        ]

    world = partial(World, "C10")
    return [
        world("1x on all", NOT, cells(1.0)),
        world("1.15x on all", HOLDS, cells(1.15)),
        world("1.3x on all", HOLDS, cells(1.3)),
        world("2x on all", HOLDS, cells(2.0)),
        world("2x on one, 0.7x on three", NOT, cells(0.7, 2.0)),
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


def c12() -> list[World]:
    def stable(place: int, relation: float, own: Floats) -> dict[str, Measurement]:
        gap = lognormal(1 + place / 4, 0.05, luck(own))
        kept = 0.1 + 0.08 * (place if relation > 0 else 7 - place if relation < 0 else (3 * place) % 8)
        payload = {"k": 5, "split": "train", "rows": 100, "checkpoint": "last", "noise": [0.1], "kept": [kept],
                   "separation": {"50": gap}, "by_separation": {"borders": [], "kept": [[None]]}}  # fmt: skip
        return {MaskStability.NAME: MaskStability.from_payload(payload)}

    def cells(relation: float, noisy: float, **more: Any) -> list[Cell]:
        made = []
        for place, task in enumerate(TASKS):
            topk = Arm(**{"median": BASE / 2, **more})
            arms = {
                FULL: replace(topk, median=2 * topk.median),
                TOPK: replace(topk, measure=partial(stable, place, relation)),
            }
            if task in NOISY_TASKS:
                arms |= dict.fromkeys(LESS_NOISY, topk) | {NOISY: replace(topk, median=topk.median / noisy)}
            made.append(Cell(task, arms, 10))
        return made

    world = partial(World, "C12")
    return [
        world("stable where separated, noise 2x slower", HOLDS, cells(1, 0.5)),
        world("stable where separated, noise 1.3x slower", HOLDS, cells(1, 1 / 1.3)),
        world("stable where separated, noise changes nothing", MIXED, cells(1, 1.0)),
        world("stable where separated, noise at 0.8x: on the edge", OPEN, cells(1, 0.8)),
        world("the other way, noise changes nothing", NOT, cells(-1, 1.0)),
        world("noise 2x slower, 60 % censored", HOLDS, cells(1, 0.5, median=1.07)),
    ]


def c13() -> list[World]:
    def cells(gained: float, lost: float, lead: float = 3.0, **more: Any) -> list[Cell]:
        """A share of the lead is gained or lost by the time dispersion is that of the other arm."""
        base, made = Arm(**{"median": BASE, **more}), []
        for task in HEATED_TASKS:
            for t in (0.25, 0.5, 1.0, 2.0, 4.0):
                own = lead ** (-gained if t < 1 else 0.0)
                other = lead ** (-1 + (lost if t > 1 else 0.0))
                arms = {
                    FULL: replace(base, median=base.median * own, measure=partial(attends, 3.0 * t)),
                    TOPK: replace(base, median=base.median * other, measure=partial(attends, 1.1 * t)),
                }
                made.append(Cell(task, arms, 20 if t == 1 else 10, {TEMPERATURE: t}))
        return made

    world = partial(World, "C13")
    return [
        world("all of a 3x lead gained and lost", HOLDS, cells(1.0, 1.0)),
        world("none gained, none lost", NOT, cells(0.0, 0.0)),
        world("exactly half gained, half lost", OPEN, cells(0.5, 0.5)),
        world("all gained, none lost", MIXED, cells(1.0, 0.0)),
        world("none gained or lost of a 1.3x lead", NOT, cells(0.0, 0.0, 1.3)),
        world("no lead", OPEN, cells(0.0, 0.0, 1.0)),
        world("none gained or lost, 60 % of full censored", NOT, cells(0.0, 0.0, median=1.07)),
        world("all gained, all lost, 60 % of full censored", HOLDS, cells(1.0, 1.0, median=1.07)),
    ]


def c14() -> list[World]:
    world = partial(World, "C14")
    text = partial(pair, "next_token")
    return [
        world("1x", MIXED, [text(1.0)]),
        world("1.15x", HOLDS, [text(1.15)]),
        world("1.3x", HOLDS, [text(1.3)]),
        world("2x", HOLDS, [text(2.0)]),
        world("0.7x, 4 points worse", NOT, [text(0.7, topk={"heldout": 0.86})]),
    ]


WORLDS = [world for worlds in (c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14) for world in worlds()]
