"""Figures as part of a page: drawn once for light and once for dark, inside image elements, where nothing runs.

    picture("Loss surface", "Seed 3.", partial(draw_surfaces, surfaces), key=digest(...))

A page that is written again while runs train need not draw again what has not changed: `key` stands for all that goes
into a figure, and the newest figures are kept.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from semfocus.report.figures.drawing import DPI

Draw = Callable[..., list[Path]]  # (stem, formats=..., theme=...) -> files
KEPT = 128
_TYPES = {".svg": "image/svg+xml", ".webp": "image/webp"}
CSS_DPI = 96
_FONT = "font-family:'DejaVu Sans';"


class Drawn(NamedTuple):
    """A figure as addresses that hold it whole."""

    light: str
    dark: str
    width: int | None


_drawn: dict[str, Drawn] = {}


def picture(
    title: str, note: str, draw: Draw, *, key: str = "", kind: str = "svg", beside: Path | None = None
) -> dict[str, Any]:
    """Values for the template; `kind` "webp" for what lines cannot draw. No key: drawn anew.

    `beside`: also write the figure there, light, in all formats.
    """
    if beside is not None:
        draw(beside)
    drawn = _drawn.get(key) or _both(draw, kind)
    if key:
        _drawn.pop(key, None)
        _drawn[key] = drawn
        for old in list(_drawn)[:-KEPT]:
            del _drawn[old]
    return {"title": title, "note": note, **drawn._asdict()}


def digest(name: str, document: Any, *arrays: bytes) -> str:
    """A key for a figure: its name, and everything plain and not plain that goes into it."""
    found = hashlib.sha256(json.dumps([name, document], sort_keys=True, allow_nan=False).encode())
    for array in arrays:
        found.update(array)
    return found.hexdigest()


def _both(draw: Draw, kind: str) -> Drawn:
    with tempfile.TemporaryDirectory() as folder:
        (light,) = draw(Path(folder) / "light", formats=(kind,), theme="light")
        (dark,) = draw(Path(folder) / "dark", formats=(kind,), theme="dark")
        return Drawn(_data(light), _data(dark), _width(light))


def _data(drawn: Path) -> str:
    content = drawn.read_bytes()
    if drawn.suffix == ".svg":
        content = _compact(content.decode()).encode()
    return f"data:{_TYPES[drawn.suffix]};base64,{base64.b64encode(content).decode()}"


def _width(drawn: Path) -> int | None:
    """As wide as it was meant to be, where the file does not say so itself: a browser would count its pixels."""
    if drawn.suffix == ".svg":
        return None
    from PIL import Image

    with Image.open(drawn) as image:
        return round(image.width * CSS_DPI / DPI[drawn.suffix[1:]])


def _compact(svg: str) -> str:
    """The same picture in half of the characters: without what is for other programs alone, with styles said once, and
    with coordinates to a hundredth of a point."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[\w.]+_\d+"', "<g", svg)  # nothing refers to these names
    svg = re.sub(r">\s+<", "><", svg).replace("<g/>", "")
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = svg.replace("</style>", f"text{{{_FONT}}}</style>", 1)
    svg = re.sub(r'style="[^"]*"', lambda found: re.sub(r"([:;]) ", r"\1", found[0]).replace(_FONT, ""), svg)
    svg = re.sub(r"<g([^>]*)>((?:<use [^>]*/>)+)</g>", _said_once, svg)
    return re.sub(r' (?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]).replace("\n", ""), svg)


def _said_once(found: re.Match[str]) -> str:
    """The marks of a line, with their style, if they have one in common, given to their group."""
    about, marks = found.groups()
    styles = re.findall(r' style="[^"]*"', marks)
    if "style=" in about or len(set(styles)) != 1 or len(styles) != marks.count("<use "):
        return found[0]
    return f"<g{about}{styles[0]}>{marks.replace(styles[0], '')}</g>"
