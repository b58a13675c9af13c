"""Figures inside a page: drawn for light and for dark, in image elements, where no script runs.

    picture(PictureSpec("Loss surface", "Seed 3.", partial(draw_surfaces, surfaces), key=digest(...)))

A page that is written again while runs train does not draw a figure again whose `key` is the same: the newest figures
are cached, and a key is a digest of everything that a figure shows.
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
CACHED = 128  # figures
_TYPES = {".svg": "image/svg+xml", ".webp": "image/webp"}
CSS_DPI = 96
_FONT = "font-family:'DejaVu Sans';"


class Drawn(NamedTuple):
    """A figure as two data URLs."""

    light: str
    dark: str
    width: int | None


class PictureSpec(NamedTuple):
    """A figure of a page that is not drawn yet."""

    title: str
    note: str
    draw: Draw
    key: str = ""  # of the cache; empty: not cached
    kind: str = "svg"  # or "webp", for images that are not made of lines


def digest(name: str, document: Any, *arrays: bytes) -> str:
    """A cache key: a hash of the figure's name, its plain values and its arrays."""
    state = hashlib.sha256(json.dumps([name, document], sort_keys=True, allow_nan=False).encode())
    for array in arrays:
        state.update(array)
    return state.hexdigest()


def draw_both_themes(draw: Draw, kind: str) -> Drawn:
    """Draw for light and for dark."""
    with tempfile.TemporaryDirectory() as folder:
        (light,) = draw(Path(folder) / "light", formats=(kind,), theme="light")
        (dark,) = draw(Path(folder) / "dark", formats=(kind,), theme="dark")
        return Drawn(_data(light), _data(dark), _width(light))


class PictureMaker:
    """Draws figures as values for the templates; caches the newest."""

    def __init__(self, draw: Callable[[Draw, str], Drawn] = draw_both_themes) -> None:
        self._draw = draw
        self._cache: dict[str, Drawn] = {}

    def __call__(self, spec: PictureSpec, beside: Path | None = None) -> dict[str, Any]:
        """Draw the figure, or take it from the cache. `beside`: also write it there, light, in all formats."""
        if beside is not None:
            spec.draw(beside)
        drawn = self._cache.get(spec.key) or self._draw(spec.draw, spec.kind)
        if spec.key:
            self._cache.pop(spec.key, None)
            self._cache[spec.key] = drawn
            for oldest in list(self._cache)[:-CACHED]:
                del self._cache[oldest]
        return {"title": spec.title, "note": spec.note, **drawn._asdict()}


picture = PictureMaker()  # one for all pages of this process


def _data(drawn: Path) -> str:
    content = drawn.read_bytes()
    if drawn.suffix == ".svg":
        content = _compact(content.decode()).encode()
    return f"data:{_TYPES[drawn.suffix]};base64,{base64.b64encode(content).decode()}"


def _width(drawn: Path) -> int | None:
    """The width in CSS pixels of a bitmap; None for SVG, which has its own size."""
    if drawn.suffix == ".svg":
        return None
    from PIL import Image

    with Image.open(drawn) as image:
        return round(image.width * CSS_DPI / DPI[drawn.suffix[1:]])


def _compact(svg: str) -> str:
    """The same SVG at half the size: no metadata and ids, shared styles once, coordinates to 0.01 points."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[\w.]+_\d+"', "<g", svg)  # nothing refers to these names
    svg = re.sub(r">\s+<", "><", svg).replace("<g/>", "")
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = svg.replace("</style>", f"text{{{_FONT}}}</style>", 1)
    svg = re.sub(r'style="[^"]*"', lambda match: re.sub(r"([:;]) ", r"\1", match[0]).replace(_FONT, ""), svg)
    svg = re.sub(r"<g([^>]*)>((?:<use [^>]*/>)+)</g>", _share_style, svg)
    return re.sub(r' (?:d|x|y)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]).replace("\n", ""), svg)


def _share_style(match: re.Match[str]) -> str:
    """A group of marks with their style moved to the group, if all marks have the same."""
    about, marks = match.groups()
    styles = re.findall(r' style="[^"]*"', marks)
    if "style=" in about or len(set(styles)) != 1 or len(styles) != marks.count("<use "):
        return match[0]
    return f"<g{about}{styles[0]}>{marks.replace(styles[0], '')}</g>"
