"""A diagnosis in sentences: where focusing changes little, where it changes much, and which k keeps the weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semfocus.diagnostics.aggregate import Summary
    from semfocus.diagnostics.diagnosing import Diagnosis

MOST = "95"  # the percentile taken for nearly all queries
LITTLE = 0.95  # share of the weight that the k heaviest keys hold at least, for MOST of the queries
BITES = 0.5  # share of the weight that they hold less than, for half of the queries
SINK = 0.5  # share of a head's attention that one key receives more than
_SHOWN = 12


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Everything that the diagnosis shows, the effect of focusing first, warnings last."""
    if not diagnosis.whole.queries:
        return [
            *_warnings(diagnosis),
            "No query could be counted: every row is masked, or has scores that are not finite.",
        ]
    lines = [_little(diagnosis), _bites(diagnosis), *_needed(diagnosis)]
    lines += [*_sinks(diagnosis), _separation(diagnosis), _theory(diagnosis), *_warnings(diagnosis)]
    return [line for line in lines if line]


def _heads(diagnosis: Diagnosis) -> list[tuple[int, int, Summary]]:
    return [
        (i, h, head) for i, layer in enumerate(diagnosis.layers) for h, head in enumerate(layer.heads) if head.queries
    ]


def _little(diagnosis: Diagnosis) -> str:
    unaffected = [(i, h) for i, h, head in _heads(diagnosis) if (head.at("top_share", MOST) or 0.0) >= LITTLE]
    total = len(_heads(diagnosis))
    if not unaffected:
        return (
            f"In no head do the {diagnosis.k} heaviest keys hold {LITTLE * 100:g} % of the weight for {MOST} % of the "
            "queries: focusing would change this model everywhere."
        )
    return (
        f"Focusing on {diagnosis.k} keys would change little in {len(unaffected)} of {total} heads, where they hold "
        f"{LITTLE * 100:g} % or more of the weight for {MOST} % of the queries: {_listed(unaffected, diagnosis)}."
    )


def _bites(diagnosis: Diagnosis) -> str:
    affected = [(i, h) for i, h, head in _heads(diagnosis) if (head.at("top_share", "50") or 0.0) < BITES]
    if not affected:
        return f"It bites nowhere hard: in every head they hold {BITES * 100:g} % or more for half of the queries."
    return (
        f"It would bite in {len(affected)} of {len(_heads(diagnosis))} heads, where they hold less than "
        f"{BITES * 100:g} % for half of the queries: {_listed(affected, diagnosis)}."
    )


def _needed(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for name, share in (("k95", "95 %"), ("k99", "99 %")):
        half, most = diagnosis.whole.at(name, "50"), diagnosis.whole.at(name, MOST)
        if half is None or most is None:
            continue
        most_demanding = max(
            range(len(diagnosis.layers)), key=lambda i, name=name: diagnosis.layers[i].whole.at(name, MOST) or 0.0
        )
        worst = diagnosis.layers[most_demanding].whole.at(name, MOST) or 0.0
        lines.append(
            f"{share} of the weight is kept by k = {_whole(half)} for half of the queries and by k = {_whole(most)} "
            f"for {MOST} % of them; layer {most_demanding} asks for most, k = {_whole(worst)} of at most "
            f"{diagnosis.layers[most_demanding].whole.keys} keys."
        )
    return lines


def _sinks(diagnosis: Diagnosis) -> list[str]:
    sinks = [(i, h) for i, h, head in _heads(diagnosis) if (head.at("sink_share", "50") or 0.0) > SINK]
    if not sinks:
        return []
    return [f"One key receives more than {SINK * 100:g} % of the attention (a sink) in {_listed(sinks, diagnosis)}."]


def _separation(diagnosis: Diagnosis) -> str:
    typical, smallest = diagnosis.whole.at("separation", "50"), diagnosis.whole.at("separation", "100")
    if typical == float("inf"):
        return "For half of the queries or more nothing would be dropped: they see no more keys than k."
    if smallest == 0:
        return (
            f"The k-th and the next key are {typical:.3g} apart for half of the queries and tie for some, so that the "
            "least change can flip a mask: the worst-case bounds are infinite."
        )
    return f"The k-th and the next key are {typical:.3g} apart for half of the queries, {smallest:.2g} at the least."


def _theory(diagnosis: Diagnosis) -> str:
    cell = diagnosis.conditions().get("100")
    if cell is None:
        return ""
    holds = [name for name, value in (("W", cell.w), ("X", cell.x)) if value < 1]
    said = " and ".join(holds) + (" is" if len(holds) == 1 else " are") + " below 1" if holds else "neither is below 1"
    empty = " The bounds behind them are vacuous here." if "full" in cell.vacuous else ""
    return f"The paper's conditions in the worst case: W = {cell.w:.3g}, X = {cell.x:.3g}; {said}.{empty}"


def left_out(not_finite: int, empty: int) -> list[str]:
    """Lines about queries that are part of no number, with the reason."""
    lines = []
    if not_finite:
        lines.append(f"Warning: {not_finite} queries have scores that are NaN or infinite; they are left out above.")
    if empty:
        lines.append(f"{empty} queries may see no key at all; they are left out above.")
    return lines


def _warnings(diagnosis: Diagnosis) -> list[str]:
    lines = left_out(diagnosis.whole.not_finite, diagnosis.whole.empty)
    if diagnosis.unseen:
        lines.append(f"Not observed, since they compute attention their own way: {', '.join(diagnosis.unseen)}.")
    return lines


def _listed(heads: list[tuple[int, int]], diagnosis: Diagnosis) -> str:
    """`layer 0 (all heads), layer 3 (heads 1, 2)`."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    parts = []
    for layer, own in by_layer.items():
        total = len(diagnosis.layers[layer].heads)
        which = "all heads" if len(own) == total > 1 else f"head{'s' * (len(own) > 1)} {', '.join(map(str, own))}"
        parts.append(f"layer {layer}" if total == 1 else f"layer {layer} ({which})")
    more = f" and {len(parts) - _SHOWN} more layers" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


def _whole(value: float) -> str:
    """A number of keys. An interpolated quantile is rounded up, to a number that suffices."""
    return f"{math.ceil(value)}"
