"""One HTML file that says it all: opens offline, loads nothing, runs nothing but its own script.

    write_page(Path("runs"), Path("report.html"))

Everything that comes from a run is escaped, and a content policy with the hashes of the one script and the one style
sheet keeps anything else from running, should escaping ever fail. The same runs give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.report import sections
from semfocus.report.ablations import main_groups
from semfocus.report.gather import Gathered, gather, shown
from semfocus.report.heatmap import FASTER, SLOWER
from semfocus.report.series import METRICS
from semfocus.report.style import PAPERS, Theme, look
from semfocus.report.words import LEVEL, summarise
from semfocus.store import atomic

if TYPE_CHECKING:
    from jinja2 import Environment

REFRESH = 5  # seconds after which a page of unfinished runs looks for a newer one
_ACCENTS: dict[Theme, dict[str, str]] = {
    "light": {
        "raised": "#f4f5f7", "link": "#0b5cad", "focus": "#0b5cad", "good": "#0a6b58", "bad": "#b3261e",
        "some": "#855300", "fast": FASTER, "slow": SLOWER,
    },
    "dark": {
        "raised": "#1f2229", "link": "#8ec2ff", "focus": "#8ec2ff", "good": "#4fd1b5", "bad": "#ff8f85",
        "some": "#f0b95c", "fast": "#12a594", "slow": "#b8742c",
    },
}  # fmt: skip
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_page(store_root: Path, out: Path, *, title: str | None = None, live: bool = False) -> Path:
    """Read the runs, write the page, return where; `live`: it looks for a newer one while runs are unfinished."""
    found = gather(store_root)
    refresh = REFRESH if live and "running" in found.states else None
    atomic.write_text(Path(out), render(found, title=title, refresh=refresh))
    return Path(out)


def render(found: Gathered, *, title: str | None = None, refresh: int | None = None) -> str:
    """The page as text."""
    from markupsafe import Markup

    mechanisms = found.mechanisms
    script = _asset("chart.js") + _asset("page.js").removeprefix('"use strict";\n')
    css = _colours(mechanisms) + _asset("page.css")
    groups = [sections.group(place, group, mechanisms) for place, group in enumerate(found.groups)]
    verdicts = [sections.verdict(verdict) for verdict in found.verdicts]
    values: dict[str, Any] = {
        "title": shown(title or sections.title(found)),
        "policy": _policy(script, css),
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
        "faults": found.faults,
        "made": sections.made(found),
    }
    return _environment().get_template("page.html.j2").render(values)


def embedded(value: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or starts another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNSAFE)


def _policy(script: str, css: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _colours(mechanisms: list[str]) -> str:
    """The two sets of variables: light, dark where the reader's system or the button asks for it; light on paper."""
    light, dark = _variables("light", mechanisms), _variables("dark", mechanisms)
    classes = "".join(f".m{place}{{--c:var(--m{place})}}" for place in range(len(mechanisms)))
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}{classes}\n"
    )


def _variables(theme: Theme, mechanisms: list[str]) -> str:
    values = {**PAPERS[theme]._asdict(), **_ACCENTS[theme]}
    values |= {f"m{place}": look(name).on(theme) for place, name in enumerate(mechanisms)}
    return "".join(f"--{name}:{value};" for name, value in values.items())


@cache
def _asset(name: str) -> str:
    return resources.files("semfocus.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
