"""Why a verdict is what it is, in words: which parts are shown, refuted, undecided, not applicable, or were never run.

2 of 3 shown: parity (1.4x), even_pairs (7.7x). 1 undecided: listops (1.1x, 95 % interval 0.9 to 1.3; about 45 seeds
would decide). settings: parity: clean recipe
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semfocus.analysis.verdicts.evidence import Part

_SHOWN, _SHOWN_OPEN = 8, 3


def because(parts: Sequence[Part], refuted: Mapping[int, float]) -> str:
    """The number and names of the parts of each kind; `refuted` has the places of those refuted after Holm."""
    shown = [part for part in parts if part.decision == "yes"]
    against = [part for i, part in enumerate(parts) if i in refuted]
    apart = [part for part in parts if part.decision == "not applicable"]
    waiting = [part for part in parts if part.decision == "undecided" and part.was_run]
    alone = [part for i, part in enumerate(parts) if part.decision == "no" and i not in refuted]
    absent = [part for part in parts if part.decision == "undecided" and not part.was_run]
    sentences = [
        _listed(f"{len(shown)} of {len(parts) - len(apart)} shown", [_named(part, part.effect) for part in shown]),
        _listed(f"{len(against)} refuted", [_named(part, part.why) for part in against]) if against else "",
        _listed(
            f"{len(alone)} refuted alone, but not after Holm over all that was run",
            [_named(part, part.why) for part in alone],
        )
        if alone
        else "",
        _grouped(f"{len(waiting)} undecided", waiting),
        _grouped(f"{len(absent)} never run", absent),
        _grouped(f"{len(apart)} not applicable", apart),
        _listed("settings", sorted({f"{part.name}: {part.setting}" for part in parts if part.setting})),
        _precisions(parts),
    ]
    return ". ".join(sentence for sentence in sentences if sentence)


def _grouped(head: str, parts: Sequence[Part]) -> str:
    """Parts by reason."""
    reasons: dict[str, list[str]] = {}
    for part in parts:
        would = f"about {part.seeds} seeds would decide" if part.seeds else ""
        reasons.setdefault("; ".join(filter(None, (part.why, would))), []).append(part.name)
    texts = [f"{_some(names, most=_SHOWN_OPEN)}{f' ({why})' if why else ''}" for why, names in reasons.items()]
    return _listed(head, texts) if parts else ""


def _precisions(parts: Sequence[Part]) -> str:
    """Only where the parts' runs differ in it: no two runs of different precisions are ever compared."""
    names: dict[str, int] = {}
    for part in parts:
        if part.precision:
            names[part.precision] = names.get(part.precision, 0) + 1
    return _listed("precision", [f"{name} in {count} parts" for name, count in names.items()]) if len(names) > 1 else ""


def _named(part: Part, text: str) -> str:
    return f"{part.name} ({text})" if text else part.name


def _listed(head: str, items: Sequence[str]) -> str:
    return f"{head}: {_some(items, '; ')}" if items else head if head[0].isdigit() else ""


def _some(items: Sequence[str], between: str = ", ", most: int = _SHOWN) -> str:
    more = f"{between}{len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + more
