"""`semfocus verdicts` and `semfocus export`: claims and questions judged by the runs, and the runs as one table."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semfocus.cli.shared import RunsDirectory, print_faults, say

if TYPE_CHECKING:
    from semfocus.analysis.verdicts import Verdict

_WIDTH = 100


def verdicts_command(
    directory: RunsDirectory = None,
    long: Annotated[
        bool, typer.Option("--long", help="Print the rule, effect, interval, p, runs and reason as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Judge each claim of the paper, and each open question, by the runs in a directory.

    The answer is: holds, mixed, does not hold, or not decided.

    Beside the outcome stands how much of the claim was run, or how many seeds would probably decide it. The rules are
    fixed in the code: see --long, or docs/verdicts.md. Missing data are an answer, not an error.

    \b
    semfocus verdicts
    semfocus verdicts runs --long
    """
    from semfocus.analysis.results import Results
    from semfocus.store import RunStore

    results = Results.load(RunStore(directory))
    if as_json:
        document = {
            "runs": len(results.records),
            "verdicts": [verdict.to_dict() for verdict in results.verdicts],
            "unfinished": [record.id for record in results.records if not record.ended],
            "faults": [{"name": fault.name, "what": fault.text} for fault in results.faults],
        }
        say(json.dumps(document, indent=2, allow_nan=False))
        return
    for verdict in results.paper_verdicts:
        say(_paragraph(verdict) if long else verdict_line(verdict))
    typer.echo("\nopen questions, which the paper does not claim:")
    for verdict in results.verdicts:
        if verdict.is_open_question:
            say(_paragraph(verdict) if long else verdict_line(verdict))
    for record in results.records:
        if not record.ended:
            say(f"{record.id}: {record.state}, left out", err=True)
    print_faults(results.faults)


def export_command(
    directory: RunsDirectory = None,
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: runs.parquet or runs.csv.")] = None,
    to: Annotated[Literal["parquet", "csv"], typer.Option(help="The format of the file.")] = "parquet",
) -> None:
    """Write all runs as one tidy table: a row for each run and evaluation, the configuration in columns beside.

    \b
    semfocus export
    semfocus export runs --to csv --out runs.csv
    """
    from semfocus.analysis.export import export_records
    from semfocus.analysis.results import Results
    from semfocus.store import RunStore

    results = Results.load(RunStore(directory))
    written = export_records(results.records, out or Path(f"runs.{to}"), to)
    say(f"wrote {written.path}: {written.rows} rows of {written.runs} runs")
    if written.without_rows:
        say(f"without metrics, and so without rows: {', '.join(written.without_rows)}", err=True)
    print_faults(results.unreadable)


def verdict_line(verdict: Verdict) -> str:
    """A verdict in a line: `C15  does not hold, 8 of 42 parts run: ... (120 runs, ...)`."""
    facts = [f"{verdict.runs} run{'' if verdict.runs == 1 else 's'}"]
    facts += [verdict.effect] if verdict.effect else []
    facts += [f"p = {verdict.p:.2g}"] if verdict.p is not None else []
    return f"{verdict.claim:4} {verdict.outcome_text}: {verdict.statement} ({', '.join(facts)})"


def _paragraph(verdict: Verdict) -> str:
    interval = "" if verdict.interval is None else f"{verdict.interval[0]:.4g} to {verdict.interval[1]:.4g}"
    facts = {
        "rule": verdict.rule,
        "effect": verdict.effect or "",
        "interval": interval,
        "p": "" if verdict.p is None else f"{verdict.p:.2g}",
        "runs": str(verdict.runs),
        "because": verdict.because,
    }
    lines = [f"{verdict.claim:4} {verdict.outcome_text}: {verdict.statement}"]
    for name, text in facts.items():
        if text:
            lines.append(textwrap.fill(text, _WIDTH, initial_indent=f"     {name:9} ", subsequent_indent=" " * 15))
    return "\n".join(lines) + "\n"
