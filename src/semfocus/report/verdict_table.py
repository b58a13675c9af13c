"""The verdicts as a Markdown file: one table of all claims, and below it the reasons and what is missing.

markdown(results, ["even_pairs: topk:5 has no ended run of seed 7"], fewer=[])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semfocus.analysis.results import Results
from semfocus.analysis.verdicts import Verdict

COLUMNS = ("claim", "outcome", "what the paper says", "effect", "interval", "p", "runs")
OPEN_COLUMNS = ("question", "outcome", "statement", *COLUMNS[3:])


def markdown(results: Results, missing: Sequence[str], fewer: Sequence[str]) -> str:
    """The file's text; `missing` is what comparisons lack, `fewer` which arms have fewer seeds by design."""
    lines = ["# Verdicts on the claims of the paper", "", _row(COLUMNS), _row(["---"] * len(COLUMNS))]
    lines += [_row(_cells(verdict)) for verdict in results.paper_verdicts]
    if results.open_verdicts:
        lines += ["", "## Open questions, which the paper does not claim", "", _row(OPEN_COLUMNS)]
        lines += [_row(["---"] * len(OPEN_COLUMNS)), *(_row(_cells(verdict)) for verdict in results.open_verdicts)]
    lines += ["", "## Reasons", ""]
    judged = [*results.paper_verdicts, *results.open_verdicts]
    lines += [f"- **{verdict.claim}** {_plain(verdict.because)}" for verdict in judged]
    lines += ["", "## What comparisons lack", "", *_items(missing)]
    lines += ["", "## Fewer seeds by design", "", *_items(fewer)]
    lines += ["", "## Left out", "", *_items(f"{fault.name}: {fault.text}" for fault in results.faults)]
    return "\n".join(lines) + "\n"


def _cells(verdict: Verdict) -> list[str]:
    interval = "" if verdict.interval is None else f"{verdict.interval[0]:.4g} to {verdict.interval[1]:.4g}"
    p = "" if verdict.p is None else f"{verdict.p:.2g}"
    return [
        verdict.claim,
        verdict.outcome_text,
        verdict.statement,
        verdict.effect or "",
        interval,
        p,
        str(verdict.runs),
    ]


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {_plain(text)}" for text in texts] or ["Nothing."]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _plain(text: str) -> str:
    """One line, in which nothing from a run can begin markup."""
    return " ".join(text.replace("<", "&lt;").split())
