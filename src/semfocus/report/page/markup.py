"""What every page is made with: templates that escape, one style sheet, and a content policy that forbids the rest.

css = style_sheet(["full", "topk:5"])
template("page.html.j2").render(css=Markup(css), policy=policy(script, css), ...)
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from semfocus.report.figures.heatmap import FASTER, SLOWER
from semfocus.report.figures.style import PALETTES, Theme, mechanism_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment, Template

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

_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")


@cache
def asset(name: str) -> str:
    """The text of a file of this package."""
    return resources.files("semfocus.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def template(name: str) -> Template:
    """A template of this package; every value put into it is escaped."""
    return _environment().get_template(name)


def style_sheet(mechanisms: Sequence[str] = ()) -> str:
    """The style sheet, with a colour for each of these mechanisms."""
    return _colours(mechanisms) + asset("page.css")


def policy(script: str, css: str) -> str:
    """A content policy that allows this script, this style sheet and images that are part of the page."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _colours(mechanisms: Sequence[str]) -> str:
    """The variables of both themes: dark where the reader's system or the button asks for it, light in print."""
    light, dark = _variables("light", mechanisms), _variables("dark", mechanisms)
    classes = "".join(f".m{place}{{--c:var(--m{place})}}" for place in range(len(mechanisms)))
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}{classes}\n"
    )


def _variables(theme: Theme, mechanisms: Sequence[str]) -> str:
    shown = {"light": ("block", "none"), "dark": ("none", "block")}[
        theme
    ]  # which of the two versions of a picture is shown
    values = {**PALETTES[theme]._asdict(), **_ACCENTS[theme], "on-light": shown[0], "on-dark": shown[1]}
    values |= {f"m{place}": mechanism_style(name).on(theme) for place, name in enumerate(mechanisms)}
    return "".join(f"--{name}:{value};" for name, value in values.items())


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken,
    )


def _unbroken(value: Any) -> Any:
    """A value whose numbers stay on the line of their percent sign; markup stays as it is."""
    return _BEFORE_PERCENT.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def shown(text: str) -> str:
    """`text` with escapes for what UTF-8 cannot encode: a file name may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()
