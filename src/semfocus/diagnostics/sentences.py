"""A diagnosis in plain sentences: where focusing would change little, where it would bite, which k keeps the weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semfocus.diagnostics.aggregate import Summary
    from semfocus.diagnostics.diagnosing import Diagnosis

MOST = "95"  # the percentile that stands for "nearly every query"
LITTLE = 0.95  # the k heaviest keys hold at least this much of the weight, for nearly every query
BITES = 0.5  # they hold less than this, for half of the queries
SINK = 0.5  # one key receives more than this of a head's attention
_SHOWN = 12


def sentences(found: Diagnosis) -> list[str]:
    """Whatever was seen, in the order in which one would ask."""
    if not found.whole.queries:
        return [*_warnings(found), "No query could be counted: every row is masked, or has scores that are not finite."]
    lines = [_little(found), _bites(found), *_needed(found)]
    lines += [*_sinks(found), _separation(found), _theory(found), *_warnings(found)]
    return [line for line in lines if line]


def _heads(found: Diagnosis) -> list[tuple[int, int, Summary]]:
    return [(i, h, head) for i, layer in enumerate(found.layers) for h, head in enumerate(layer.heads) if head.queries]


def _little(found: Diagnosis) -> str:
    calm = [(i, h) for i, h, head in _heads(found) if (head.at("top_share", MOST) or 0.0) >= LITTLE]
    total = len(_heads(found))
    if not calm:
        return (
            f"In no head do the {found.k} heaviest keys hold {LITTLE * 100:g} % of the weight for {MOST} % of the "
            "queries: focusing would change this model everywhere."
        )
    return (
        f"Focusing on {found.k} keys would change little in {len(calm)} of {total} heads, where they hold "
        f"{LITTLE * 100:g} % or more of the weight for {MOST} % of the queries: {_listed(calm, found)}."
    )


def _bites(found: Diagnosis) -> str:
    hurt = [(i, h) for i, h, head in _heads(found) if (head.at("top_share", "50") or 0.0) < BITES]
    if not hurt:
        return f"It bites nowhere hard: in every head they hold {BITES * 100:g} % or more for half of the queries."
    return (
        f"It would bite in {len(hurt)} of {len(_heads(found))} heads, where they hold less than {BITES * 100:g} % for "
        f"half of the queries: {_listed(hurt, found)}."
    )


def _needed(found: Diagnosis) -> list[str]:
    lines = []
    for name, share in (("k95", "95 %"), ("k99", "99 %")):
        half, most = found.whole.at(name, "50"), found.whole.at(name, MOST)
        if half is None or most is None:
            continue
        greediest = max(range(len(found.layers)), key=lambda i, name=name: found.layers[i].whole.at(name, MOST) or 0.0)
        worst = found.layers[greediest].whole.at(name, MOST) or 0.0
        lines.append(
            f"{share} of the weight is kept by k = {_whole(half)} for half of the queries and by k = {_whole(most)} "
            f"for {MOST} % of them; layer {greediest} asks for most, k = {_whole(worst)} of at most "
            f"{found.layers[greediest].whole.keys} keys."
        )
    return lines


def _sinks(found: Diagnosis) -> list[str]:
    sinks = [(i, h) for i, h, head in _heads(found) if (head.at("sink_share", "50") or 0.0) > SINK]
    if not sinks:
        return []
    return [f"One key receives more than {SINK * 100:g} % of the attention (a sink) in {_listed(sinks, found)}."]


def _separation(found: Diagnosis) -> str:
    typical, smallest = found.whole.at("separation", "50"), found.whole.at("separation", "100")
    if typical == float("inf"):
        return "For half of the queries or more nothing would be dropped: they see no more keys than k."
    if smallest == 0:
        return (
            f"The k-th and the next key are {typical:.3g} apart for half of the queries and tie for some, so that the "
            "least change can flip a mask: the worst-case bounds are infinite."
        )
    return f"The k-th and the next key are {typical:.3g} apart for half of the queries, {smallest:.2g} at the least."


def _theory(found: Diagnosis) -> str:
    cell = found.conditions().get("100")
    if cell is None:
        return ""
    holds = [name for name, value in (("W", cell.w), ("X", cell.x)) if value < 1]
    said = " and ".join(holds) + (" is" if len(holds) == 1 else " are") + " below 1" if holds else "neither is below 1"
    empty = " The bounds behind them are vacuous here." if "full" in cell.vacuous else ""
    return f"The paper's conditions in the worst case: W = {cell.w:.3g}, X = {cell.x:.3g}; {said}.{empty}"


def left_out(not_finite: int, empty: int) -> list[str]:
    """That queries are part of no number, and why."""
    lines = []
    if not_finite:
        lines.append(f"Warning: {not_finite} queries have scores that are NaN or infinite; they are left out above.")
    if empty:
        lines.append(f"{empty} queries may see no key at all; they are left out above.")
    return lines


def _warnings(found: Diagnosis) -> list[str]:
    lines = left_out(found.whole.not_finite, found.whole.empty)
    if found.unseen:
        lines.append(f"Not observed, since they compute attention their own way: {', '.join(found.unseen)}.")
    return lines


def _listed(heads: list[tuple[int, int]], found: Diagnosis) -> str:
    """`layer 0 (all heads), layer 3 (heads 1, 2)`."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    parts = []
    for layer, own in by_layer.items():
        total = len(found.layers[layer].heads)
        which = "all heads" if len(own) == total > 1 else f"head{'s' * (len(own) > 1)} {', '.join(map(str, own))}"
        parts.append(f"layer {layer}" if total == 1 else f"layer {layer} ({which})")
    more = f" and {len(parts) - _SHOWN} more layers" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


def _whole(value: float) -> str:
    """A number of keys; between two queries, the larger one is what suffices."""
    return f"{math.ceil(value)}"
