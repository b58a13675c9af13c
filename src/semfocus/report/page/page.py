"""One HTML file that says it all: opens offline, loads nothing, runs nothing but its own script.

    write_page(Path("runs"), Path("report.html"))

Everything that comes from a run is escaped, and a content policy with the hashes of the one script and the one style
sheet keeps anything else from running, should escaping ever fail. The same runs give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from semfocus.analysis.results import Results
from semfocus.report.figures.ablations import main_groups
from semfocus.report.figures.series import METRICS
from semfocus.report.page import sections
from semfocus.report.page.markup import asset, policy, shown, style_sheet, template
from semfocus.report.page.measured import measured
from semfocus.report.page.summary import LEVEL, summarise
from semfocus.store import atomic

REFRESH = 5  # seconds after which a page of unfinished runs looks for a newer one
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_page(store_root: Path, out: Path, *, title: str | None = None, live: bool = False) -> Path:
    """Read the runs, write the page, return where; `live`: it looks for a newer one while runs are unfinished."""
    found = Results.load(store_root)
    refresh = REFRESH if live and "running" in found.states else None
    atomic.write_text(Path(out), render(found, title=title, refresh=refresh))
    return Path(out)


def render(found: Results, *, title: str | None = None, refresh: int | None = None) -> str:
    """The page as text."""
    from markupsafe import Markup

    mechanisms = found.mechanisms
    script = asset("chart.js") + asset("page.js").removeprefix('"use strict";\n')
    css = style_sheet(mechanisms)
    groups = [sections.group(place, group, mechanisms) for place, group in enumerate(found.groups)]
    measurements = measured(found)
    verdicts = [sections.verdict(verdict) for verdict in found.verdicts]
    values: dict[str, Any] = {
        "title": shown(title or sections.title(found)),
        "policy": policy(script, css),
        "css": Markup(css),  # our own files: no word of theirs comes from a run
        "script": Markup(script),
        "data": Markup(embedded(sections.data(found, mechanisms))),
        "refresh": refresh,
        "level": LEVEL,
        "summary": summarise(found.groups),
        "states": found.states,
        "heat": sections.heat(main_groups(found.groups), found.groups, mechanisms),
        "decided": [verdict for verdict in verdicts if verdict["decided"]],
        "undecided": [verdict for verdict in verdicts if not verdict["decided"]],
        "tasks": sections.tasks(found.groups, groups, mechanisms),
        "groups": groups,
        "metrics": METRICS,
        "runs": sections.runs(found),
        "measured": measurements,
        "faults": [*((shown(fault.name), shown(fault.text)) for fault in found.faults), *measurements.faults],
        "made": sections.made(found),
    }
    return template("page.html.j2").render(values)


def embedded(value: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or starts another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNSAFE)
