"""Simulated studies of the open questions, the truth being known: C15 to C18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from scipy.special import ndtri

from semfocus.analysis.verdicts.longer import LONGER_TASKS, PLACES, RIVALS, SMOOTH_TASKS
from semfocus.analysis.verdicts.ways import GAIN_TASKS, NORMALISERS, SEVEN
from semfocus.measurements import LengthCurve, Measurement, Smoothness
from simulated_runs import BASE, FULL, HOLDS, MIXED, NOT, OPEN, TOPK, Arm, Cell, Floats, World
from verdict_worlds_measured import luck

SEEDS = 10
WAYS = ("lsh:5", "routing:5", "entmax:1.5", "sparsemax")
CONTROLS = ("bottomk:5", "randomk:5")


def c15() -> list[World]:
    def cells(
        ways: float | Mapping[str, float], controls: float, lead: float = 2.0, tasks: Sequence[str] = SEVEN, **more: Any
    ) -> list[Cell]:
        """Speed-ups over full attention, of the four ways, the two controls and top-5."""
        by_way = dict.fromkeys(WAYS, ways) if isinstance(ways, (int, float)) else dict(ways)

        def arm(ratio: float) -> Arm:
            return Arm(BASE / ratio, **more)

        made = []
        for task in tasks:
            arms = {FULL: arm(1.0), TOPK: arm(lead), **{name: arm(controls) for name in CONTROLS}}
            arms |= {name: arm(by_way[name]) for name in WAYS[:2]}
            made.append(Cell(task, arms, SEEDS))
            made += [Cell(task, {FULL: arm(by_way[name])}, SEEDS, {"attention.normaliser": name}) for name in WAYS[2:]]
        return made

    world, even = partial(World, "C15"), dict.fromkeys(WAYS, 2.0)
    return [
        world("2x in all ways, controls 0.7x", HOLDS, cells(2.0, 0.7)),
        world("1.5x in all ways, controls 1x", HOLDS, cells(1.5, 1.0)),
        world("1.3x in all ways, controls 1x", HOLDS, cells(1.3, 1.0)),
        world("1x in all ways, controls 0.7x", MIXED, cells(1.0, 0.7)),
        world("0.7x in all ways, controls 0.7x", MIXED, cells(0.7, 0.7)),
        world("2x but LSH, 0.7x; controls 0.7x", MIXED, cells(even | {"lsh:5": 0.7}, 0.7)),
        world("2x in all ways, controls 2x", MIXED, cells(2.0, 2.0)),
        world("0.7x in all ways, controls 4x", NOT, cells(0.7, 4.0)),
        world("no lead of top-5", OPEN, cells(1.0, 1.0, lead=1.0)),
        world("2x in all ways, controls 0.7x, three tasks run", OPEN, cells(2.0, 0.7, tasks=SEVEN[:3])),
    ]


def c16() -> list[World]:
    def cells(gains: float | Mapping[str, float], lead: float = 2.0, slow: float = 1.0, **more: Any) -> list[Cell]:
        """The gain of top-5 under each normaliser; under softmax it is `lead`. `slow`: of the other normalisers."""
        by_name = dict.fromkeys(NORMALISERS, gains) if isinstance(gains, (int, float)) else dict(gains)
        made = []
        for task in GAIN_TASKS:
            for name, gain in {"softmax": lead, **by_name}.items():
                base = BASE if name == "softmax" else BASE * slow
                arms = {FULL: Arm(base, **more), TOPK: Arm(base / gain, **more)}
                made.append(Cell(task, arms, SEEDS, {"attention.normaliser": name}))
        return made

    world, even = partial(World, "C16"), dict.fromkeys(NORMALISERS, 2.0)
    return [
        world("2x under all, epochs spread by 10 %", HOLDS, cells(2.0, spread=0.1)),
        world("2x under all", HOLDS, cells(2.0)),
        world("2x, 1x under the others", NOT, cells(1.0)),
        world("2x, 1.6x under the others: on the edge", OPEN, cells(1.6)),
        world("2x, 1x under sigmoid alone", NOT, cells(even | {"sigmoid": 1.0})),
        world("2x, 4x under the others", NOT, cells(4.0)),
        world("2x under all, the others never learn", OPEN, cells(2.0, slow=9.0)),
        world("2x, 1x under the others, most of full censored there", NOT, cells(1.0, slow=2.7)),
        world("no lead of top-5", OPEN, cells(2.0, lead=1.0)),
    ]


@cache
def _curve(area: float) -> LengthCurve:
    points = {str(n): {"loss": 1.0, "accuracy": area} for n in (40, 80, 160, 320, 500)}
    return LengthCurve.from_payload({"step": 1, "rows": 500, "points": points})


def reaches(area: float, noise: float, own: Floats) -> dict[str, Measurement]:
    return {LengthCurve.NAME: _curve(min(max(area + noise * float(ndtri(luck(own))), 0.0), 1.0))}


def c17() -> list[World]:
    def cells(full: float, topk: float, rivals: float, noise: float = 0.04, tasks: Sequence[str] = LONGER_TASKS):
        made = []
        for task in tasks:
            for place in PLACES:
                at = {"task.lengths": "1-40", "model.positions": place}
                arms = {
                    FULL: Arm(measure=partial(reaches, full, noise)),
                    TOPK: Arm(measure=partial(reaches, topk, noise)),
                }
                made.append(Cell(task, arms, SEEDS, at))
                other = {FULL: Arm(measure=partial(reaches, rivals, noise))}
                made += [Cell(task, other, SEEDS, {**at, "attention.normaliser": name}) for name in RIVALS]
        return made

    world = partial(World, "C17")
    return [
        world("15 points further, 4 more than the others, 2 of noise", HOLDS, cells(0.55, 0.7, 0.66, 0.02)),
        world("15 points further, 4 more than the others", HOLDS, cells(0.55, 0.7, 0.66)),
        world("5 points further, 5 more than the others", HOLDS, cells(0.6, 0.65, 0.6)),
        world("level with all", MIXED, cells(0.6, 0.6, 0.6)),
        world("15 points less than full and the others", NOT, cells(0.7, 0.55, 0.7)),
        world("15 points further, 15 less than the others", MIXED, cells(0.5, 0.65, 0.8)),
        world("2 points less than the others: on the edge", OPEN, cells(0.5, 0.65, 0.67)),
        world("level with full, 2 points less than the others: both edges", OPEN, cells(0.65, 0.65, 0.67)),
        world("all guess", OPEN, cells(0.09, 0.09, 0.09, 0.005)),
        world("15 points further, two of five tasks run", OPEN, cells(0.55, 0.7, 0.66, tasks=LONGER_TASKS[:2])),
    ]


@cache
def _growth(exponent: float) -> Smoothness:
    points = {
        str(n): {"constant": float(n) ** exponent, "certified": 1.0, "sqrt_n": 1.0, "settled": 1.0}
        for n in (10, 40, 160, 600)
    }
    return Smoothness.from_payload({"step": 1, "rows": 4, "points": points})


def grows(exponent: float, noise: float, own: Floats) -> dict[str, Measurement]:
    return {Smoothness.NAME: _growth(exponent + noise * float(ndtri(luck(own))))}


def c18() -> list[World]:
    def cells(full: float, topk: float, noise: float = 0.03) -> list[Cell]:
        arms = {FULL: Arm(measure=partial(grows, full, noise)), TOPK: Arm(measure=partial(grows, topk, noise))}
        return [Cell(task, arms, SEEDS) for task in SMOOTH_TASKS]

    world = partial(World, "C18")
    return [
        world("n^0.25 for both", HOLDS, cells(0.25, 0.25)),
        world("n^0.25 and n^0.28", HOLDS, cells(0.25, 0.28)),
        world("n^0.25 and n^0.30: on the edge", OPEN, cells(0.25, 0.30)),
        world("n^0.25 and n^0.40", NOT, cells(0.25, 0.40)),
        world("n^0.25 and n^0.10", NOT, cells(0.25, 0.10)),
        world("n^0.25 for both, three times the noise", HOLDS, cells(0.25, 0.25, 0.09)),
    ]


OPEN_WORLDS = [world for worlds in (c15, c16, c17, c18) for world in worlds()]
