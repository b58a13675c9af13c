"""A verdict on each claim of the paper (arXiv 2506.14095) and each open question, by rules fixed before the runs.

    for verdict in Results.load("runs").verdicts:
        print(verdict.claim, verdict.outcome, verdict.because)

`settings` groups comparable runs, `pairs` compares two arms of a setting, the other modules list the parts of each
claim, `evidence` combines the parts into a verdict, `reasons` says why, and `power` how many seeds would decide.
docs/verdicts.md has the same rules in words.
"""

from __future__ import annotations

from collections.abc import Sequence

from semfocus.analysis.records import Measurements, Record
from semfocus.analysis.verdicts import (
    generalisation,
    interventions,
    largest,
    learning,
    longer,
    measured,
    recall,
    robustness,
    surfaces,
    text,
    ways,
)
from semfocus.analysis.verdicts.evidence import OUTCOMES, Claim, Outcome, Verdict, conclude
from semfocus.analysis.verdicts.settings import settings_from

__all__ = ["CLAIMS", "OUTCOMES", "Claim", "Measurements", "Outcome", "Verdict", "judge"]

NOTHING: Measurements = {}
_PARTS = (learning, largest, generalisation, robustness, measured, surfaces, interventions, text, ways, longer, recall)
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (claim for part in _PARTS for claim in part.CLAIMS),
        key=lambda claim: int(claim.id[1:]),
    )
)
"""The paper's claims, C1 to C14, and the open questions, C15 to C22, each with its rule."""


def judge(records: Sequence[Record], measurements: Measurements = NOTHING) -> list[Verdict]:
    """Judge all of them, in this order. Unfinished runs do not count; the order of runs makes no difference."""
    settings = settings_from(records)
    return [conclude(claim, claim.parts(settings, measurements)) for claim in CLAIMS]
