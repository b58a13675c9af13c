"""Simulated studies of language models, the truth being known: C14, and the open questions C19 to C22."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.special import ndtri

from semfocus.analysis.verdicts.recall import HEAVY, NUMBERS, WIDTHS
from semfocus.analysis.verdicts.text import ARMS, BAND, FIGURE_19, FIGURE_20, LENGTHS, SIZES
from semfocus.measurements import Induction, Measurement
from simulated_runs import BASE, FULL, HOLDS, MIXED, NOT, OPEN, Arm, Cell, Floats, World, pair
from verdict_worlds_measured import luck

SEEDS = 8
SPEED, LEVEL = 0.02, 0.003  # spreads over seeds: of the logarithm of the speed, and of the last loss
TUNED = {"training.tuned": "lr of 1, 2, 3; 1 seed; last loss"}
STEPS = (0, 23, 47, 94, 188, 375, 750, 1500)


def falls(ratio: float, worse: float, late: float, shares: Floats, shared: float, own: float) -> Floats:
    """Held-out losses of a model `ratio` times as fast, `late` times in the end, and in the end `worse` by a share.

    One that is 0.95 times as fast in the end, or 0.9 times, has a last loss that is 0.5 % or 1 % higher.
    """
    lead = np.exp(np.log(ratio) + shares * np.log(late / ratio) + SPEED * shared)
    base = 0.75 + 2.5 * (1 + 40 * lead * shares) ** -0.9
    return base * (1 + worse * shares) + LEVEL * own


def model(ratio: float = 1.0, worse: float = 0.0, late: float | None = None) -> Arm:
    return Arm(losses=partial(falls, ratio, worse, ratio if late is None else late))


def pretrained(arms: Mapping[str, Arm], size: str = "10 M", length: int = 512, seeds: int = SEEDS) -> Cell:
    blocks, width = SIZES[size]
    at = {"model.blocks": blocks, "model.d_model": width, "task.options.length": length, **TUNED}
    return Cell("text", {FULL: model(), **arms}, seeds, at)


def c14() -> list[World]:
    def figures(ratio: float, **more: Any) -> list[Cell]:
        return [
            pair("next_word", ratio, {**figure.fields, "model.blocks": blocks}, 10, **more)
            for figure in (FIGURE_19, FIGURE_20)
            for blocks in figure.blocks
        ]

    def both(ratio: float, worse: float = 0.0) -> list[Cell]:
        return [pretrained({HEAVY: model(ratio, worse)}, length=length) for length in LENGTHS]

    world = partial(World, "C14")
    return [
        world("2x in the figures, 1.2x in pre-training", HOLDS, figures(2.0) + both(1.2)),
        world("1.3x in the figures, 1.05x in pre-training", HOLDS, figures(1.3) + both(1.05)),
        world("2x in the figures, pre-training never run", HOLDS, figures(2.0)),
        world("1x everywhere", MIXED, figures(1.0) + both(1.0)),
        world("2x in the figures, 1x in pre-training", MIXED, figures(2.0) + both(1.0)),
        world("2x in the figures, 0.97x and 0.3 % worse in pre-training", MIXED, figures(2.0) + both(0.97)),
        world("2x in the figures, 0.9x and 1 % worse in pre-training", NOT, figures(2.0) + both(0.9)),
        world("0.7x and 4 points worse; 0.9x and 3 % worse", NOT,
              figures(0.7, topk={"heldout": 0.86}) + both(0.9, 0.02)),
    ]  # fmt: skip


def c19() -> list[World]:
    def cells(arm: Arm, band: Arm, odd: Arm | None = None) -> list[Cell]:
        arms = {**dict.fromkeys(ARMS, arm), BAND: band} | ({} if odd is None else {ARMS[1]: odd})
        return [pretrained(arms, length=length) for length in LENGTHS]

    world = partial(World, "C19")
    return [
        world("1.2x with every arm, the band 0.8x", HOLDS, cells(model(1.2), model(0.8))),
        world("1.05x with every arm, the band 0.9x", HOLDS, cells(model(1.05), model(0.9))),
        world("1.15x at first, level in the end, the band 0.9x", MIXED, cells(model(1.15, late=1.0), model(0.9))),
        world("1.15x at first, 0.95x and 0.5 % worse in the end: an edge; the band 0.9x", MIXED,
              cells(model(1.15, late=0.95), model(0.9))),
        world("1x with every arm and the band", MIXED, cells(model(), model())),
        world("1.2x but topk:32, 0.9x; the band 0.8x", MIXED, cells(model(1.2), model(0.8), model(0.9))),
        world("0.9x and 3 % worse, the band 1.2x", NOT, cells(model(0.9, 0.02), model(1.2))),
    ]  # fmt: skip


def c20() -> list[World]:
    def cells(leads: Sequence[float], seeds: int = 4) -> list[Cell]:
        return [pretrained({HEAVY: model(lead)}, size, seeds=seeds) for size, lead in zip(SIZES, leads, strict=False)]

    world = partial(World, "C20")
    return [
        world("1.3x, 1.2x, 1.1x, 1.02x", HOLDS, cells((1.3, 1.2, 1.1, 1.02))),
        world("1.15x, 1.12x, 1.09x, 1.06x", HOLDS, cells((1.15, 1.12, 1.09, 1.06))),
        world("1.15x at every size: on the edge", OPEN, cells((1.15,) * 4)),
        world("1.02x, 1.1x, 1.2x, 1.3x", NOT, cells((1.02, 1.1, 1.2, 1.3))),
        world("1x at every size", OPEN, cells((1.0,) * 4)),
        world("1.3x and 1.1x at two sizes", OPEN, cells((1.3, 1.1))),
    ]


def c21() -> list[World]:
    def cells(ratio: float, first: float | None = None, **more: Any) -> list[Cell]:
        made = []
        for i, (width, pairs) in enumerate((width, pairs) for width in WIDTHS for pairs in NUMBERS):
            own = first if first is not None and i == 0 else ratio
            arms = {FULL: Arm(**{"median": BASE, **more}), HEAVY: Arm(**{"median": BASE / own, **more})}
            made.append(Cell("mqar", arms, SEEDS, {"model.d_model": width, "task.options.pairs": pairs, **TUNED}))
        return made

    world = partial(World, "C21")
    return [
        world("2x", HOLDS, cells(2.0)),
        world("1.5x", HOLDS, cells(1.5)),
        world("1x", NOT, cells(1.0)),
        world("2x but once, 0.5x", NOT, cells(2.0, 0.5)),
        world("0.5x", NOT, cells(0.5)),
        world("no arm learns to recall", OPEN, cells(2.0, fits=False, chance=0.0)),
    ]


@cache
def _heads(head: float, copying: float, best: float) -> Induction:
    """Heads and copying that appear at these shares of training."""
    points = {}
    for step in STEPS:
        score, accuracy = (
            best / (1 + math.exp(-8 * math.log(max(step, 1) / (at * STEPS[-1])))) for at in (head, copying)
        )
        points[str(step)] = {"tokens": step, "heads": [[score, 0.01]], "loss": 1.0, "accuracy": accuracy}
    return Induction.from_payload({"rows": 64, "half": 64, "points": points})


def appears(head: float, copying: float, best: float, own: Floats) -> dict[str, Measurement]:
    speed = math.exp(0.15 * float(ndtri(luck(own))))
    return {Induction.NAME: _heads(head * speed, copying * speed, best)}


def c22() -> list[World]:
    def cells(head: float, copying: float, best: float = 0.7) -> list[Cell]:
        arms = {
            FULL: Arm(losses=model().losses, measure=partial(appears, 0.3, 0.3, best)),
            HEAVY: Arm(losses=model().losses, measure=partial(appears, 0.3 / head, 0.3 / copying, best)),
        }
        return [pretrained(arms, "3 M")]

    world = partial(World, "C22")
    return [
        world("both 1.5x sooner", HOLDS, cells(1.5, 1.5)),
        world("both 1.2x sooner", HOLDS, cells(1.2, 1.2)),
        world("neither sooner nor later", NOT, cells(1.0, 1.0)),
        world("heads 1.5x sooner, copying 1.5x later", MIXED, cells(1.5, 1 / 1.5)),
        world("both 1.5x later", NOT, cells(1 / 1.5, 1 / 1.5)),
        world("no head copies", OPEN, cells(1.5, 1.5, best=0.05)),
    ]


TEXT_WORLDS = c14()
OPEN_TEXT_WORLDS = [world for worlds in (c19, c20, c21, c22) for world in worlds()]
