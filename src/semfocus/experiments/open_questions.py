"""Questions that the paper leaves open, one function each: other ways to focus, to weigh, and longer sequences.

Which attention is one field of a configuration for the keys (`attention.mechanism`) and one for their weights
(`attention.normaliser`); a *way* here is a pair of both. Entmax and sparsemax drop keys by their weights, so that they
stand beside mechanisms as ways to focus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from semfocus.config import RunConfig
from semfocus.experiments.experiment import Change, Panel, distinct
from semfocus.experiments.paper_figures import FOCUS, ROWS_OF_40
from semfocus.experiments.registry import study
from semfocus.experiments.study import AS_IS, Choices, Tasks, crossed
from semfocus.recipes import Scale, at_scale

MECHANISM, NORMALISER, POSITIONS = "attention.mechanism", "attention.normaliser", "model.positions"
WAY = (MECHANISM, NORMALISER)
SPARSE_WEIGHTS: tuple[Change, ...] = tuple({NORMALISER: name} for name in ("entmax:1.5", "sparsemax"))
# A normaliser of its own; FAST weighs by a polynomial, over all keys or over those of top-k.
NORMALISERS: tuple[Change, ...] = (
    AS_IS, *({NORMALISER: name} for name in ("sigmoid", "lssar", "doubly", "fast:2")),
)  # fmt: skip
LENGTH_WEIGHTS: tuple[Change, ...] = (AS_IS, *({NORMALISER: name} for name in ("entmax:1.5", "ssmax", "asentmax")))
PLACES = ("sine", "none", "alibi", "rope", "randomized")
LONGER = ("copy", "reverse", "sort", "flip_flop", "two_back")  # tasks that are known to generalise in length, or not
TRAINED_TO = {"copy": 64, "reverse": 64}  # 40 elsewhere
MATCHED = (10, 20)  # sizes of top-k to hold beside ways that keep more keys than 5
_curves = Panel("training loss over held-out accuracy", ("train_loss", "heldout_accuracy"), lines=WAY)


def _budgets(seq_len: int) -> list[str]:
    """Ways to choose keys that keep at most 5, and top-k with more, as far as a sequence has more."""
    more = [f"topk:{size}" for size in MATCHED if size < seq_len]
    return [*FOCUS, "lsh:5", "routing:5", "bottomk:5", "randomk:5", *more]


def _each(tasks: Tasks, runs_of: Callable[[str], Sequence[RunConfig]]) -> list[RunConfig]:
    """Task by task, so that a study that is cut off leaves whole comparisons behind."""
    return distinct(config for task in tasks for config in runs_of(task))


@study(
    title="Is it top-k, or any attention that drops low scores?",
    asks="Do LSH, routing, entmax and sparsemax learn as fast as top-5, and the 5 worst or random keys not at all so?",
    claims=("C15",),
    panels=(
        Panel("epochs to 95 % training accuracy, and final held-out accuracy", ("converged_at",), kind="map", lines=WAY,
              each=("task.name",)),
        Panel("keys with a weight other than zero", ("kept_keys.mean",), kind="map", lines=WAY, each=("task.name",)),
        Panel("epochs against keys", ("converged_at",), kind="scatter", along="kept_keys.mean",
              lines=("task.name", *WAY), each=()),
        _curves,
    ),
    measures=("kept_keys", "dispersion"),
)  # fmt: skip
def heavy_hitters(tasks: Tasks = ROWS_OF_40, **choices: Unpack[Choices]) -> list[RunConfig]:
    return _each(
        tasks,
        lambda task: [*crossed([task], _budgets, **choices), *crossed([task], ["full"], SPARSE_WEIGHTS, **choices)],
    )


@study(
    title="Top-k under other normalisers",
    asks="Does the gain of top-5 depend on how the kept keys are weighed?",
    claims=("C16",),
    panels=(
        Panel("epochs to 95 % training accuracy", ("converged_at",), kind="map", lines=WAY, each=("task.name",)),
        Panel("final held-out accuracy", ("final.heldout_accuracy",), kind="map", lines=WAY, each=("task.name",)),
        Panel("training loss over held-out accuracy", _curves.metrics, each=("task.name", NORMALISER)),
    ),
)
def normalisers(
    tasks: Tasks = ("even_pairs", "missing_duplicate", "modular_arithmetic", "solve_equation"),
    changes: Sequence[Change] = NORMALISERS,
    **choices: Unpack[Choices],
) -> list[RunConfig]:
    return _each(tasks, lambda task: crossed([task], FOCUS, changes, **choices))


def _spans(task: str, scale: Scale) -> tuple[dict[str, object], list[str]]:
    """The length to train to, as a change and as overrides of a task that counts its length itself."""
    own = at_scale(task, "full", 0, "clean", scale).task.options.get("length", 40)
    longest = TRAINED_TO.get(task, 40) if scale == "paper" else int(own)
    shortest = 1 if task in ("copy", "reverse", "sort") else 4
    return {"task.lengths": f"{shortest}-{longest}"}, [f"task.options.length={longest}"]


@study(
    title="Longer sequences than were trained on",
    asks="Which attention, with which positions, is right on sequences up to 12 times as long as in training?",
    claims=("C17",),
    panels=(
        Panel("accuracy by length, mean over its logarithm", ("lengths.area",), kind="map", lines=WAY,
              each=("task.name", POSITIONS)),
        Panel("learning curves", ("train_loss", "heldout_accuracy"), lines=WAY, each=("task.name", POSITIONS)),
    ),
    measures=("lengths",),
    recipe="clean",
)  # fmt: skip
def length(tasks: Tasks = LONGER, **choices: Unpack[Choices]) -> list[RunConfig]:
    # clean: a batch of one length has no padding to a multiple of k
    shared: Choices = {**(Choices(recipe="clean") | choices)}
    scale = shared.get("scale", "paper")

    def runs_of(task: str) -> list[RunConfig]:
        change, overrides = _spans(task, scale)
        own: Choices = {**shared, "overrides": [*overrides, *shared.get("overrides", ())]}
        made = []
        for place in PLACES:
            at = {**change, POSITIONS: place}
            made += crossed([task], ["full", "topk:5"], [at], **own)
            made += crossed([task], ["full"], [{**at, **weights} for weights in LENGTH_WEIGHTS if weights], **own)
        return made

    return _each(tasks, runs_of)


@study(
    title="How smooth is attention?",
    asks="Does focus change the power of the length with which attention's local Lipschitz constant grows?",
    claims=("C18",),
    panels=(
        Panel("exact local Lipschitz constant of the attention layers, by the number of tokens",
              ("smoothness.constants",), along="smoothness.lengths"),
        Panel("exponent of the growth", ("smoothness.exponent",), kind="map", each=("task.name",)),
    ),
    measures=("smoothness",),
)  # fmt: skip
def smoothness(tasks: Tasks = ("even_pairs", "missing_duplicate"), **choices: Unpack[Choices]) -> list[RunConfig]:
    return _each(tasks, lambda task: crossed([task], FOCUS, **choices))
