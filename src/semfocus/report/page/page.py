"""The page of a store as one HTML file: it opens offline, loads nothing and runs only its own script.

    write_page(Path("runs"), Path("report.html"))

Everything that comes from a run is escaped. Should escaping ever fail, a content policy with the hashes of the script
and the style sheet keeps anything else from running. The same runs give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from semfocus.analysis.results import Results
from semfocus.report.page import sections
from semfocus.report.page.markup import asset, policy, shown, style_sheet, template
from semfocus.report.page.measured import measured
from semfocus.report.page.pictures import PictureMaker, picture
from semfocus.report.page.summary import About, goal_text, summarise
from semfocus.report.page.workers import workers
from semfocus.store import atomic

REFRESH = 5  # seconds after which a page of unfinished runs reloads
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_page(
    runs: Results | Path, out: Path, *, title: str | None = None, about: About | None = None, live: bool = False
) -> Path:
    """Write the page of these results, or of a store.

    `about` says which question the runs were trained for. A `live` page reloads itself while runs are unfinished.
    """
    results = runs if isinstance(runs, Results) else Results.load(runs)
    refresh = REFRESH if live and "running" in results.states else None
    atomic.write_text(Path(out), render(results, title=title, about=about, refresh=refresh))
    return Path(out)


def render(
    results: Results,
    *,
    title: str | None = None,
    about: About | None = None,
    refresh: int | None = None,
    picture: PictureMaker = picture,
) -> str:
    """The page as text; `picture` draws its figures."""
    from markupsafe import Markup

    mechanisms = results.mechanisms
    script = asset("chart.js") + asset("page.js").removeprefix('"use strict";\n')
    css = style_sheet(mechanisms)
    groups = [
        sections.group(place, group, mechanisms, picture, results.measurements)
        for place, group in enumerate(results.groups)
    ]
    summary = summarise(results.groups, about)
    on_top = sections.first_screen(results.groups, summary.meant)
    measurements = measured(results, picture)
    verdicts = [sections.verdict(verdict) for verdict in results.paper_verdicts] if results.has_paper_tasks else []
    values: dict[str, Any] = {
        "title": shown(title or sections.title(results, about)),
        "policy": policy(script, css),
        "css": Markup(css),  # files of this package, with nothing from a run
        "script": Markup(script),
        "data": Markup(embedded(sections.data(results, mechanisms))),
        "refresh": refresh,
        "goal": goal_text(results.groups),
        "summary": summary,
        "states": results.states,
        "workers": workers(results.root),
        "heat": sections.heat(on_top, results.groups, mechanisms),
        "below": len(results.groups) - len(on_top),
        "decided": [verdict for verdict in verdicts if verdict["decided"]],
        "undecided": [verdict for verdict in verdicts if not verdict["decided"]],
        "open_questions": [sections.verdict(verdict) for verdict in results.open_verdicts],
        "tasks": sections.tasks(results.groups, groups, mechanisms),
        "groups": groups,
        "runs": sections.runs(results),
        "measured": measurements,
        "faults": [*((shown(fault.name), shown(fault.text)) for fault in results.faults), *measurements.faults],
        "made": sections.made(results, about),
    }
    return template("page.html.j2").render(values)


def embedded(value: dict[str, Any]) -> str:
    """JSON for a script element, with every character escaped that could end the element or start another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNSAFE)
