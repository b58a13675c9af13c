"""A verdict on each claim of the paper (arXiv 2506.14095), by rules that are fixed here and not by the runs they judge.

    for verdict in judge(load_records("runs").records):
        print(verdict.claim, verdict.outcome, verdict.because)

`settings` says which runs may be compared, `pairs` what two arms of a setting say, the other modules which parts a
claim has, and `evidence` what the parts come to. The same rules in words: docs/verdicts.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from semfocus.analysis.records import Measurements, Record
from semfocus.analysis.verdicts import ablations, generalisation, learning, masks, measured, surfaces, text
from semfocus.analysis.verdicts.evidence import Claim, Outcome, Verdict, conclude
from semfocus.analysis.verdicts.settings import settings_from

__all__ = ["CLAIMS", "Claim", "Measurements", "Outcome", "Verdict", "judge"]

NOTHING: Measurements = {}
_PARTS = (learning, masks, generalisation, ablations, measured, surfaces, text)
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (claim for part in _PARTS for claim in part.CLAIMS),
        key=lambda claim: int(claim.id[1:]),
    )
)


def judge(records: Sequence[Record], measurements: Measurements = NOTHING) -> list[Verdict]:
    """Judge C1 to C14, in this order. Runs that have not ended say nothing; the order of runs makes no difference."""
    settings = settings_from(records)
    return [conclude(claim, claim.parts(settings, measurements)) for claim in CLAIMS]
